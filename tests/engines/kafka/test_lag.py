"""How far a consumer is, on Kafka: frontiers before ends, holes not counted, gaps told, nothing below zero."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from settled import App, Retry
from settled.operations.status import ConsumerStatus, status
from settled.record import Message, Record
from settled.sqlite import open_connection
from settled.store import Tx
from settled.testing.kafka import bootstrap, unique
from waiting import until

pytestmark = [pytest.mark.xdist_group("kafka"), pytest.mark.timeout(180)]
Make = Callable[..., App]


def insert(tx: Tx, record: Record) -> None:
    tx.execute("INSERT INTO effects (event_id) VALUES (?)", (record.id,))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Apps on a topic of their own, with effects in a file."""
    opened: list[App] = []

    def app(partitions: int = 1, handler: Callable[[Tx, Record], None] = insert, **sections: Any) -> App:
        topic = unique("lag")
        made = App(
            topic=topic,
            engine=f"kafka://{bootstrap()}",
            store=f"sqlite:///{tmp_path}/effects.db",
            transport={"partitions": partitions, "key": "key"},
            **sections,
        )
        made.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS effects (n INTEGER PRIMARY KEY, event_id TEXT)"))
        made.handler(handler)
        opened.append(made)
        return made

    yield app
    for each in opened:
        each.close()


def seen(app: App) -> ConsumerStatus:
    [found] = status(app.engine, app.store, app.contract).consumers
    for part in found.partitions:
        assert part.records >= 0
        assert part.bytes_about >= 0
        assert part.oldest_age_s is None or part.oldest_age_s >= 0
    return found


def effects(tmp_path: Path) -> list[str]:
    connection = open_connection(tmp_path / "effects.db")
    try:
        return [name for (name,) in connection.execute("SELECT event_id FROM effects ORDER BY n")]
    finally:
        connection.close()


def publish(app: App, numbers: range) -> None:
    topic = app.contract.transport.topic
    sent = [app.send(Message(topic=topic, value=b"v", key=b"k%d" % (n % 7), id=f"e{n}")) for n in numbers]
    for each in sent:
        each.result(30)


def test_b047_lag_is_never_negative_and_nothing_left_is_nothing(make: Make) -> None:
    app = make(partitions=3)
    publish(app, range(50))
    before = seen(app)
    assert (before.state, before.lag_records) == ("never-started", 50)
    assert all(part.frontier is None and part.committed is None for part in before.partitions)
    assert before.oldest_age_s is not None
    app.drain()
    after = seen(app)
    assert (after.state, after.lag_records, after.oldest_age_s) == ("settled", 0, None)
    assert [part.frontier for part in after.partitions] == [part.end for part in after.partitions]
    stop = threading.Event()
    errors: list[Exception] = []

    def supply() -> None:
        try:
            for number in range(50, 4_050, 100):
                if not stop.is_set():
                    publish(app, range(number, number + 100))
        except Exception as error:  # noqa: BLE001  # shown below
            errors.append(error)

    worker, publisher = app.worker(), threading.Thread(target=supply)
    running = threading.Thread(target=worker.run)
    running.start()
    publisher.start()
    try:
        samples = [seen(app).lag_records for _ in range(15)]
        publisher.join()
        until(lambda: seen(app).lag_records == 0)
    finally:
        stop.set()
        publisher.join()
        worker.stop()
        running.join()
    assert not errors
    assert len(samples) == 15
    done = seen(app)
    assert (done.state, done.outcomes) == ("settled", {"applied": 4_050})
    assert all(part.committed is not None and part.committed <= (part.frontier or 0) for part in done.partitions)


def test_b047_holes_are_not_counted(make: Make) -> None:
    """An aborted transaction leaves offsets that no record ever fills."""
    app = make()
    publish(app, range(3))
    app.drain()
    writer = Producer({"bootstrap.servers": bootstrap(), "transactional.id": unique("tx"), "log_level": 0})
    writer.init_transactions(30)
    for commit in (False, True, False):
        writer.begin_transaction()
        for number in range(5):
            writer.produce(app.contract.transport.topic, b"v%d" % number, partition=0)
        writer.flush(30)
        if commit:
            writer.commit_transaction(30)
        else:
            writer.abort_transaction(30)
    [end] = until(lambda: [part.end for part in seen(app).partitions if part.end == 3 + 18])
    found = seen(app)
    assert (found.lag_records, found.partitions[0].frontier, end) == (5, 3, 21)
    app.drain()
    left = seen(app)
    assert (left.state, left.lag_records, left.oldest_age_s) == ("settled", 0, None)
    assert left.outcomes == {"applied": 8}


def test_b042_what_was_removed_before_it_was_settled_is_a_gap(make: Make, tmp_path: Path) -> None:
    """0 to 9 are settled, 0 to 59 are removed: 60 to 104 run in order, and the gap is told and kept."""
    app = make()
    publish(app, range(10))
    app.drain()
    publish(app, range(10, 100))
    place = TopicPartition(app.contract.transport.topic, 0, 60)
    client = AdminClient({"bootstrap.servers": bootstrap(), "log_level": 0})
    client.delete_records([place])[place].result(30)
    publish(app, range(100, 105))
    app.drain()
    names = effects(tmp_path)
    assert sorted(names) == sorted(f"e{number}" for number in [*range(10), *range(60, 105)])
    for key in range(7):
        numbers = [int(name[1:]) for name in names if int(name[1:]) % 7 == key]
        assert numbers == sorted(numbers)
    [gap] = seen(app).gaps
    assert (gap.first, gap.next_offset) == (10, 60)


def test_b003_what_was_only_fetched_is_not_committed(make: Make, tmp_path: Path) -> None:
    """A member has fetched ten records and none of their handlers has ended; it stops. The next one begins at 0."""
    entered, leave = threading.Event(), threading.Event()

    def held(tx: Tx, record: Record) -> None:
        if leave.is_set():
            insert(tx, record)
            return
        entered.set()
        leave.wait(60)
        raise Retry("the member is going")

    app = make(handler=held, delivery={"grace": "1s"})
    publish(app, range(10))
    place = (app.contract.transport.topic, 0)
    worker = app.worker()
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        assert entered.wait(60)
        for _ in range(5):
            assert app.engine.groups(app.contract.delivery.group)[0].committed.get(place, 0) == 0
        assert seen(app).lag_records == 10
    finally:
        worker.stop()
        leave.set()
        running.join()
    assert app.engine.groups(app.contract.delivery.group)[0].committed.get(place, 0) == len(effects(tmp_path))
    app.drain()
    assert sorted(effects(tmp_path)) == sorted(f"e{number}" for number in range(10))


def test_groups_of_others_on_the_same_brokers_are_shown_by_name_only(make: Make) -> None:
    app = make()
    app.publish(b"{}", key="a", id="e0")
    app.drain()
    topic, foreign = app.contract.transport.topic, unique("foreign")
    other = Consumer({"bootstrap.servers": bootstrap(), "group.id": foreign})
    other.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    other.close()
    listed = {found.group for found in status(app.engine, None).consumers}
    assert app.contract.delivery.group in listed
    assert foreign not in listed
    [found] = status(app.engine, None, group=foreign).consumers
    assert (found.group, [part.topic for part in found.partitions]) == (foreign, [topic])
