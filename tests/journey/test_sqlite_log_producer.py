"""The embedded log's producer: sending goes on while the disk is waited for, within bounds, and nothing is mixed up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import windows
from settled.engine import ProducerSpec
from settled.engines.sqlite import SqliteEngine
from settled.engines.sqlite.append import RESERVED
from settled.errors import Unavailable
from settled.testing.engine_tools import TOPIC, make_topic, message
from waiting import until

NEVER_S = 3600.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    made = SqliteEngine(f"sqlite:///{tmp_path}/log.db")
    yield made
    windows.install(None)
    made.close()


class Held:
    """Holds the first append before its commit until `go`; counts the commits that were tried. `fail` is raised in
    each append after the first."""

    def __init__(self, fail: Exception | None = None) -> None:
        self.appends, self.inside, self._go, self._fail = 0, threading.Event(), threading.Event(), fail
        windows.install(self._reached)

    def go(self) -> None:
        self._go.set()

    def _reached(self, window: str) -> None:
        if window == "append-written":
            self.appends += 1
            if self.appends > 1 and self._fail is not None:
                raise self._fail
            self.inside.set()
            assert self._go.wait(60)


def test_batches_that_close_meanwhile_share_one_transaction(engine: SqliteEngine) -> None:
    make_topic(engine, 3)
    held = Held()
    producer = engine.producer(ProducerSpec(batch_records=4, linger_s=NEVER_S))
    pending = [producer.send(message(n, key=b"%d" % n)) for n in range(4)]
    assert held.inside.wait(60)
    pending += [producer.send(message(n, key=b"%d" % n)) for n in range(4, 24)]
    assert not any(one.done() for one in pending)
    held.go()
    receipts = [one.result(timeout=60) for one in pending]
    assert held.appends == 2
    for receipt in receipts:
        assert engine.read(TOPIC, receipt.partition, receipt.offset, records=1)[0].id == receipt.id
    for partition in range(3):
        numbers = [int(one.id[1:]) for one in engine.read(TOPIC, partition, 0)]
        assert numbers == sorted(numbers)
    assert sum(part.records for part in engine.topics()[0].partitions) == 24
    assert sum(part.bytes for part in engine.topics()[0].partitions) == sum(
        one.size for partition in range(3) for one in engine.read(TOPIC, partition, 0)
    )


@pytest.mark.timeout(60)
def test_batches_that_are_more_together_than_is_reserved_at_once_are_appended(engine: SqliteEngine) -> None:
    """`memory` appends stay below a bound that was reserved; one transaction may need more than the usual step."""
    make_topic(engine, 1)
    held = Held()
    each = RESERVED // 20
    producer = engine.producer(ProducerSpec(batch_records=each, linger_s=NEVER_S, durability="memory"))
    pending = [producer.send(message(n)) for n in range(each)]
    assert held.inside.wait(60)
    pending += [producer.send(message(n)) for n in range(each, 30 * each)]
    held.go()
    assert [one.result(timeout=60).offset for one in pending] == list(range(30 * each))
    assert held.appends == 2
    producer.close()


def test_batches_of_one_transaction_fail_together_and_each_message_is_told(engine: SqliteEngine) -> None:
    make_topic(engine, 1)
    held = Held(fail=Unavailable("the disk is full"))
    producer = engine.producer(ProducerSpec(batch_records=2, linger_s=NEVER_S))
    pending = [producer.send(message(n)) for n in range(2)]
    assert held.inside.wait(60)
    pending += [producer.send(message(n)) for n in range(2, 6)]
    held.go()
    assert [one.result(timeout=60).offset for one in pending[:2]] == [0, 1]
    for one in pending[2:]:
        with pytest.raises(Unavailable, match="full"):
            one.result(timeout=60)
    windows.install(None)
    with pytest.raises(Unavailable, match="4 messages are not confirmed"):
        producer.flush()
    assert producer.send(message(6)).done() is False
    producer.close()
    assert [one.id for one in engine.read(TOPIC, 0, 0)] == ["e0", "e1", "e6"]


def test_a_named_producers_failure_takes_the_batches_behind_it_along(engine: SqliteEngine) -> None:
    make_topic(engine, 1)
    held = Held(fail=Unavailable("no"))
    producer = engine.producer(ProducerSpec(identity="loader", batch_records=2, linger_s=NEVER_S))
    pending = [producer.send(message(n), sequence=n) for n in range(2)]
    assert held.inside.wait(60)
    pending += [producer.send(message(n), sequence=n) for n in range(2, 7)]  # the last one's batch is still open
    held.go()
    for one in pending[2:]:
        with pytest.raises(Unavailable):
            one.result(timeout=60)
    windows.install(None)
    with pytest.raises(Unavailable, match="5 messages"):
        producer.flush()
    assert producer.resume_point() == 1
    again = [producer.send(message(n), sequence=n) for n in range(7)]
    producer.close()
    assert [one.result().stored for one in again] == [False] * 2 + [True] * 5
    assert [one.id for one in engine.read(TOPIC, 0, 0)] == [f"e{n}" for n in range(7)]


def test_a_sender_waits_while_the_buffer_is_full(engine: SqliteEngine) -> None:
    make_topic(engine, 1)
    held = Held()
    spec = ProducerSpec(batch_records=4, buffer_bytes=2_000, linger_s=NEVER_S)
    producer = engine.producer(spec)
    sent: list[int] = []

    def send() -> None:
        for number in range(100):
            producer.send(message(number, key=None, value=b"x" * 200))
            sent.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    assert held.inside.wait(60)
    until(lambda: producer._buffered > spec.buffer_bytes)
    assert len(sent) < 12  # three batches of four are above the bound, and the call that closed the third waits
    held.go()
    sender.join(60)
    assert not sender.is_alive()
    producer.close()
    assert [one.id for one in engine.read(TOPIC, 0, 0, records=200)] == [f"e{n}" for n in range(100)]


def test_a_producers_thread_that_met_a_fault_is_replaced(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(engine, 1)
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def fault(window: str) -> None:
        if window == "append-written":
            raise RuntimeError("a fault of ours")

    windows.install(fault)
    producer = engine.producer(ProducerSpec(batch_records=2, linger_s=0.01))
    with pytest.raises(Unavailable, match="a fault of ours"):
        producer.send(message(1)).result(timeout=60)
    until(lambda: told and producer._thread is None)
    windows.install(None)
    assert producer.send(message(2)).result(timeout=60).offset == 0
    with pytest.raises(Unavailable, match="1 messages"):
        producer.flush()
    producer.close()
