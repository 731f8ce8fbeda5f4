"""The engine on RabbitMQ. The URL names nodes and a virtual host, `rabbitmq://user:password@host:port,host:port/vhost`.

AMQP tells a queue's ready messages and consumers, and no more: what else people may want to see is not made up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection

from settled.engine import (
    Capabilities,
    ConsumerGroup,
    Durability,
    Examined,
    GroupInfo,
    ProducerSpec,
    TopicInfo,
    TopicSpec,
)
from settled.engines.rabbitmq import faults, forgetting, log_infos, settings, slot_infos
from settled.engines.rabbitmq.consumer import RabbitConsumer
from settled.engines.rabbitmq.durability import examined, kept, require_cluster, require_synced
from settled.engines.rabbitmq.facts import stream_of
from settled.engines.rabbitmq.producer import FRESH_S, RabbitProducer
from settled.engines.rabbitmq.sending import Route
from settled.engines.rabbitmq.stream_consumer import StreamConsumer
from settled.engines.rabbitmq.streams import Streams
from settled.engines.rabbitmq.tail import RabbitTail
from settled.engines.rabbitmq.topology import MAX_MESSAGE_BYTES, Source, There, Topology, exchange_of, facts_of
from settled.errors import ContractError, Refused, SettledError, Unsupported
from settled.record import Record, checked_name, checked_text

log = logging.getLogger("settled.engines.rabbitmq")

Member = RabbitConsumer | StreamConsumer | RabbitProducer | RabbitTail


class RabbitEngine:
    """Any thread may call it. It belongs to the process that made it: after a fork, make another."""

    name = "rabbitmq"
    capabilities = Capabilities(
        durability=frozenset({"memory", "local"}),
        forms=frozenset({"queue", "pubsub", "log", "notification"}),
        tails=True,
        counts_passed=False,
        renumbers=True,
        differing={"log": {"renumbers": False, "tails": False, "durability": frozenset({"memory"})}},
        max_message_bytes=MAX_MESSAGE_BYTES,
    )

    def __init__(self, url: str) -> None:
        """Raises Unavailable in bounded time, naming the nodes that were asked; ContractError for a bad setting or
        login; Unsupported for a broker without quorum queues."""
        self.url = url
        self._settings = settings.parse(url)
        self._topology = Topology(self._settings)
        self._streams = Streams(self._topology)
        self.capabilities = kept(type(self).capabilities, self._settings)
        self._lock = threading.Lock()
        self._producers: set[RabbitProducer] = set()
        self._consumers: set[RabbitConsumer | StreamConsumer] = set()
        self._tails: set[RabbitTail] = set()
        self._told: dict[str, TopicSpec] = {}  # what this process was told of topics: the broker keeps no such facts
        self._logs: set[str] = set()  # known from elsewhere
        self._closed = False
        self._topology.connect()

    @staticmethod
    def capabilities_at(url: str) -> Capabilities:
        """What is kept at the URL, without a look at it."""
        return kept(RabbitEngine.capabilities, settings.parse(url))

    def __repr__(self) -> str:
        return f"RabbitEngine({self._settings.shown!r})"

    def ensure_topic(self, spec: TopicSpec) -> TopicInfo:
        """A topic that is there with other arguments is refused, and nothing is changed: of a log both values are told,
        of others with the broker's words."""
        topology = self._open()
        if spec.form == "log":
            self._streams.ensure(spec)
        else:
            topology.ensure(spec)
        with self._lock:
            self._told[spec.name] = spec
        return self.topics([spec.name])[0]

    def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        if self._is_log(name):
            self._streams.grow(name, partitions)
            return self.topics([name])[0]
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
        found = ((name, self._open().there(name, self._groups_of(name))) for name in wanted)
        infos = (self._info(name, there) for name, there in found if there is not None)
        return [info for info in infos if info is not None]

    def groups(self, group: str | None = None) -> list[GroupInfo]:
        """The group named, or those that this process knows: of logs that it was told of all, as their boards say; of
        other topics those that joined here, members elsewhere being known by their slot alone."""
        topology = self._open()
        with self._lock:
            slots = self._slot_members()
            told = [spec for spec in self._told.values() if spec.form != "log"]
            logs = sorted(self._logs | {spec.name for spec in self._told.values() if spec.form == "log"})
        joined = {consumer.group for consumer in slots}
        boards = {topic: self._streams.boards(topic, group) for topic in logs}
        known = joined | {name for found in boards.values() for name in found}
        infos: list[GroupInfo] = []
        for name in sorted(known) if group is None else [group]:
            of_logs = [(topic, found[name]) for topic, found in boards.items() if name in found]
            if of_logs:
                infos.append(log_infos.group(name, of_logs))
                continue
            own = [consumer for consumer in slots if consumer.group == name]
            info = slot_infos.group(topology, name, told, own)
            infos += [info] if info.members or name in joined else []
        return infos

    def introduce(self, topics: Collection[str]) -> None:
        """Of queues and subscriptions nothing is learnt: the broker does not tell their slots."""
        found = {topic for topic in topics if topic not in self._logs and self._is_log(topic)}
        with self._lock:
            self._logs |= found

    def offset_at(self, topic: str, partition: int, us: int) -> int:
        """By the producers' clocks, see `records`; exact where they and the broker's agree."""
        self._require_log(topic)
        return self._streams.offset_at(topic, partition, us)

    def read(self, topic: str, partition: int, offset: int, *, records: int = 100) -> list[Record]:
        self._require_log(topic)
        return self._streams.read(topic, partition, offset, records)

    def producer(self, spec: ProducerSpec) -> RabbitProducer:
        """Raises Unsupported for `committed` unless the URL names three nodes, most answer, and all say the same name.
        How many copies a queue has is not told by AMQP: `rabbitmq-queues quorum_status` does."""
        self._open()
        if spec.identity is not None:
            checked_text("identity", spec.identity)
        if spec.durability == "committed":
            require_cluster(spec.durability, self._topology)
        producer = RabbitProducer(spec, self._settings, lambda topic: self._route(topic, spec.durability), self._forget)
        with self._lock:
            self._producers.add(producer)
        return producer

    def consumer(self, group: ConsumerGroup) -> RabbitConsumer | StreamConsumer:
        """Of pub/sub, the group's durable subscription is made. Raises ContractError where the group wants order and
        the topic has several slots."""
        checked_name("group", group.group)
        if not group.topics or group.lease_s <= 0:
            raise ContractError(
                "a group needs at least one topic and a lease above 0", field="group", value=group.group
            )
        topology = self._open()
        logs = [topic for topic in group.topics if self._is_log(checked_name("topic", topic))]
        if logs:
            return self._join_logs(group, logs)
        sources = [self._source(topology, topic, group.group, ordered=group.ordered) for topic in group.topics]
        consumer = RabbitConsumer(group, sources, self._settings, self._identity, self._forget)
        with self._lock:
            self._consumers.add(consumer)
        return consumer

    def _join_logs(self, group: ConsumerGroup, logs: list[str]) -> StreamConsumer:
        if len(logs) < len(group.topics):
            raise ContractError(
                "a group reads logs, or topics that are none, not both", field="topic", hint="make two groups of it"
            )
        topics = {topic: self._streams.join(topic, group.group) for topic in logs}
        consumer = StreamConsumer(group, topics, self._settings, self._forget)
        with self._lock:
            self._consumers.add(consumer)
            for topic, facts in topics.items():
                self._told.setdefault(topic, facts.spec(topic))
        return consumer

    def tail(self, topic: str, *, after: str | None = None, behind: int = 100_000) -> RabbitTail:
        """What passed since `after` is counted as the producers of then are heard again. The broker holds at most
        `behind` records for it."""
        checked_name("topic", topic)
        there = self._open().there(topic)
        if there is None:
            raise faults.absent(topic)
        if there.form == "log":
            raise Unsupported("a log on RabbitMQ has no tails", field="topic", value=topic, hint="read it with a group")
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

    def forget_group(self, group: str, topics: Collection[str] | None = None, *, force: bool = False) -> dict[str, int]:
        with self._lock:
            told = list(self._told.values())
        return forgetting.forget(self._open(), checked_name("group", group), topics, told, force=force)

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
        found += examined(durability, self._topology, self.capabilities, spec)
        if spec is not None and self._is_as_wanted(spec):
            with self._lock:
                self._told.setdefault(spec.name, spec)
            found += [slot_infos.dead(self._topology, spec.name)] if spec.form == "queue" else []
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

    def _is_log(self, topic: str) -> bool:
        told = self._told.get(topic)
        if told is not None:
            return told.form == "log"
        there = self._open().there(topic)
        return there is not None and there.form == "log"

    def _require_log(self, topic: str) -> None:
        there = self._open().there(checked_name("topic", topic))
        if there is None:
            raise faults.absent(topic)
        if there.form != "log":
            raise _no_history()

    def _is_as_wanted(self, spec: TopicSpec) -> bool:
        """False: it is not there. Raises as `ensure_topic` does, makes nothing."""
        return self._streams.is_there(spec) if spec.form == "log" else self._topology.is_there(spec)

    def _identity(self, topic: str) -> str:
        """A queue has no incarnations: claims are numbered by epochs, which the store remembers."""
        return f"rabbitmq:{self._settings.vhost}:{topic}"

    def _source(self, topology: Topology, topic: str, group: str, *, ordered: bool) -> Source:
        checked_name("topic", topic)
        told = self._told.get(topic)
        return topology.source(topic, group, ordered=ordered, told=None if told is None else told.partitions)

    def _route(self, topic: str, durability: Durability) -> Route:
        there = self._open().there(topic)
        if there is None:
            raise faults.absent(topic)
        if there.form == "log":
            return self._log_route(topic, durability)
        told = self._told.get(topic)
        limit = (told.max_message_bytes if told is not None else None) or MAX_MESSAGE_BYTES
        until = time.monotonic() + FRESH_S
        exchange = exchange_of(topic, there.form)
        if not exchange:
            return Route("", topic, limit, until, scheduled=True)
        return Route(exchange, "", limit, until, mandatory=there.form != "notification", numbered=True)

    def _log_route(self, topic: str, durability: Durability) -> Route:
        require_synced(durability, self.capabilities.of("log").durability, topic)
        known = self._streams.known(topic)
        if known is None:
            raise faults.absent(topic)
        facts = known.facts
        until = time.monotonic() + FRESH_S
        return Route(
            "",
            facts_of(topic),
            facts.max_message_bytes or MAX_MESSAGE_BYTES,
            until,
            partitions=tuple(stream_of(topic, number) for number in range(facts.partitions)),
        )

    def _info(self, name: str, there: There) -> TopicInfo | None:
        if there.form == "log":
            return self._streams.info(name)
        with self._lock:
            held = {slot.number: slot for each in self._slot_members() for slot in each.claimed(name)}
        return slot_infos.topic(name, there, self._told.get(name), held, self._identity(name))

    def _groups_of(self, topic: str) -> set[str]:
        """The groups that joined the topic in this process: what waits for them is known."""
        with self._lock:
            return {each.group for each in self._slot_members() if topic in each.topics}

    def _slot_members(self) -> list[RabbitConsumer]:
        return [each for each in self._consumers if isinstance(each, RabbitConsumer)]

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
