"""Durable subscriptions: each has its own progress and its own failure policy; what one misses for good is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from settled import App, Reject
from settled.delivery.worker import Worker
from settled.errors import HistoryLost
from settled.events import GapFound
from settled.outcome import Outcome
from settled.partition import partition_of
from settled.record import Record
from settled.sqlite import open_connection
from settled.store import Tx
from settled.testing import kafka
from waiting import until

pytestmark = [pytest.mark.xdist_group("kafka-working"), pytest.mark.timeout(240)]
PARTITIONS = 2
KEYS = 6
Handler = Callable[[Tx, Record], None]


def insert(tx: Tx, record: Record) -> None:
    tx.execute("INSERT INTO effects VALUES (?, ?)", (record.id, record.key))


class Subscriptions:
    """Several on one topic, each with an effect store of its own."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.topic = kafka.unique("pubsub") if engine.startswith("kafka") else "pubsub"
        self.opened: list[App] = []

    def app(self, name: str, handler: Handler = insert, **sections: Any) -> App:
        found = App(
            engine=self.engine,
            store=f"sqlite:///{self.folder}/{name}.db",
            topic=self.topic,
            group=f"{self.topic}-{name}",
            transport={"form": "pubsub", "partitions": PARTITIONS},
            **{"delivery": {"lease": "6s"}, **sections},
        )
        found.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS effects (event_id TEXT, key BLOB)"))
        found.handler(handler)
        self.opened.append(found)
        return found

    def publish(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.opened[0].publish(b"v", key=f"k{number % KEYS}", id=f"e{number}")

    def remove(self, app: App) -> None:
        """All that the topic holds goes, as by retention."""
        if self.engine.startswith("kafka"):
            ends = {part.partition: part.end for part in app.engine.topics([self.topic])[0].partitions}
            client = AdminClient({"bootstrap.servers": kafka.bootstrap()})
            for future in client.delete_records([TopicPartition(self.topic, *one) for one in ends.items()]).values():
                future.result()
        until(lambda: app.engine.maintain(force=True) is not None and self._emptied(app), 60.0)

    def _emptied(self, app: App) -> bool:
        return all(part.begin == part.end for part in app.engine.topics([self.topic])[0].partitions)


@pytest.fixture(params=["sqlite", "kafka"])
def subscriptions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subscriptions]:
    found = Subscriptions(
        f"kafka://{kafka.bootstrap()}" if request.param == "kafka" else f"sqlite:///{tmp_path}/log.db", tmp_path
    )
    yield found
    for app in found.opened:
        app.close()


@contextmanager
def working(app: App) -> Iterator[Worker]:
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()


def effects(app: App) -> list[tuple[str, bytes]]:
    """What a subscription made, in order."""
    path = app.store_url.removeprefix("sqlite:///")
    if not Path(path).exists():
        return []
    connection = open_connection(path)
    try:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'effects'").fetchall():
            return []
        return [(str(name), bytes(key)) for name, key in connection.execute("SELECT event_id, key FROM effects")]
    finally:
        connection.close()


def frontiers(app: App) -> dict[int, int]:
    found = app.store.positions(app.contract.delivery.group)
    return {position.partition: position.frontier for _, position in found if position.frontier is not None}


def test_no_subscription_blocks_or_advances_another(subscriptions: Subscriptions) -> None:
    go = threading.Event()

    def slow(tx: Tx, record: Record) -> None:
        assert go.wait(120)
        insert(tx, record)

    def failing(tx: Tx, record: Record) -> None:
        insert(tx, record)
        raise ValueError("always")

    def refuses_one(tx: Tx, record: Record) -> None:
        if record.id == "e1":
            raise Reject("never")
        insert(tx, record)

    fast = subscriptions.app("fast")
    late = subscriptions.app("slow", slow, delivery={"lease": "6s", "group_size": {"records": 1}})
    bad = subscriptions.app("failing", failing, poison={"backoff": {"first": "1h", "most": "1h"}, "deadline": "2h"})
    parked = subscriptions.app("parked", refuses_one, poison={"then": "park"})
    paused = subscriptions.app("paused")
    paused.drain()  # it has begun
    group = paused.contract.delivery.group
    paused.store.pause(group, subscriptions.topic, range(PARTITIONS), reason="maintenance", who="test")
    with ExitStack() as stack:
        for app in (late, bad, parked, paused, fast):
            stack.enter_context(working(app))
        subscriptions.publish(0, 60)
        until(lambda: len(effects(fast)) == 60, 60.0)
        until(lambda: len(effects(parked)) == 50, 60.0)
        assert (effects(late), effects(bad), effects(paused)) == ([], [], [])
        assert sum(frontiers(fast).values()) == 60
        for app in (late, bad, paused):
            assert sum(frontiers(app).values()) == 0
        assert {key for _, key in effects(parked)} == {b"k%d" % n for n in range(KEYS) if n != 1}
        assert (
            parked.store.tally(parked.contract.delivery.group)[Outcome.QUARANTINED] == 10
        )  # e1, and its key behind it
        go.set()
        paused.store.resume(group, subscriptions.topic, range(PARTITIONS))
        for app in (late, paused):
            until(lambda app=app: len(effects(app)) == 60, 60.0)  # type: ignore[misc]
        assert effects(bad) == []
    for app in (fast, late, paused):
        made = effects(app)
        assert len(set(made)) == len(made) == 60
        for key in range(KEYS):
            assert [name for name, of in made if of == b"k%d" % key] == [f"e{n}" for n in range(key, 60, KEYS)]
    committed = {
        app.contract.delivery.group: app.engine.groups(app.contract.delivery.group)[0].committed for app in (fast, bad)
    }
    assert sum(committed[fast.contract.delivery.group].values()) == 60
    assert sum(committed[bad.contract.delivery.group].values()) == 0


