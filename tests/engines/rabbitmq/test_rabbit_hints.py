"""Hints on RabbitMQ: nothing keeps them, nobody need be there, and a watcher that was cut off sweeps."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from broker import address, channel

from settled import App
from settled.drills.proxy import Proxy
from settled.engine import ConsumerGroup, ProducerSpec, TopicSpec
from settled.engines.rabbitmq import RabbitEngine
from settled.engines.rabbitmq import tail as tails
from settled.errors import ContractError
from settled.events import HintsLost, StateChanged, Swept
from settled.record import Record
from settled.store import Tx
from settled.testing import rabbitmq
from settled.testing.engine_tools import DEADLINE_S, message, names
from waiting import until

pytestmark = [pytest.mark.xdist_group("rabbitmq"), pytest.mark.timeout(240)]


@pytest.fixture
def engine() -> Iterator[RabbitEngine]:
    names.fresh()
    opened = RabbitEngine(rabbitmq.url())
    yield opened
    opened.close()
    names.plain()


def test_a_hint_that_nobody_hears_is_no_error(engine: RabbitEngine) -> None:
    engine.ensure_topic(TopicSpec(name=names.topic, form="notification"))
    producer = engine.producer(ProducerSpec())
    for number in range(3):
        producer.send(message(number)).result(DEADLINE_S)
    producer.close()


def test_a_notification_is_told_from_a_subscription_and_from_a_queue(engine: RabbitEngine) -> None:
    engine.ensure_topic(TopicSpec(name=names.topic, form="notification", partitions=2))
    (info,) = engine.topics([names.topic])
    assert (info.spec.form, info.queue) == ("notification", None)
    assert "nothing is kept" in info.notes[0]
    other = RabbitEngine(rabbitmq.url())
    try:
        assert other.topics([names.topic])[0].spec.form == "notification"  # by what the broker has
        for form in ("pubsub", "queue"):
            with pytest.raises(ContractError, match="notification"):
                other.ensure_topic(TopicSpec(name=names.topic, form=form))  # type: ignore[arg-type]
    finally:
        other.close()
    with pytest.raises(ContractError, match="no group"):
        engine.consumer(ConsumerGroup(group=names.group, topics=(names.topic,), ordered=False))
    with channel() as opened:
        opened.exchange_delete(f"{names.topic}:hints")
    with pytest.raises(ContractError, match="no topic"):
        engine.tail(names.topic)


def test_foreign_hints_are_heard(engine: RabbitEngine) -> None:
    engine.ensure_topic(TopicSpec(name=names.topic, form="notification"))
    tail = engine.tail(names.topic)
    with channel() as opened:
        opened.basic_publish(f"{names.topic}:hints", "", b"v")
    found: list[Record] = []
    until(lambda: found.extend(tail.poll(0.1, records=10, bytes=1000)) or found, DEADLINE_S)
    assert (found[0].value, tail.missed) == (b"v", 0)


@contextmanager
def watching(app: App) -> Iterator[list[object]]:
    """What was told while its watcher ran."""
    watcher, told, idle = app.watcher(), list[object](), threading.Event()
    app.events.listen(told.append)
    app.events.listen(lambda event: idle.set() if isinstance(event, StateChanged) and event.state == "idle" else None)
    thread = threading.Thread(target=watcher.run)
    thread.start()
    try:
        assert idle.wait(DEADLINE_S)
        yield told
    finally:
        watcher.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_watcher_that_was_cut_off_sweeps(tmp_path: Path) -> None:
    """The hint that passed meanwhile is not counted when nobody sends another one: the loss is known all the same."""
    proxy, file, topic = Proxy(address(), random.Random(1)), tmp_path / "effects.db", rabbitmq.unique("hints")
    app = App(
        topic=topic,
        engine=f"rabbitmq://guest:guest@127.0.0.1:{proxy.port}/",
        store=f"sqlite:///{file}",
        transport={"form": "notification", "version": "version"},
    )
    app.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, version INTEGER)"))
    app.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS cache (id TEXT PRIMARY KEY, version INTEGER)"))

    @app.handler
    def refresh(tx: Tx, hint: Record) -> None:
        assert hint.key is not None
        tx.execute("INSERT OR REPLACE INTO cache SELECT id, version FROM orders WHERE id = ?", (hint.key.decode(),))

    @app.sweep(3600)
    def repair(tx: Tx) -> None:
        tx.execute("INSERT OR REPLACE INTO cache SELECT id, version FROM orders EXCEPT SELECT id, version FROM cache")

    def rows(table: str) -> dict[str, int]:
        connection = apsw.Connection(str(file))
        connection.set_busy_timeout(30_000)
        found = dict(connection.execute(f"SELECT id, version FROM {table}").fetchall())
        connection.close()
        return found

    def change(key: str, version: int) -> None:
        connection = apsw.Connection(str(file))
        connection.set_busy_timeout(30_000)
        connection.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", (key, version))
        connection.close()

    sender = RabbitEngine(rabbitmq.url())
    producer = sender.producer(ProducerSpec())
    try:
        with app, watching(app) as told:
            change("o1", 1)
            producer.send(message(1, topic=topic, key=b"o1", version=1)).result(DEADLINE_S)
            until(lambda: rows("cache") == {"o1": 1}, DEADLINE_S)
            swept = sum(isinstance(each, Swept) for each in told)
            proxy.shut()
            change("o1", 2)
            change("o2", 1)
            producer.send(message(2, topic=topic, key=b"o1", version=2)).result(DEADLINE_S)
            proxy.reopen()
            until(lambda: rows("cache") == rows("orders") == {"o1": 2, "o2": 1}, DEADLINE_S)
            assert sum(isinstance(each, Swept) for each in told) > swept
            assert any(isinstance(each, HintsLost) and not each.passed for each in told)
    finally:
        sender.close()
        proxy.close()


def test_a_topic_that_is_deleted_and_made_anew_is_heard_again(
    engine: RabbitEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "BIND_S", 0.3)
    spec = TopicSpec(name=names.topic, form="notification")
    engine.ensure_topic(spec)
    tail = engine.tail(names.topic)
    with channel() as opened:
        opened.exchange_delete(f"{names.topic}:hints")
    with pytest.raises(ContractError, match="no topic"):
        until(lambda: tail.poll(0.1, records=10, bytes=1000), DEADLINE_S)
    engine.ensure_topic(spec)
    producer, found, numbers = engine.producer(ProducerSpec()), list[Record](), itertools.count()

    def heard() -> list[Record]:
        producer.send(message(next(numbers))).result(DEADLINE_S)
        with contextlib.suppress(ContractError):
            found.extend(tail.poll(0.1, records=10, bytes=1000))
        return found

    until(heard, DEADLINE_S)
    assert tail.interruptions == 1
