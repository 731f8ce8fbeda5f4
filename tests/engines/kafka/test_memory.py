"""What a process holds while it works on Kafka: bounded, whatever the backlog and whatever one record weighs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import App
from settled.errors import TooLarge
from settled.record import Message, Record
from settled.store import Tx
from settled.testing.kafka import bootstrap, unique

pytestmark = [pytest.mark.xdist_group("kafka"), pytest.mark.timeout(180)]
Make = Callable[..., App]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Apps on a topic of their own."""
    opened: list[App] = []

    def app(handler: Callable[[Tx, Record], None], transport: dict[str, Any], **sections: Any) -> App:
        made = App(
            topic=unique("bounds"),
            engine=f"kafka://{bootstrap()}",
            store=f"sqlite:///{tmp_path}/effects.db",
            transport=transport,
            **sections,
        )
        made.handler(handler)
        opened.append(made)
        return made

    yield app
    for each in opened:
        each.close()


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def test_b036_a_record_above_the_byte_budget_comes_alone(make: Make) -> None:
    sizes, seen = [10, 5 * 2**20, 10], list[int]()
    app = make(
        lambda tx, record: seen.append(len(record.value or b"")),
        {"partitions": 1, "record_limit": "6MiB"},
        delivery={"in_flight": {"bytes": "1MiB"}, "group_size": {"bytes": "512KiB"}},
    )
    for number, size in enumerate(sizes):
        app.publish(b"x" * size, key="k", id=f"e{number}")
    with pytest.raises(TooLarge, match=rf"(?s){7 * 2**20}.*{6 * 2**20}|{7 * 2**20 + 3}.*{6 * 2**20}"):
        app.publish(b"x" * (7 * 2**20), key="k", id="e9")
    app.drain()
    assert seen == sizes


def test_b037_a_backlog_is_not_pulled_into_memory(make: Make) -> None:
    budget, count, size = 16 * 2**20, 1_000, 175_000  # eleven times the budget
    held, go_on, begun = threading.Event(), threading.Event(), list[int]()

    def handler(tx: Tx, record: Record) -> None:
        begun.append(record.offset)
        if len(begun) > 30:
            held.set()
            go_on.wait(60)

    app = make(
        handler,
        {"partitions": 8},
        delivery={"in_flight": {"bytes": budget, "records": 1000}, "group_size": {"bytes": "1MiB"}},
    )
    topic, noise = app.contract.transport.topic, random.Random(1).randbytes(size)
    sent = [
        app.send(Message(topic=topic, key=b"k%d" % n, value=noise[n:] + noise[:n], id=f"e{n}")) for n in range(count)
    ]
    for each in sent:
        each.result(60)
    del sent
    assert app.store
    before = resident_bytes()
    worker = app.worker()
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        assert held.wait(60)
        grown, in_flight = resident_bytes() - before, worker._in_flight.bytes
    finally:
        worker.stop()
        go_on.set()
        running.join()
    assert in_flight < 2 * budget  # a target: one record may come on top
    assert grown < 3 * budget  # the hand-off, librdkafka's queue and each broker's answer on its way included
