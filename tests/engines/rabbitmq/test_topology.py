"""Queues and exchanges as the broker has them: what is refused, what is told, and that nothing is changed by asking."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker import channel, delete, put

from settled.engine import ConsumerGroup, Engine, ProducerSpec, TopicSpec
from settled.engines.rabbitmq import RabbitEngine
from settled.errors import ContractError, Unavailable, Unsupported
from settled.testing import rabbitmq
from settled.testing.engine_tools import eventually, message, names, publish
from settled.testing.queue_tools import QueueMember, make_queue, ready

pytestmark = pytest.mark.xdist_group("rabbitmq")

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
def engine() -> Iterator[RabbitEngine]:
    names.fresh()
    opened = RabbitEngine(rabbitmq.url())
    yield opened
    opened.close()
    names.plain()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "x-dead-letter-exchange"),
        (QUORUM, "x-dead-letter-exchange"),
        ({**QUORUM, "x-delivery-limit": 5}, "x-dead-letter-exchange"),  # it would drop what it gives up
        ({**QUORUM, "x-dead-letter-exchange": "elsewhere"}, "elsewhere"),
    ],
)
def test_a_queue_with_other_arguments_is_refused_and_left_alone(
    engine: Engine, arguments: dict[str, object], named: str
) -> None:
    with channel() as opened:
        opened.queue_declare(names.topic, durable=True, arguments=arguments)
    put(names.topic, b"kept")
    with pytest.raises(ContractError, match=named):
        make_queue(engine)
    with channel() as opened:
        assert opened.queue_declare(names.topic, durable=True, arguments=arguments).method.message_count == 1


def test_another_delivery_limit_is_refused(engine: Engine) -> None:
    make_queue(engine)
    other = RabbitEngine(f"{rabbitmq.url()}?delivery_limit=50")
    try:
        with pytest.raises(ContractError, match="x-delivery-limit"):
            make_queue(other)
    finally:
        other.close()


def test_looking_at_a_topic_makes_nothing(engine: Engine) -> None:
    spec = TopicSpec(name=names.topic, form="queue", partitions=3)
    engine.examine(spec)
    assert engine.topics([names.topic]) == []
    make_queue(engine, 3)
    other = RabbitEngine(rabbitmq.url())  # it was told nothing
    try:
        other.examine(spec)
        assert [info.spec for info in other.topics()] == [spec]
        with pytest.raises(ContractError, match="x-single-active-consumer"):
            other.examine(TopicSpec(name=names.topic, form="queue", partitions=1))
    finally:
        other.close()


def test_a_queue_for_order_is_another_one(engine: Engine) -> None:
    make_queue(engine, 1)
    with pytest.raises(ContractError, match="x-single-active-consumer"):
        make_queue(engine, 2)
    other = RabbitEngine(rabbitmq.url())  # it was told nothing, and finds out
    try:
        QueueMember(other, ordered=True).leave()
    finally:
        other.close()


def test_order_needs_one_slot(engine: Engine) -> None:
    make_queue(engine, 2)
    other = RabbitEngine(rabbitmq.url())
    try:
        for each in (engine, other):
            with pytest.raises(ContractError, match=r"ordering: none"):
                QueueMember(each, ordered=True)
    finally:
        other.close()


def test_what_is_given_up_goes_to_the_dead_queue_and_is_shown() -> None:
    names.fresh()
    engine = RabbitEngine(f"{rabbitmq.url()}?delivery_limit=20")
    spec = TopicSpec(name=names.topic, form="queue", partitions=2)
    try:
        make_queue(engine, 2)
        assert [each.told for each in engine.examine(spec)][1:] == ["none"]
        publish(engine, [message(1)])
        with channel() as opened:
            for _ in range(21):
                method, _, _ = opened.basic_get(names.topic)
                assert method is not None
                opened.basic_nack(method.delivery_tag)
        eventually(lambda: engine.examine(spec)[-1].state == "bad", "it was moved")
        assert f"1 in {names.topic}:dead" in engine.examine(spec)[-1].told
        assert ready(engine) == 0
    finally:
        engine.close()
        names.plain()


def test_groups_of_pubsub_get_all_of_it_each(engine: Engine) -> None:
    """From when each subscribed, although nobody reads."""
    engine.ensure_topic(TopicSpec(name=names.topic, form="pubsub", partitions=4))
    first = QueueMember(engine, group=f"{names.group}-1")
    first.until(lambda: bool(first.owned), "it owns a slot")
    first.leave()
    publish(engine, [message(n) for n in range(10)])
    second = QueueMember(engine, group=f"{names.group}-2")
    publish(engine, [message(n) for n in range(10, 20)])
    assert sorted(record.id for record in second.receives(10)) == sorted(f"e{n}" for n in range(10, 20))
    second.leave(settled=True)
    again = QueueMember(engine, group=f"{names.group}-1")
    assert sorted(record.id for record in again.receives(20)) == sorted(f"e{n}" for n in range(20))
    again.leave()


def test_publishing_to_nobody_fails(engine: Engine) -> None:
    engine.ensure_topic(TopicSpec(name=names.topic, form="pubsub"))
    with pytest.raises(ContractError, match="unroutable"):
        publish(engine, [message(1)])


def test_one_subscription_for_order(engine: Engine) -> None:
    engine.ensure_topic(TopicSpec(name=names.topic, form="pubsub", partitions=1))
    member = QueueMember(engine, ordered=True)
    publish(engine, [message(n, key=b"k") for n in range(30)])
    member.receives(30)
    assert member.ids == [f"e{n}" for n in range(30)]
    member.leave()
    engine.ensure_topic(TopicSpec(name=f"{names.topic}-2", form="pubsub", partitions=2))
    with pytest.raises(ContractError, match="order"):
        engine.consumer(ConsumerGroup(group=names.group, topics=(f"{names.topic}-2",)))


@pytest.mark.parametrize(("there", "wanted"), [("queue", "pubsub"), ("pubsub", "queue")])
def test_a_topic_of_another_form_is_refused(engine: Engine, there: str, wanted: str) -> None:
    engine.ensure_topic(TopicSpec(name=names.topic, form=there))  # type: ignore[arg-type]
    with pytest.raises(ContractError, match=f"is a {there}, not a {wanted}"):
        engine.ensure_topic(TopicSpec(name=names.topic, form=wanted))  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"compact": True}, {"retention_bytes": 1000}])
def test_what_a_queue_cannot_keep_is_refused(engine: Engine, fields: dict[str, int]) -> None:
    with pytest.raises(Unsupported):
        engine.ensure_topic(TopicSpec(name=names.topic, form="queue", **fields))  # type: ignore[arg-type]


def test_committed_needs_three_nodes(engine: Engine) -> None:
    with pytest.raises(Unsupported, match="quorum"):
        engine.producer(ProducerSpec(durability="committed"))
    assert [each.state for each in engine.examine(durability="committed")] == ["ok", "bad"]
    assert [each.state for each in engine.examine(durability="local")] == ["ok"]


def test_what_cannot_be_told_is_refused(engine: Engine) -> None:
    make_queue(engine)
    for call in (
        lambda: engine.read(names.topic, 0, 0),
        lambda: engine.offset_at(names.topic, 0, 0),
        lambda: engine.grow_topic(names.topic, 9),
        lambda: engine.producer(ProducerSpec()).resume_point(),
    ):
        with pytest.raises(Unsupported):
            call()
    with pytest.raises(ContractError, match="a queue"):
        engine.tail(names.topic)
    assert engine.maintain() == engine.maintain(force=True) == {}


def test_slots_are_told_by_their_members(engine: Engine) -> None:
    make_queue(engine)
    other = RabbitEngine(rabbitmq.url())
    try:
        member = QueueMember(other)
        member.until(lambda: bool(member.owned), "it owns a slot")
        (info,) = engine.groups(names.group)
        assert [each.partitions for each in info.members] == [[(names.topic, 0)]]
        mine = QueueMember(engine)
        mine.until(lambda: bool(mine.owned), "it owns a slot")
        publish(engine, [message(n) for n in range(10)])
        mine.receives(1)
        (info,) = engine.groups(names.group)
        assert sorted(each.partitions for each in info.members) == [[(names.topic, 0)], [(names.topic, 1)]]
        (topic,) = engine.topics()
        assert topic.queue is not None
        assert topic.queue.claimed == topic.partitions[1].records >= 1
        mine.leave()
        member.leave()
    finally:
        other.close()
    eventually(lambda: engine.groups(names.group) == [], "nobody is there")


def test_a_queue_that_is_deleted_under_its_members(engine: Engine) -> None:
    """They are told, say why nothing comes, and go on when it is back."""
    make_queue(engine)
    publish(engine, [message(1)])
    member = QueueMember(engine)
    member.receives(1)
    delete(names.topic)
    member.until(lambda: bool(member.lost), "told of the loss")
    with pytest.raises(Unavailable):
        member.until(lambda: False, "it says why nothing comes")
    make_queue(engine)
    publish(engine, [message(2)])

    def polled() -> bool:
        try:
            member.poll(0.1)
        except Unavailable:
            return False
        return "e2" in member.ids

    eventually(polled, "it goes on")
    member.leave()


def test_names_that_are_the_brokers_or_too_long(engine: Engine) -> None:
    with pytest.raises(ContractError, match="broker"):
        engine.ensure_topic(TopicSpec(name="amq.orders", form="queue"))
    name = f"{names.topic}-{'n' * 150}"
    engine.ensure_topic(TopicSpec(name=name, form="queue", partitions=2))
    with pytest.raises(ContractError, match="too long"):
        engine.consumer(ConsumerGroup(group="g" * 100, topics=(name,), ordered=False))


def test_similar_names_share_nothing(engine: Engine) -> None:
    """`a.b` with group `c`, and `a` with group `b.c`."""
    members = []
    for topic, group in ((f"{names.topic}.b", "c"), (names.topic, "b.c")):
        engine.ensure_topic(TopicSpec(name=topic, form="queue", partitions=2))
        consumer = engine.consumer(ConsumerGroup(group=group, topics=(topic,), ordered=False))
        news = consumer.poll(30.0, records=1, bytes=1)
        members.append((news[0].topic, news[0].partition))
        assert len(news) == 1
    assert members == [(f"{names.topic}.b", 0), (names.topic, 0)]
