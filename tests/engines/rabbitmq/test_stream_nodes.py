"""Logs on nodes that are killed and come back, alone and in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from yard import LOG, Yard, polled

from settled.engine import ProducerSpec, TopicSpec
from settled.engines.rabbitmq import RabbitEngine
from settled.store import Selection
from settled.testing.engine_tools import DEADLINE_S, Member, message, names, topic_of
from settled.testing.rabbitmq import Nodes
from waiting import until

pytestmark = [pytest.mark.xdist_group("rabbitmq-nodes"), pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def own_names() -> Iterator[None]:
    names.fresh()
    yield
    names.plain()


def test_a_log_goes_on_where_it_was_after_its_node_was_killed(tmp_path: Path, node: Nodes) -> None:
    """The process of the node, not its machine: what the system was given is not lost with it."""
    yard = Yard(tmp_path, node.url, sections=LOG)
    try:
        app = yard.app()
        first, second = ([f"{part}{n}" for n in range(300)] for part in "ab")
        yard.publish(first)
        with yard.working(app):
            yard.settles(first)
            node.stop()  # a stream made in the seconds before a kill may not come back
            node.wait_ready()
            node.kill()
            node.wait_ready()
            yard.publish(second)
            yard.settles([*first, *second])
        engine = RabbitEngine(node.url)
        parts = engine.topics([yard.topic])[0].partitions
        assert sum(len(engine.read(yard.topic, part.partition, 0, records=1000)) for part in parts) == 600
        engine.close()
        assert app.store.quarantine.select(Selection()) == []
    finally:
        yard.close()


def test_a_log_outlives_a_node_of_its_cluster(tmp_path: Path, cluster: Nodes) -> None:
    """Each node in turn dies under a producer and two workers. What was stored before it died is there after it, and
    all that is there is worked on; what the broker confirms while a leader is missing may not be (decision 040)."""
    yard = Yard(tmp_path, cluster.url, sections=LOG)
    try:
        engine = RabbitEngine(cluster.url)
        apps = [yard.app(), yard.app()]
        assert apps[0].engine.topics([yard.topic])
        cluster.remember()
        producer = engine.producer(ProducerSpec(durability="memory"))
        count = 0

        def send() -> set[str]:
            nonlocal count
            sent = []
            for _ in range(100):
                sent.append(producer.send(message(count, topic=yard.topic)))
                count += 1
            return {each.result(2 * DEADLINE_S).id for each in sent}

        def stored() -> set[str]:
            parts = engine.topics([yard.topic])[0].partitions
            return {one.id for part in parts for one in engine.read(yard.topic, part.partition, 0, records=10_000)}

        with yard.working(apps[0]), yard.working(apps[1]):
            for number in cluster.ports:
                before = send()
                cluster.kill(number)
                send()
                cluster.wait_ready()
                until(lambda: before <= stored(), 60.0)  # noqa: B023
            until(lambda: len(yard.ids()) >= len(stored()), 90.0)
        assert sorted(yard.ids()) == sorted(stored())
        producer.close()
        engine.close()
    finally:
        yard.close()


def test_the_broker_of_a_member_goes(cluster: Nodes) -> None:
    """Its locks are gone with the node; it joins again elsewhere, under new epochs."""
    engine = RabbitEngine(cluster.url)
    engine.ensure_topic(TopicSpec(name=names.topic, partitions=3))
    member = Member(engine, lease_s=2.0)
    until(lambda: polled(member) and len(member.owned) == 3)
    cluster.kill(1)
    until(lambda: polled(member) and len(set(member.lost)) == 3)
    until(lambda: polled(member) and len(member.owned) == 3)
    assert {place: one.epoch - member.lost.count(place) for place, one in member.owned.items()} == dict.fromkeys(
        member.owned, 1
    )
    cluster.wait_ready()
    assert len(topic_of(engine).partitions) == 3
    engine.close()