def test_a_subscription_that_was_away_longer_than_the_retention_is_told(subscriptions: Subscriptions) -> None:
    age = "1h" if subscriptions.engine.startswith("kafka") else "1s"  # brokers are told to delete, see `remove`
    short = {"retention": {"age": age}}
    there, away = subscriptions.app("there", **short), subscriptions.app("away", **short)
    strict = subscriptions.app("strict", retention={"age": age, "on_gap": "stop"})
    subscriptions.publish(0, 12)
    for app in (there, away, strict):
        app.drain()
    subscriptions.publish(12, 30)
    there.drain()
    subscriptions.remove(there)
    subscriptions.publish(42, 6)
    there.drain()
    assert len(effects(there)) == 48
    assert there.store.gaps(there.contract.delivery.group) == []
    events: list[object] = []
    away.events.listen(events.append)
    away.drain()
    assert [name for name, _ in sorted(effects(away), key=lambda one: int(one[0][1:]))] == [
        f"e{n}" for n in [*range(12), *range(42, 48)]
    ]
    lost = away.store.gaps(away.contract.delivery.group)
    missed = {number: 0 for number in range(PARTITIONS)}
    for number in range(12, 42):
        missed[partition_of(b"k%d" % (number % KEYS), PARTITIONS)] += 1
    told = {gap.partition: gap.next_offset - gap.first for gap in lost}
    assert told == {number: count for number, count in missed.items() if count}
    assert {each.partition: each.next - each.first for each in events if isinstance(each, GapFound)} == told
    with pytest.raises(HistoryLost):
        strict.drain()
    assert len(effects(strict)) == 12


def test_a_subscription_becomes_a_queue_through_a_handler(tmp_path: Path) -> None:
    log, store = f"sqlite:///{tmp_path}/log.db", f"sqlite:///{tmp_path}/{{}}.db"
    failed: set[str] = set()

    def enqueue(tx: Tx, record: Record) -> None:
        tx.publish(record.value, topic="jobs", key=record.key)
        if record.id not in failed:  # the first run of each comes to nothing, and neither does its job
            failed.add(record.id)
            raise ValueError("once")

    facts = App(
        engine=log,
        store=store.format("facts"),
        topic="facts",
        group="filling",
        transport={"form": "pubsub", "partitions": PARTITIONS},
        poison={"backoff": {"first": "5ms", "most": "10ms"}},
    )
    facts.handler(enqueue)
    jobs = App(
        engine=log,
        store=store.format("jobs"),
        topic="jobs",
        group="working",
        transport={"form": "queue", "partitions": 3},
    )
    jobs.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS effects (event_id TEXT, key BLOB)"))
    jobs.handler(insert)
    with facts, jobs:
        assert jobs.engine.topics(["jobs"])[0].queue is not None
        for number in range(20):
            for _ in range(2):  # the second time the first answer was lost
                facts.publish(b"v", key=f"k{number % KEYS}", id=f"e{number}")
        facts.drain()
        jobs.drain()
        made = effects(jobs)
        assert len(made) == len(set(made)) == 20
        for key in range(KEYS):
            names = [name.split(":")[0] for name, of in made if of == b"k%d" % key]
            assert names == [f"e{n}" for n in range(key, 20, KEYS)]
        queue = jobs.engine.topics(["jobs"])[0].queue
        assert queue is not None
        assert queue.ready == 0
