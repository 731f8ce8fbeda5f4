"""The engine on RabbitMQ. The URL names nodes and a virtual host, `rabbitmq://user:password@host:port,host:port/vhost`.

AMQP tells a queue's ready messages and consumers, and no more: what else people may want to see is not made up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection

import msgspec

from settled.engine import (
    Capabilities,
    ConsumerGroup,
    Durability,
    Examined,
    GroupInfo,
    MemberInfo,
    Partition,
    PartitionInfo,
    ProducerSpec,
    QueueInfo,
    TopicInfo,
    TopicSpec,
)
from settled.engines.rabbitmq import faults, settings
from settled.engines.rabbitmq.consumer import RabbitConsumer
from settled.engines.rabbitmq.producer import FRESH_S, RabbitProducer
from settled.engines.rabbitmq.sending import Route
from settled.engines.rabbitmq.tail import RabbitTail
from settled.engines.rabbitmq.topology import MAX_MESSAGE_BYTES, Source, There, Topology, exchange_of
from settled.errors import ContractError, Refused, SettledError, Unsupported
from settled.record import Record, checked_name, checked_text

log = logging.getLogger("settled.engines.rabbitmq")

QUORUM = 3  # nodes
Member = RabbitConsumer | RabbitProducer | RabbitTail


class RabbitEngine:
    """Any thread may call it. It belongs to the process that made it: after a fork, make another."""

    name = "rabbitmq"
    capabilities = Capabilities(
        durability=frozenset({"memory", "local"}),
        forms=frozenset({"queue", "pubsub", "notification"}),
        tails=True,
        counts_passed=False,
        renumbers=True,
        max_message_bytes=MAX_MESSAGE_BYTES,
    )

    def __init__(self, url: str) -> None:
        """Raises Unavailable in bounded time, naming the nodes that were asked; ContractError for a bad setting or
        login; Unsupported for a broker without quorum queues."""
        self.url = url
        self._settings = settings.parse(url)
        self._topology = Topology(self._settings)
        if len(self._settings.addresses) >= QUORUM:
            durability: frozenset[Durability] = frozenset({"memory", "local", "committed"})
            self.capabilities = msgspec.structs.replace(type(self).capabilities, durability=durability)
        self._lock = threading.Lock()
        self._producers: set[RabbitProducer] = set()
        self._consumers: set[RabbitConsumer] = set()
        self._tails: set[RabbitTail] = set()
        self._told: dict[str, TopicSpec] = {}  # what this process was told of topics: the broker keeps no such facts
        self._closed = False
        self._topology.connect()

    def __repr__(self) -> str:
        return f"RabbitEngine({self._settings.shown!r})"

    def ensure_topic(self, spec: TopicSpec) -> TopicInfo:
        """A topic that is there with other arguments is refused with the broker's words, and nothing is changed."""
        self._open().ensure(spec)
        with self._lock:
            self._told[spec.name] = spec
        return self.topics([spec.name])[0]

    def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        raise Unsupported(
            "slots on RabbitMQ are not kept by the broker",
            field="partitions",
            value=partitions,
            hint="state the new number in the contract; from one slot to several, or back, make another queue",
        )

    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        """Those of the named ones that are there. AMQP lists no queues: without names, those that this process was told
        of."""
        wanted = sorted(self._told if names is None else names)
        found = ((name, self._open().there(name)) for name in wanted)
        return [self._info(name, there) for name, there in found if there is not None]

    def groups(self, group: str | None = None) -> list[GroupInfo]:
        """The group named, or those that joined here: who holds the slots of the topics that this process was told of.
        Members of other processes are known by their slot alone."""
        self._open()
        with self._lock:
            joined = {consumer.group for consumer in self._consumers}
            told = list(self._told.values())
        names = sorted(joined) if group is None else [group]
        found = (self._group(name, told) for name in names)
        return [info for info in found if info.members or info.group in joined]

    def offset_at(self, topic: str, partition: int, us: int) -> int:
        raise _no_history()

    def read(self, topic: str, partition: int, offset: int, *, records: int = 100) -> list[Record]:
        raise _no_history()

    def producer(self, spec: ProducerSpec) -> RabbitProducer:
        """Raises Unsupported for `committed` unless the URL names three nodes, most answer, and all say the same name.
        How many copies a queue has is not told by AMQP: `rabbitmq-queues quorum_status` does."""
        self._open()
        if spec.identity is not None:
            checked_text("identity", spec.identity)
        if spec.durability == "committed":
            self._require_cluster()
        producer = RabbitProducer(spec, self._settings, self._route, self._forget)
        with self._lock:
            self._producers.add(producer)
        return producer

    def consumer(self, group: ConsumerGroup) -> RabbitConsumer:
        """Of pub/sub, the group's durable subscription is made. Raises ContractError where the group wants order and
        the topic has several slots."""
        checked_name("group", group.group)
        if not group.topics or group.lease_s <= 0:
            raise ContractError(
                "a group needs at least one topic and a lease above 0", field="group", value=group.group
            )
        topology = self._open()
        sources = [self._source(topology, topic, group.group, ordered=group.ordered) for topic in group.topics]
        consumer = RabbitConsumer(group, sources, self._settings, self._identity, self._forget)
        with self._lock:
            self._consumers.add(consumer)
        return consumer

    def tail(self, topic: str, *, after: str | None = None, behind: int = 100_000) -> RabbitTail:
        """What passed since `after` is counted as the producers of then are heard again. The broker holds at most
        `behind` records for it."""
        checked_name("topic", topic)
        there = self._open().there(topic)
        if there is None:
            raise faults.absent(topic)
        exchange = exchange_of(topic, there.form)
        if not exchange:
            raise ContractError(
                f"topic {topic!r} is a {there.form}: nobody reads along",
                field="topic",
                value=topic,
                hint="join its group",
            )
        tail = RabbitTail(
            topic,
            exchange,
            self._identity(topic),
            self._settings,
            after=after,
            behind=behind,
            closed=self._forget,
        )
        with self._lock:
            self._tails.add(tail)
        return tail

    def maintain(self, *, force: bool = False) -> dict[str, int]:
        """Nothing: a record leaves its queue when it is settled."""
        self._open()
        return {}

    def examine(self, spec: TopicSpec | None = None, durability: Durability = "memory") -> list[Examined]:
        """Changes nothing. Raises as `ensure_topic` does for a topic that is there with other arguments."""
        clusters = self._open().connect()
        asked = len(self._settings.addresses)
        told = f"{len(clusters)} of {asked} addresses answer, cluster {', '.join(sorted(set(clusters)))}"
        found = [Examined(name="broker", state="ok" if len(clusters) == asked else "note", told=told)]
        if durability == "committed":
            found.append(self._examine_durability())
        if spec is not None and self._topology.is_there(spec):
            with self._lock:
                self._told.setdefault(spec.name, spec)
            found += self._examine_dead(spec.name) if spec.form == "queue" else []
        return found

    def close(self) -> None:
        """Closes producers (what is buffered is sent), consumers and tails too; what they raise is logged."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            members: list[Member] = [*self._producers, *self._consumers, *self._tails]
        for member in members:
            try:
                member.close()
            except SettledError as error:
                log.error("closing %s: %s", type(member).__name__, error)

    # Steps.

    def _open(self) -> Topology:
        if self._closed:
            raise Refused("this engine is closed", hint="open another one")
        return self._topology

    def _identity(self, topic: str) -> str:
        """A queue has no incarnations: claims are numbered by epochs, which the store remembers."""
        return f"rabbitmq:{self._settings.vhost}:{topic}"

    def _source(self, topology: Topology, topic: str, group: str, *, ordered: bool) -> Source:
        checked_name("topic", topic)
        told = self._told.get(topic)
        return topology.source(topic, group, ordered=ordered, told=None if told is None else told.partitions)

    def _route(self, topic: str) -> Route:
        there = self._open().there(topic)
        if there is None:
            raise faults.absent(topic)
        told = self._told.get(topic)
        limit = (told.max_message_bytes if told is not None else None) or MAX_MESSAGE_BYTES
        until = time.monotonic() + FRESH_S
        exchange = exchange_of(topic, there.form)
        if not exchange:
            return Route("", topic, limit, until, scheduled=True)
        return Route(exchange, "", limit, until, mandatory=there.form != "notification", numbered=True)

    def _info(self, name: str, there: There) -> TopicInfo:
        told = self._told.get(name)
        if told is None or told.form != there.form:
            told = TopicSpec(name=name, form=there.form)
        with self._lock:
            held = {slot.number: slot for each in self._consumers for slot in each.claimed(name)}
        slots = []
        for number in range(told.partitions):
            slot = held.get(number)
            claims = len(slot.unended) if slot is not None else 0
            end = slot.next if slot is not None and claims else 0
            slots.append(
                PartitionInfo(
                    partition=number,
                    begin=end - claims,
                    end=end,
                    records=claims,
                    bytes=None,
                    stored_bytes=None,
                    exact=False,
                )
            )
        ready = 0 if there.counted is None else there.counted.ready
        claimed = sum(slot.records for slot in slots)
        hints = there.form == "notification"
        notes = (
            "nothing is kept: a hint goes to the readers that listen when it comes"
            if hints
            else "claims of other processes are not counted: AMQP does not tell them",
        )
        return TopicInfo(
            spec=told,
            identity=self._identity(name),
            partitions=slots,
            notes=notes,
            queue=None if hints else QueueInfo(ready=ready, scheduled=None, claimed=claimed),
        )

    def _group(self, name: str, told: list[TopicSpec]) -> GroupInfo:
        members: dict[Partition, MemberInfo] = {}
        with self._lock:
            own = [consumer for consumer in self._consumers if consumer.group == name]
        for spec in told:
            queue = f"{spec.name}:{name}" if spec.form == "pubsub" else spec.name
            source = Source(spec.name, queue, spec.partitions, spec.partitions == 1)
            for slot in self._open().held(source, name):
                members[spec.name, slot] = MemberInfo(
                    member=f"slot {slot}", host="", pid=None, partitions=[(spec.name, slot)], lease_left_s=None
                )
            for consumer in own:
                for held in consumer.claimed(spec.name):
                    members[held.place] = MemberInfo(
                        member=consumer.member, host="", pid=None, partitions=[held.place], lease_left_s=None
                    )
        return GroupInfo(group=name, members=list(members.values()), committed={}, epochs={})

    def _examine_durability(self) -> Examined:
        try:
            self._require_cluster()
        except Unsupported as error:
            return Examined(name="durability", state="bad", told=error.message, remedy=error.hint)
        return Examined(name="durability", state="ok", told="a quorum of nodes confirms")

    def _examine_dead(self, name: str) -> list[Examined]:
        dead = self._topology.dead(name)
        if not dead:
            return [Examined(name="dead messages", state="ok", told="none")]
        return [
            Examined(
                name="dead messages",
                state="bad",
                told=f"{dead:,} in {name}:dead: handed out {self._settings.delivery_limit} times without an end",
                remedy=f"find out why members end, then move them back: rabbitmqadmin get queue={name}:dead",
            )
        ]

    def _require_cluster(self) -> None:
        addresses = self._settings.addresses
        clusters = self._topology.connect() if len(addresses) >= QUORUM else []
        if len(clusters) <= len(addresses) // 2 or len(set(clusters)) != 1:
            raise Unsupported(
                f"durability `committed` needs a quorum of at least {QUORUM} nodes of one cluster; the URL names "
                f"{len(addresses)}, of which {len(clusters)} answered",
                field="durability",
                value="committed",
                hint="name all nodes in the URL, and the cluster (rabbitmqctl set_cluster_name); or ask for `local`: "
                "synced to the disks of the nodes that there are",
            )

    def _forget(self, member: Member) -> None:
        with self._lock:
            self._tails.discard(member)
            self._producers.discard(member)
            self._consumers.discard(member)


def _no_history() -> Unsupported:
    return Unsupported(
        "a queue on RabbitMQ has no positions to read at: a record is claimed, or waits",
        field="topic",
        hint="`settled quarantine` shows what failed; for what waits use rabbitmqadmin get",
    )
