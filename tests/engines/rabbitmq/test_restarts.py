"""Nodes that are killed and come back, alone and in a cluster, under a worker and a producer."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from yard import Yard, insert

from settled.drills.campaign_rabbitmq import changed
from settled.drills.drill import Drill, run
from settled.drills.proxy import Proxy
from settled.drills.rabbitmq import OWN
from settled.engine import Producer, ProducerSpec
from settled.engines.rabbitmq import RabbitEngine
from settled.errors import Unavailable
from settled.record import Record
from settled.store import Selection, Tx
from settled.testing import rabbitmq
from settled.testing.engine_tools import DEADLINE_S, message, names
from settled.testing.queue_tools import QueueMember, make_queue
from settled.testing.rabbitmq import Nodes
from waiting import until

pytestmark = [pytest.mark.xdist_group("rabbitmq-nodes"), pytest.mark.timeout(300)]


AGAIN_S = 10.0  # after its return, by when the broker's messages come again


def test_an_alarm_holds_senders_up(node: Nodes) -> None:
    """The broker takes nothing more: what is on its way waits, and fails in the end; later it goes on."""
    names.fresh()
    engine = RabbitEngine(f"{node.url}?publish_timeout=2")
    try:
        make_queue(engine, 2)
        producer = engine.producer(ProducerSpec(buffer_bytes=20_000))
        producer.send(message(0)).result(DEADLINE_S)
        node.ctl("set_vm_memory_high_watermark", "0.0000001")
        pending = producer.send(message(1))
        with pytest.raises(Unavailable, match="alarm"):
            pending.result(DEADLINE_S)
        node.ctl("set_vm_memory_high_watermark", "absolute", "2GB")
        with pytest.raises(Unavailable, match="1 messages"):
            producer.flush()
        until(lambda: _sends(producer), DEADLINE_S)
        producer.close()
    finally:
        engine.close()
        names.plain()


def _sends(producer: Producer) -> bool:
    try:
        producer.send(message(2)).result(DEADLINE_S)
    except Unavailable:
        return False
    return True


def test_a_consumer_is_not_deaf_after_a_restart(tmp_path: Path, node: Nodes) -> None:
    """B046: connections are cut under running handlers, then the broker is killed and started again."""
    proxy = Proxy((rabbitmq.HOST, node.ports[1]), random.Random(1))
    yard = Yard(tmp_path, node.url)
    first, go = threading.Event(), threading.Event()

    def slow(tx: Tx, record: Record) -> None:
        if int(record.id[1:]) < 5:
            first.set()
            assert go.wait(60.0)
        insert(tx, record)

    app = yard.app(slow, engine=f"rabbitmq://guest:guest@127.0.0.1:{proxy.port}/")
    ids = [f"e{n}" for n in range(45)]
    try:
        yard.publish(ids[:5])
        with yard.working(app):
            assert first.wait(60.0)
            proxy.shut()  # not the broker
            proxy.reopen()
            yard.publish(ids[5:25])
            go.set()
            yard.settles(ids[:25])
            node.stop()
            until(lambda: "not consuming" in _says(yard), 60.0)
            node.wait_ready()
            back = time.monotonic()
            yard.publish(ids[25:])
            until(lambda: len(yard.ids()) > 25, 60.0)
            assert time.monotonic() - back < AGAIN_S
            yard.settles(ids)
            until(lambda: "not consuming" not in _says(yard), 60.0)
        (info,) = app.engine.topics([yard.topic])
        assert info.queue is not None
        assert info.queue.ready == 0
        assert app.store.quarantine.select(Selection()) == []
    finally:
        go.set()
        proxy.close()
        yard.close()


def _says(yard: Yard) -> str:
    (report,) = yard.app(None).store.reports("g")
    return f"{report.state}: {report.why}"


def test_leaders_of_a_queue_die_under_load(cluster: Nodes, tmp_path: Path) -> None:
    changes = changed("queue", "key")
    report = run(
        Drill(
            named=("leader-kill",),
            kills=1,
            engine=OWN,
            nodes=cluster,
            folder=tmp_path,
            changes=changes,
            yes=True,
            seed=3,
        )
    )
    (row,) = report.windows
    assert not row.violations
    assert row.kills == 1


def test_a_cluster_loses_a_node_and_nothing_else(cluster: Nodes) -> None:
    """Quorum over three: 20 messages before and 20 after the node that led the queue is killed, with its clients."""
    names.fresh()
    engine = RabbitEngine(cluster.url)
    try:
        assert "committed" in engine.capabilities.durability
        make_queue(engine, 1)  # at the first address, which so leads it
        assert [each.state for each in engine.examine(durability="committed")] == ["ok", "ok"]
        producer = engine.producer(ProducerSpec(durability="committed"))
        member = QueueMember(engine, ordered=True)
        for number in range(20):
            producer.send(message(number))
        _receives(member, 1)
        cluster.kill(1)
        for number in range(20, 40):
            producer.send(message(number))
        producer.close()
        _receives(member, 40)
        assert set(member.ids) == {f"e{n}" for n in range(40)}
        member.leave()
        other = RabbitEngine(cluster.url)
        assert [each.state for each in other.examine(durability="committed")] == ["note", "ok"]
        other.close()
    finally:
        engine.close()
        names.plain()


def _receives(member: QueueMember, count: int) -> None:
    """All of them, some of them again after a connection was lost; settled as they come."""

    def look() -> bool:
        try:
            member.poll(0.1)
        except Unavailable:
            return False
        member.settle()
        return len(set(member.ids)) >= count

    until(look, 2 * DEADLINE_S)
