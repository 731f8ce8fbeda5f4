"""Forgetting a group: the queue of its subscription goes. Nothing but that queue waits for a group here."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from settled.engine import TopicSpec
from settled.engines.rabbitmq import faults
from settled.engines.rabbitmq.topology import SLOTS, Source, Topology
from settled.errors import ContractError, Unsupported
from settled.forgetting import holds_records, no_group, no_queue_of_a_group, still_at_work


def forget(
    topology: Topology, group: str, topics: Collection[str] | None, told: Iterable[TopicSpec], *, force: bool
) -> dict[str, int]:
    """As `Forgetting.forget_group`. `told`: the topics that this process was told of, for it cannot ask."""
    chosen = {spec.name for spec in told if spec.form == "pubsub"} if topics is None else set(topics)
    if not chosen:
        raise ContractError(
            "AMQP does not tell which topics a group has subscribed to", field="topic", hint="name them: --topic TOPIC"
        )
    queues = {name: _checked(topology, group, name, force) for name in sorted(chosen)}
    return {name: _delete(topology, name, queue) for name, queue in queues.items()}


def _checked(topology: Topology, group: str, topic: str, force: bool) -> str:
    """The queue, if it may go."""
    _require_subscriptions(topology, topic)
    queue = f"{topic}:{group}"
    _, counted = topology.counted(queue)
    if counted is None:
        raise no_group(group, topic, ())
    slots = topology.held(Source(topic, queue, SLOTS, single=False, pubsub=True), group)
    if slots or counted.consumers:
        raise still_at_work(group, topic, [f"slot {slot}" for slot in slots] or ["one of another program"])
    if counted.ready and not force:
        raise holds_records(group, topic, counted.ready)
    return queue


def _require_subscriptions(topology: Topology, topic: str) -> None:
    there = topology.there(topic)
    if there is None:
        raise faults.absent(topic)
    if there.form == "queue":
        raise no_queue_of_a_group(topic)
    if there.form != "pubsub":
        raise Unsupported(
            f"topic {topic!r} is a {there.form}: nothing waits for a group of it on RabbitMQ",
            field="topic",
            value=topic,
            hint="there is nothing to forget",
        )


def _delete(topology: Topology, topic: str, queue: str) -> int:
    """How many records went: those that came since it was looked at, too. What the broker gave up to deliver stays."""
    found: list[int] = []
    with topology.channels(f"forgetting {queue!r}", topic) as channels:
        channels(lambda channel: found.append(channel.queue_delete(queue).method.message_count))
    return found[0]
