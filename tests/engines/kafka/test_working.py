"""Workers on Kafka: holes, gaps, new partitions, lost ownership, and brokers that cannot be reached for a while."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from settled import App, Retry, connect
from settled.delivery.worker import Worker
from settled.drills.proxy import Proxy
from settled.engine import Assigned, ConsumerGroup, Fetched
from settled.engines.kafka import KafkaEngine
from settled.errors import Unavailable
from settled.events import StateChanged
from settled.record import Message, Record
from settled.sqlite import open_connection
from settled.store import Position, Store, Tx
from settled.testing import kafka
from waiting import until

pytestmark = [pytest.mark.xdist_group("kafka-working"), pytest.mark.timeout(180)]
Make = Callable[..., App]


def insert(tx: Tx, record: Record) -> None:
    tx.execute("INSERT INTO effects (event_id, place) VALUES (?, ?)", (record.id, record.offset))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Apps on a topic of their own, with effects in a file."""
    opened: list[App] = []

    def app(partitions: int = 1, *, of: App | None = None, bootstrap: str = "", **sections: Any) -> App:
        topic = of.contract.transport.topic if of is not None else kafka.unique("working")
        made = App(
            topic=topic,
            engine=f"kafka://{bootstrap or kafka.bootstrap()}",
            store=f"sqlite:///{tmp_path}/effects.db",
            transport={"partitions": partitions, **sections.pop("transport", {})},
            **sections,
        )
        made.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS effects (event_id TEXT, place INTEGER)"))
        made.handler(insert)
        opened.append(made)
        return made

    yield app
    for each in opened:
        each.close()


def topic(app: App) -> str:
    return app.contract.transport.topic


def effects(app: App) -> list[str]:
    """The event ids of the effects, in the order in which they were made."""
    connection = open_connection(app.store_url.removeprefix("sqlite:///"))
    found = [str(event) for (event,) in connection.execute("SELECT event_id FROM effects ORDER BY rowid")]
    connection.close()
    return found


def position(store: Store, partition: int = 0) -> Position:
    return next(held for _, held in store.positions() if held.partition == partition)


@contextmanager
def running(app: App) -> Iterator[Worker]:
    """A worker of the app in a thread of its own; what it raises, the test raises."""
    worker = app.worker()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def publish(app: App, first: int, count: int, **fields: Any) -> None:
    pending = [
        app.send(Message(**{"topic": topic(app), "id": f"e{n}", "key": b"k%d" % n, "value": b"v", **fields}))
        for n in range(first, first + count)
    ]
    for each in pending:
        each.result(60)


def test_b002_transaction_markers_and_aborted_records_are_holes(make: Make) -> None:
    app = make()
    name = topic(app)
    publish(app, 0, 3)
    writer = Producer(
        {"bootstrap.servers": kafka.bootstrap(), "transactional.id": kafka.unique("writer"), "log_level": 0}
    )
    writer.init_transactions()
    for ids, commit in ((range(3, 6), True), (range(90, 95), False), (range(6, 9), True), (range(95, 99), False)):
        writer.begin_transaction()
        for number in ids:
            writer.produce(name, b"v", b"k", headers=[("ce_id", f"e{number}")])
        writer.flush()
        writer.commit_transaction() if commit else writer.abort_transaction()
    app.drain()
    assert effects(app) == [f"e{n}" for n in range(9)]
    part = app.engine.topics([name])[0].partitions[0]
    assert position(app.store).frontier == part.end > 20  # markers, too, are below it: no lag
    publish(app, 9, 1)
    app.drain()
    assert effects(app)[9:] == ["e9"]


def test_b042_what_retention_took_is_told_and_the_rest_is_run(make: Make) -> None:
    app = make()
    name = topic(app)
    publish(app, 0, 10)
    app.drain()
    publish(app, 10, 90)
    client = AdminClient({"bootstrap.servers": kafka.bootstrap()})
    client.delete_records([TopicPartition(name, 0, 60)])[TopicPartition(name, 0, 60)].result()
    publish(app, 100, 5)
    app.drain()
    assert effects(app) == [f"e{n}" for n in (*range(10), *range(60, 105))]
    assert [(gap.first, gap.next_offset) for gap in app.store.gaps()] == [(10, 60)]


