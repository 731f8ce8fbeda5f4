"""What people are told of queues, subscriptions and notifications, and of the groups that work on them: what AMQP says,
and what this process knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from settled.engine import Examined, GroupInfo, MemberInfo, Partition, PartitionInfo, QueueInfo, TopicInfo, TopicSpec
from settled.engines.rabbitmq.consumer import RabbitConsumer
from settled.engines.rabbitmq.handoff import Slot
from settled.engines.rabbitmq.topology import Source, There, Topology


def topic(name: str, there: There, told: TopicSpec | None, held: Mapping[int, Slot], identity: str) -> TopicInfo:
    """`told`: as this process was told; `held`: the slots that its members hold, by number."""
    if told is None or told.form != there.form:
        told = TopicSpec(name=name, form=there.form)
    hints = there.form == "notification"
    slots = [] if hints else [_slot(number, held.get(number)) for number in range(told.partitions)]
    ready = 0 if there.counted is None else there.counted.ready
    claimed = sum(slot.records for slot in slots)
    notes = (
        "nothing is kept: a hint goes to the readers that listen when it comes"
        if hints
        else "claims of other processes are not counted: AMQP does not tell them",
    )
    return TopicInfo(
        spec=told,
        identity=identity,
        partitions=slots,
        notes=notes,
        queue=None if hints else QueueInfo(ready=ready, scheduled=None, claimed=claimed),
    )


def group(topology: Topology, name: str, told: Iterable[TopicSpec], own: Iterable[RabbitConsumer]) -> GroupInfo:
    """Who holds the slots of the topics that this process was told of. `own`: the group's members here; others are
    known by their slot alone."""
    members: dict[Partition, MemberInfo] = {}
    for spec in told:
        queue = f"{spec.name}:{name}" if spec.form == "pubsub" else spec.name
        source = Source(spec.name, queue, spec.partitions, spec.partitions == 1)
        for slot in topology.held(source, name):
            members[spec.name, slot] = _member(f"slot {slot}", (spec.name, slot))
        for consumer in own:
            for held in consumer.claimed(spec.name):
                members[held.place] = _member(consumer.member, held.place)
    return GroupInfo(group=name, members=list(members.values()), committed={}, epochs={})


def dead(topology: Topology, name: str) -> Examined:
    """What the broker gave up to deliver of a queue."""
    count = topology.dead(name)
    if not count:
        return Examined(name="dead messages", state="ok", told="none")
    return Examined(
        name="dead messages",
        state="bad",
        told=f"{count:,} in {name}:dead: handed out {topology.settings.delivery_limit} times without an end",
        remedy=f"find out why members end, then move them back: rabbitmqadmin get queue={name}:dead",
    )


def _slot(number: int, held: Slot | None) -> PartitionInfo:
    claims = len(held.unended) if held is not None else 0
    end = held.next if held is not None and claims else 0
    return PartitionInfo(
        partition=number,
        begin=end - claims,
        end=end,
        records=claims,
        bytes=None,
        stored_bytes=None,
        exact=False,
    )


def _member(name: str, place: Partition) -> MemberInfo:
    return MemberInfo(member=name, host="", pid=None, partitions=[place], lease_left_s=None)
