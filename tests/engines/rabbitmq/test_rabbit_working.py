"""Workers over a queue on RabbitMQ: the effect is made once, whatever is handed out twice."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest
from yard import Yard, insert

from settled.drills.proxy import Proxy
from settled.operations.progress import is_drained
from settled.outcome import Outcome
from settled.record import Message, Record
from settled.store import Selection, Tx
from settled.testing import rabbitmq
from settled.testing.postgres import database
from waiting import until

pytestmark = pytest.mark.xdist_group("rabbitmq")

REPLACED = 15  # times that a killed worker is replaced, at most


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    found = Yard(tmp_path, rabbitmq.url())
    yield found
    found.close()


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_drain_settles_all_of_it(tmp_path: Path, store: str) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(database()) if store == "postgresql" else ""
        yard = Yard(tmp_path, rabbitmq.url(), url)
        stack.callback(yard.close)
        ids = [f"e{n}" for n in range(1000)]
        yard.publish([*ids, *ids[:100]])  # some twice, as after a lost answer
        app = yard.app()
        app.run(drain=True)
        assert sorted(yard.ids()) == sorted(ids)
        assert app.store.tally("g") == {Outcome.APPLIED: 1000}
        until(lambda: app.engine.topics([yard.topic])[0].queue.ready == 0)  # type: ignore[union-attr]


def test_a_worker_that_dies_before_the_broker_is_told(yard: Yard) -> None:
    """What it settled comes again, and is known."""
    ids = [f"e{n}" for n in range(300)]
    yard.publish(ids)
    with yard.process("dies_committed") as process:
        assert process.wait(60.0) == 137
    before = yard.ids()
    assert 0 < len(before) <= 300
    app = yard.app()
    app.run(drain=True)
    assert sorted(yard.ids()) == sorted(ids)
    assert yard.ids()[: len(before)] == before


def test_workers_share_a_queue(yard: Yard) -> None:
    ids = [f"e{n}" for n in range(400)]
    with yard.working(yard.app(delivery={"in_flight": {"records": 20}})), yard.process("plain") as process:
        until(lambda: _running(yard) == 2, 60.0)
        yard.publish(ids)
        yard.settles(ids)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30.0) == 0


@pytest.mark.timeout(300)
def test_a_record_that_kills_its_worker_is_found(yard: Yard) -> None:
    """B023: three starts, the others settle, then it is in quarantine and the worker lives."""
    good = [f"g{n}" for n in range(20)]
    yard.publish(good[:10])
    yard.publish(["boom"], key=b"a")
    yard.publish([*good[10:], "a1", "a2"])
    app = yard.app(None)
    shelf = app.store.quarantine
    for _ in range(REPLACED):
        with yard.process("boom") as process:
            until(lambda: process.poll() is not None or shelf.select(Selection()), 60.0)
            if process.poll() is None:
                yard.settles([*good, "a1", "a2"])
                process.send_signal(signal.SIGTERM)
                assert process.wait(30.0) == 0
                break
            assert process.returncode == 137
    (entry,) = shelf.entries(shelf.select(Selection()))
    assert yard.note("booms") == ["boom"] * 3
    assert (entry.record.id, entry.failure.kind.value, entry.attempts.count) == ("boom", "worker-lost", 3)
    assert sorted(yard.ids()) == sorted([*good, "a1", "a2"])


@pytest.mark.timeout(300)
def test_attempts_go_with_a_record_from_worker_to_worker(yard: Yard) -> None:
    """Under another slot and another number they are still known: four runs are four, whoever makes them."""
    yard.publish(["e1"])
    waits = {"attempts": {"defect": 4}, "backoff": {"first": "5s", "most": "5s"}, "owner": "tests"}
    app = yard.app(None)
    shelf = app.store.quarantine
    for runs in range(1, 5):
        with yard.process("fails", poison=waits) as process:
            until(lambda: len(yard.note("starts")) >= runs, 60.0)  # noqa: B023
            until(lambda: _charged(yard) >= runs or shelf.select(Selection()), 60.0)  # noqa: B023
            process.send_signal(signal.SIGKILL)
            process.wait(30.0)
    (entry,) = shelf.entries(shelf.select(Selection()))
    assert (entry.failure.kind.value, entry.attempts.count) == ("defect", 4)
    assert yard.note("starts") == ["e1"] * 4


def _running(yard: Yard) -> int:
    return sum(each.state == "running" for each in yard.app(None).store.reports("g"))


def _charged(yard: Yard) -> int:
    store = yard.app(None).store
    return max((each.count for slot in range(4) for _, each in store.attempts("g", yard.topic, slot)), default=0)


@pytest.mark.timeout(300)
def test_a_worker_that_was_stopped_makes_no_second_effect(tmp_path: Path) -> None:
    """B019: it inserted its row and stood still; another one claimed the record and ended it."""
    with ExitStack() as stack:
        yard = Yard(tmp_path, rabbitmq.url(), stack.enter_context(database()))
        stack.callback(yard.close)
        yard.publish(["e1"])
        with yard.process("stuck") as stalled:
            until(lambda: yard.note("starts") == ["e1"], 60.0)
            stalled.send_signal(signal.SIGSTOP)
            with yard.working(yard.app()):
                yard.settles(["e1"])
                (yard.folder / "go").touch()
                stalled.send_signal(signal.SIGCONT)
                yard.publish(["e2", "e3"])
                yard.settles(["e1", "e2", "e3"])
            yard.publish(["e4"])  # it carries on with other work
            yard.settles(["e1", "e2", "e3", "e4"])
            stalled.send_signal(signal.SIGTERM)
            assert stalled.wait(60.0) == 0
        assert sorted(yard.ids()) == ["e1", "e2", "e3", "e4"]


def test_each_subscription_gets_all_of_it(yard: Yard) -> None:
    """Pub/sub: two groups, one of which was away while it was published."""
    transport = {"form": "pubsub", "partitions": 2}
    seen: dict[str, list[str]] = {"g": [], "h": []}
    apps = {}
    for group, ids in seen.items():
        apps[group] = yard.app(lambda tx, record, ids=ids: ids.append(record.id), transport=transport, group=group)
        with yard.working(apps[group]):
            until(lambda group=group: bool(apps[group].engine.groups(group)))  # type: ignore[misc]
    producer = apps["g"].producer()
    wanted = [f"e{n}" for n in range(50)]
    for each in wanted:
        producer.send(Message(topic=yard.topic, id=each))
    producer.close()
    with yard.working(apps["g"]):
        until(lambda: len(seen["g"]) == 50)
    assert seen["h"] == []
    with yard.working(apps["h"]):
        until(lambda: len(seen["h"]) == 50)
    assert sorted(seen["g"]) == sorted(seen["h"]) == sorted(wanted)


def test_a_drain_ends_when_nothing_of_the_subscription_is_left(yard: Yard) -> None:
    """Whose messages are counted is known by the groups that joined in this process."""
    transport = {"form": "pubsub", "partitions": 2}
    app = yard.app(transport=transport, delivery={"in_flight": {"records": 4}})
    other = yard.app(transport=transport, group="h")
    for each in (app, other):
        with yard.working(each):
            until(lambda each=each: bool(each.engine.groups()))  # type: ignore[misc]
    ids = [f"e{n}" for n in range(500)]
    producer = app.producer()
    for each_id in ids:
        producer.send(Message(topic=yard.topic, id=each_id))
    producer.close()
    app.worker().run(drained=is_drained(app.engine, app.store, app.contract))
    assert sorted(yard.ids()) == sorted(ids)


def test_a_lost_connection_is_no_failure(yard: Yard) -> None:
    """The same member gets its claims again, and suspects none of them."""
    node = pika.URLParameters(rabbitmq.url().replace("rabbitmq://", "amqp://").split(",")[0].rstrip("/") + "/%2F")
    proxy = Proxy((node.host, node.port), random.Random(1))
    starts: list[str] = []
    go = [False]

    def slow(tx: Tx, record: Record) -> None:
        starts.append(record.id)
        until(lambda: go[0])
        insert(tx, record)

    app = yard.app(slow, engine=f"rabbitmq://guest:guest@127.0.0.1:{proxy.port}/")
    ids = [f"e{n}" for n in range(5)]
    try:
        yard.publish(ids)
        with yard.working(app):
            until(lambda: bool(starts))
            proxy.shut()
            proxy.reopen()
            go[0] = True
            yard.settles(ids)
        assert app.store.quarantine.select(Selection()) == []
        assert [slot for slot in range(4) if app.store.attempts("g", yard.topic, slot)] == []
    finally:
        proxy.close()
        app.close()