def test_a_gap_that_opens_under_a_reader_is_told(make: Make) -> None:
    """Retention passes a member that holds still: its next fetch finds nothing at its place."""
    app = make()
    name = topic(app)
    publish(app, 0, 2)
    consumer = app.engine.consumer(ConsumerGroup(group=kafka.unique("reader"), topics=(name,)))
    told: list[Fetched] = []

    def look() -> bool:
        for news in consumer.poll(0.2, records=100, bytes=10_000):
            if isinstance(news, Assigned):
                consumer.start(name, 0, 0)
            elif isinstance(news, Fetched):
                told.append(news)
        return bool(told) and told[-1].next_offset == wanted

    wanted = 2
    until(look)
    consumer.pause([(name, 0)])
    consumer.poll(0.5, records=1, bytes=1)
    publish(app, 2, 8)
    client = AdminClient({"bootstrap.servers": kafka.bootstrap()})
    client.delete_records([TopicPartition(name, 0, 7)])[TopicPartition(name, 0, 7)].result()
    consumer.resume([(name, 0)])
    wanted = 10
    until(look)
    assert [(one.gap_from, one.next_offset) for one in told if one.gap_from is not None] == [(2, 7)]
    assert [record.id for one in told for record in one.records] == ["e0", "e1", "e7", "e8", "e9"]
    consumer.close()


def test_b035_records_of_new_partitions_are_not_skipped(make: Make) -> None:
    app = make(2, transport={"start": "latest"})
    name = topic(app)
    publish(app, 900, 20)
    app.drain()
    assert effects(app) == []  # the group began after them
    with running(app):
        app.engine.grow_topic(name, 4)
        grown = make(4, of=app)
        publish(grown, 0, 100)
        until(lambda: len(effects(app)) == 100, 90)
    assert sorted(effects(app)) == sorted(f"e{n}" for n in range(100))


def test_b005_a_blocked_head_does_not_outgrow_the_commit(make: Make) -> None:
    app = make(delivery={"in_flight": {"records": 2_000}})
    go = threading.Event()

    def wait(tx: Tx, record: Record) -> None:
        if record.id == "e0" and not go.is_set():
            raise Retry(after=0.3)
        insert(tx, record)

    app._handler = wait
    publish(app, 0, 6_000)
    with running(app):
        until(lambda: len(effects(app)) >= 1_000, 90)
        assert "e0" not in effects(app)
        go.set()
        until(lambda: len(effects(app)) == 6_000, 120)
    assert sorted(effects(app)) == sorted(f"e{n}" for n in range(6_000))
    assert position(app.store).frontier == 6_000


def test_a_member_that_was_fenced_in_the_store_claims_anew(make: Make) -> None:
    """The group says that it owns the partition, the store that another one does: the group's word stands in the end,
    and nothing is settled under the old epoch."""
    app = make()
    publish(app, 0, 1)
    with running(app):
        until(lambda: len(effects(app)) == 1)
        before = position(app.store)
        consumer = app.store.positions()[0][0]
        other = connect.store(app.store_url)
        other.acquire(consumer, topic(app), 0, before.epoch + 7, before.identity)
        publish(app, 1, 1)
        until(lambda: len(effects(app)) == 2)
        assert position(app.store).epoch > before.epoch + 7
        other.close()
    assert effects(app) == ["e0", "e1"]


def test_b046_brokers_out_of_reach_are_waited_for(make: Make) -> None:
    """Every connection is cut for a while: nothing fails, the worker says that it waits, and goes on by itself."""
    cluster = kafka.cluster()
    with cluster.proxy_ports_held(), ExitStack() as stack:
        proxies = [Proxy(to, random.Random(1), port=port) for port, to in cluster.proxy_ports.items()]
        for proxy in proxies:
            stack.callback(proxy.close)
        app = make(bootstrap=cluster.proxied_bootstrap, delivery={"lease": "3s"})
        direct = make(of=app, bootstrap=cluster.bootstrap)
        states: list[str] = []
        app.events.listen(lambda event: states.append(event.state) if isinstance(event, StateChanged) else None)
        publish(direct, 0, 5)
        with running(app):
            until(lambda: len(effects(app)) == 5)
            for proxy in proxies:
                proxy.shut()
            publish(direct, 5, 20)
            until(lambda: states[-1] == "waiting", 60)
            for proxy in proxies:
                proxy.reopen()
            until(lambda: len(effects(app)) == 25, 60)
            publish(direct, 25, 5)
            until(lambda: len(effects(app)) == 30)
            until(lambda: states[-1] == "running", 60)
        assert effects(app) == [f"e{n}" for n in range(30)]
        app.close()


def test_no_broker_is_told_in_bounded_time() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1\b"):
        KafkaEngine("kafka://127.0.0.1:1")
