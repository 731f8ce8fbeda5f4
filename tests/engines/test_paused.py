"""B039: what a person paused stays paused through every rebalance, and flows again when it is resumed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from settled import App
from settled.delivery.worker import Worker
from settled.errors import SettledError
from settled.partition import partition_of
from settled.record import Record
from settled.sqlite import open_connection
from settled.store import Tx
from settled.testing import kafka
from surfaces.cli_runs import settled
from waiting import until

pytestmark = [pytest.mark.xdist_group("kafka-working"), pytest.mark.timeout(180)]
PARTITIONS, PAUSED = 4, 2


@pytest.fixture(params=["sqlite", "kafka"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    brokers = f"kafka://{kafka.bootstrap()}" if request.param == "kafka" else f"sqlite:///{tmp_path}/log.db"
    made = App(
        topic=kafka.unique("paused"),
        engine=brokers,
        store=f"sqlite:///{tmp_path}/effects.db",
        transport={"partitions": PARTITIONS},
        delivery={"lease": "6s"},
    )
    made.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS effects (event_id TEXT, part INTEGER)"))

    @made.handler
    def insert(tx: Tx, record: Record) -> None:
        tx.execute("INSERT INTO effects VALUES (?, ?)", (record.id, record.partition))

    with made:
        yield made


@contextmanager
def member(app: App) -> Iterator[Worker]:
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()


def effects(app: App) -> dict[int, int]:
    """How many there are of each partition."""
    connection = open_connection(app.store_url.removeprefix("sqlite:///"))
    sql = "SELECT part, count(DISTINCT event_id), count(*) FROM effects GROUP BY part"
    found = connection.execute(sql).fetchall()
    connection.close()
    assert all(distinct == count for _, distinct, count in found)
    return {int(part): int(count) for part, count, _ in found}


def command(app: App, folder: Path, *arguments: str, code: int = 0) -> str:
    return settled(folder, *arguments, "--engine", app.engine_url, "--store", app.store_url, code=code).out


def publish(app: App, name: str, each: int) -> None:
    """`each` records for every partition; their keys are found by trying."""
    left, number = dict.fromkeys(range(PARTITIONS), each), 0
    while any(left.values()):
        key = f"{name}-{number}"
        part = partition_of(key.encode(), PARTITIONS)
        if left[part]:
            app.publish(b"v", key=key, id=key)
            left[part] -= 1
        number += 1


def test_b039_a_pause_outlives_every_rebalance(app: App, tmp_path: Path) -> None:
    group, topic = app.contract.delivery.group, app.contract.transport.topic
    place = f"{topic}/{PAUSED}"
    with ExitStack() as stack:
        stack.enter_context(member(app))
        publish(app, "before", 1)
        until(lambda: effects(app) == dict.fromkeys(range(PARTITIONS), 1))
        command(app, tmp_path, "group", "pause", group, place, "--reason", "the supplier is down")
        publish(app, "after", 10)
        wanted = {number: 1 if number == PAUSED else 11 for number in range(PARTITIONS)}
        until(lambda: effects(app) == wanted)
        with member(app):
            time.sleep(1.5)
        with member(app) as crashing:
            time.sleep(1.0)
            crashing.abandon()
        publish(app, "later", 1)
        wanted = {number: 1 if number == PAUSED else 12 for number in range(PARTITIONS)}
        until(lambda: effects(app) == wanted)
        told = command(app, tmp_path, "group", "describe", group, "-o", "table")
        assert f"paused: {place}" in told
        assert "the supplier is down" in told
        found = json.loads(command(app, tmp_path, "group", "resume", group, topic, "-o", "json"))
        assert found["resumed"] == [place]
        until(lambda: effects(app) == dict.fromkeys(range(PARTITIONS), 12))


def test_a_drain_ends_at_a_pause_with_the_rest_settled(app: App, tmp_path: Path) -> None:
    publish(app, "first", 1)
    app.drain()
    group, topic = app.contract.delivery.group, app.contract.transport.topic
    command(app, tmp_path, "group", "pause", group, f"{topic}/{PAUSED}", "--reason", "a look at it")
    publish(app, "second", 3)
    with pytest.raises(SettledError, match=rf"paused: {topic}/{PAUSED} .*a look at it") as stopped:
        app.drain()
    assert "group resume" in stopped.value.hint
    assert effects(app) == {number: 1 if number == PAUSED else 4 for number in range(PARTITIONS)}
    assert command(app, tmp_path, "group", "pause", group, f"{topic}/99", "--reason", "x", code=2) == ""
    assert command(app, tmp_path, "group", "pause", group, topic, code=2) == "", "a reason is needed"
    command(app, tmp_path, "group", "resume", group, f"{topic}/{PAUSED}")
    app.drain()
    assert effects(app) == dict.fromkeys(range(PARTITIONS), 4)
