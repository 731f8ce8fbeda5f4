"""A group that does not come back is forgotten: nothing waits for it. If it comes back all the same, no effect is made
twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from settled import App
from settled.engine import ConsumerGroup, TopicSpec
from settled.engines.rabbitmq import RabbitEngine
from settled.engines.sqlite import SqliteEngine
from settled.errors import ContractError, Refused, Unsupported
from settled.operations import forgetting
from settled.record import Record
from settled.store import Tx
from settled.testing import kafka, rabbitmq
from settled.testing.engine_tools import Member, message, names, publish
from waiting import until

pytestmark = [pytest.mark.xdist_group("kafka-working"), pytest.mark.timeout(240)]
MakeApp = Callable[..., App]


@pytest.fixture
def own_names() -> Iterator[None]:
    names.fresh()
    yield
    names.plain()


@pytest.fixture(params=["sqlite", "kafka", "rabbitmq"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    engine = str(request.param)
    url = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/log.db",
        "kafka": lambda: f"kafka://{kafka.bootstrap()}",
        "rabbitmq": rabbitmq.url,
    }[engine]()
    topic = kafka.unique("forgotten")
    with App(
        topic=topic,
        group=f"{topic}-g",
        engine=url,
        store=f"sqlite:///{tmp_path}/effects.db",
        transport={"form": "pubsub", "partitions": 1},
        delivery={"lease": "2s"},
        poison={"owner": "tests"},
    ) as made:
        made.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS effects (id TEXT)"))

        @made.handler
        def insert(tx: Tx, record: Record) -> None:
            tx.execute("INSERT INTO effects VALUES (?)", (record.id,))

        yield made


def effects(folder: Path) -> list[str]:
    connection = apsw.Connection(str(folder / "effects.db"))
    try:
        return [ident for (ident,) in connection.execute("SELECT id FROM effects ORDER BY rowid")]
    finally:
        connection.close()


@contextmanager
def working(app: App) -> Iterator[None]:
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(60.0)
        assert not thread.is_alive()


def send(app: App, numbers: range) -> None:
    for number in numbers:
        app.publish(b"v", key="k", id=f"e{number}")


def test_a_group_is_forgotten_and_comes_back(app: App, tmp_path: Path) -> None:
    topic, group, engine = app.contract.transport.topic, app.contract.delivery.group, app.engine
    with working(app):
        until(lambda: any(info.members for info in engine.groups(group)), 60.0)
        until(lambda: app.store.reports(group), 60.0)
        send(app, range(10))
        until(lambda: len(effects(tmp_path)) == 10, 60.0)
        with pytest.raises(Refused, match="has members"):
            forgetting.forget(engine, group, [topic], force=True)
    kept = engine.name == "rabbitmq"  # in a queue of the group's own, which goes with it
    send(app, range(10, 15))
    if kept:
        with pytest.raises(Refused, match="5 records"):
            forgetting.forget(engine, group, [topic], force=False)
    else:
        assert forgetting.look(engine, group, None)[0].behind is not None
    assert forgetting.forget(engine, group, [topic], force=True) == {topic: 5 if kept else 0}
    assert not [info for info in engine.groups(group) if info.committed or info.epochs or info.members]
    with pytest.raises(ContractError, match="nothing"):
        forgetting.forget(engine, group, [topic], force=False)
    with working(app):
        if kept:
            until(lambda: any(info.members for info in engine.groups(group)), 60.0)
        send(app, range(15, 20))
        send(app, range(3))  # again
        wanted = [f"e{number}" for number in range(20) if not (kept and 10 <= number < 15)]
        until(lambda: len(effects(tmp_path)) >= len(wanted), 60.0)
    assert effects(tmp_path) == wanted


def test_what_is_not_there_is_not_forgotten(app: App) -> None:
    for topics in ([app.contract.transport.topic], ["nosuch"]):
        with pytest.raises(ContractError):
            forgetting.forget(app.engine, "nobody", topics, force=True)


@pytest.mark.usefixtures("own_names")
def test_retention_waits_no_more(tmp_path: Path) -> None:
    engine = SqliteEngine(f"sqlite:///{tmp_path}/log.db")
    try:
        engine.ensure_topic(TopicSpec(name=names.topic, compact=True, tombstone_s=0.0))
        away = Member(engine)
        away.owns(1)
        away.consumer.close()
        publish(engine, [message(number, key=b"k") for number in range(50)])
        assert engine.maintain(force=False).get(names.topic, 0) == 0
        assert engine.forget_group(names.group, [names.topic]) == {names.topic: 0}
        assert engine.groups() == []
        publish(engine, [message(50, key=b"k")])
        until(lambda: engine.maintain().get(names.topic, 0) or _held(engine) <= 2, 60.0)
    finally:
        engine.close()


def _held(engine: SqliteEngine) -> int:
    return engine.topics([names.topic])[0].partitions[0].records


@pytest.mark.usefixtures("own_names")
def test_a_member_that_was_stopped_meanwhile_joins_anew(tmp_path: Path) -> None:
    """Its lease ran out, its group was forgotten; it comes back without an error, and reads."""
    engine = SqliteEngine(f"sqlite:///{tmp_path}/log.db")
    try:
        engine.ensure_topic(TopicSpec(name=names.topic))
        member = Member(engine, lease_s=30.0)
        member.owns(1)
        with engine._database.writing(durable=True) as connection:
            connection.execute("UPDATE log_member SET expires_us = 0")
        engine.forget_group(names.group)
        until(lambda: not member.poll() and bool(member.lost), 60.0)
        member.owns(1)
        publish(engine, [message(1)])
        member.receives(1)
        member.consumer.close()
        assert names.group in [info.group for info in engine.groups()]
    finally:
        engine.close()


@pytest.mark.usefixtures("own_names")
def test_a_group_is_forgotten_on_one_of_its_topics(tmp_path: Path) -> None:
    engine = SqliteEngine(f"sqlite:///{tmp_path}/log.db")
    other = f"{names.topic}-2"
    try:
        for topic in (names.topic, other):
            engine.ensure_topic(TopicSpec(name=topic))
        consumer = engine.consumer(ConsumerGroup(group=names.group, topics=(names.topic, other)))
        with pytest.raises(Refused):
            engine.forget_group(names.group, [other])
        consumer.close()
        engine.forget_group(names.group, [other])
        with pytest.raises(ContractError, match=names.topic):
            engine.forget_group(names.group, [other])
        assert engine.forget_group(names.group) == {names.topic: 0}
        engine.ensure_topic(TopicSpec(name="jobs", form="queue"))
        engine.consumer(ConsumerGroup(group=names.group, topics=("jobs",))).close()
        with pytest.raises(ContractError, match="a queue"):
            engine.forget_group(names.group)
    finally:
        engine.close()


@pytest.mark.usefixtures("own_names")
def test_what_keeps_nothing_for_a_group_on_rabbitmq() -> None:
    engine = RabbitEngine(rabbitmq.url())
    try:
        with pytest.raises(ContractError, match="--topic"):
            engine.forget_group(names.group)
        engine.ensure_topic(TopicSpec(name=names.topic, form="queue"))
        with pytest.raises(ContractError, match="a queue"):
            engine.forget_group(names.group, [names.topic])
        engine.ensure_topic(TopicSpec(name=f"{names.topic}-h", form="notification"))
        with pytest.raises(Unsupported, match="notification"):
            engine.forget_group(names.group, [f"{names.topic}-h"])
    finally:
        engine.close()
