"""The engine on Apache Kafka. The URL names brokers to ask first, `kafka://host:port,host:port?property=value`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence

from confluent_kafka import KafkaError

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
from settled.engines.kafka import config, examination, forgetting, topic_settings
from settled.engines.kafka.admin import Admin
from settled.engines.kafka.announcing import Look
from settled.engines.kafka.consumer import KafkaConsumer
from settled.engines.kafka.faults import translate
from settled.engines.kafka.producer import KafkaProducer, Target
from settled.engines.kafka.records import records_of
from settled.engines.kafka.tail import KafkaTail
from settled.errors import ContractError, Refused, SettledError, Unsupported
from settled.record import Record, checked_name, checked_text

log = logging.getLogger("settled.engines.kafka")


class KafkaEngine:
    """Any thread may call it. It belongs to the process that made it: after a fork, make another."""

    name = "kafka"
    capabilities = Capabilities(
        durability=frozenset({"memory", "local", "committed"}),
        forms=frozenset({"log", "pubsub", "notification"}),
        compaction=True,
        tails=True,
        max_message_bytes=topic_settings.MAX_MESSAGE_BYTES,
    )

    def __init__(self, url: str) -> None:
        """Raises Unavailable in bounded time, naming the brokers that were asked; ContractError for a bad setting."""
        self.url = url
        self._settings = config.parse(url)
        self._admin = Admin(self._settings)
        self._lock = threading.Lock()
        self._members: set[KafkaConsumer | KafkaProducer | KafkaTail] = set()
        self._closed = False
        self._admin.connect()

    def __repr__(self) -> str:
        return f"KafkaEngine({self._settings.shown!r})"

    def ensure_topic(self, spec: TopicSpec) -> TopicInfo:
        if spec.form not in self.capabilities.forms:
            raise Unsupported(
                f"no {spec.form} on Kafka: the client's share consumer cannot extend its lock on a record that runs",
                field="transport.form",
                value=spec.form,
                hint="declare form: log, whose group divides the work a partition at a time, or use another engine",
            )
        return self._open().ensure_topic(spec)

    def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Add partitions to a topic; durable when it returns. Groups take them up from offset 0. Keys may map to
        other partitions from now on, so the order of a key's records across the change is not kept."""
        return self._open().grow_topic(name, partitions)

    def forget_group(self, group: str, topics: Collection[str] | None = None, *, force: bool = False) -> dict[str, int]:
        return forgetting.forget(self._open().cluster, group, topics)

    def examine(self, spec: TopicSpec | None = None, durability: Durability = "memory") -> list[Examined]:
        return examination.examine(self._open(), spec, durability)

    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        return self._open().topics(names)

    def groups(self, group: str | None = None) -> list[GroupInfo]:
        return self._open().groups(group)

    def offset_at(self, topic: str, partition: int, us: int) -> int:
        return self._open().offset_at(topic, partition, us)

    def read(self, topic: str, partition: int, offset: int, *, records: int = 100) -> list[Record]:
        found = self._open().read(topic, partition, offset, records=records)
        return records_of(found, topic, partition)[0]

    def producer(self, spec: ProducerSpec) -> KafkaProducer:
        """What the durability asks of a topic is checked before the first record goes to it."""
        self._open()
        if spec.identity is not None:
            checked_text("identity", spec.identity)
        producer = KafkaProducer(spec, self._settings, lambda name: self._target(name, spec.durability), self._forget)
        with self._lock:
            self._members.add(producer)
        return producer

    def consumer(self, group: ConsumerGroup) -> KafkaConsumer:
        checked_name("group", group.group)
        if not group.topics or group.lease_s <= 0:
            raise ContractError(
                "a group needs at least one topic and a lease above 0", field="group", value=group.group
            )
        for topic in group.topics:
            self._open().description(topic)
            self._admin.require_right(topic, "Read")
        consumer = KafkaConsumer(group, self._settings, self._look, self._forget)
        with self._lock:
            self._members.add(consumer)
        return consumer

    def tail(self, topic: str, *, after: str | None = None, behind: int = 100_000) -> KafkaTail:
        self._open().description(topic)
        self._admin.require_right(topic, "Read")

        def translated(error: KafkaError, what: str) -> SettledError:
            return translate(error, what, settings=self._settings, topic=topic, operation="Read")

        tail = KafkaTail(
            topic,
            self._settings,
            lambda: self._look(topic, None),
            translated,
            after=after,
            behind=behind,
            closed=self._forget,
        )
        with self._lock:
            self._members.add(tail)
        return tail

    def maintain(self, *, force: bool = False) -> dict[str, int]:
        """Nothing: the brokers apply retention themselves."""
        self._open()
        return {}

    def close(self) -> None:
        """Closes producers (what is buffered is sent) and consumers too; what they raise is logged."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            members = list(self._members)
        for member in members:
            try:
                member.close()
            except SettledError as error:
                log.error("closing %s: %s", type(member).__name__, error)
        self._admin.close()

    def _open(self) -> Admin:
        if self._closed:
            raise Refused("this engine is closed", hint="open another one")
        return self._admin

    def _target(self, name: str, durability: Durability) -> Target:
        found = self._open().found(name)
        topic_settings.require_durability(durability, found)
        self._admin.require_right(name, "Write")
        limit = found.spec.max_message_bytes or topic_settings.MAX_MESSAGE_BYTES
        return Target(name, found.spec.partitions, limit, limit + topic_settings.ROOM)

    def _look(self, topic: str, numbers: Sequence[int] | None) -> Look:
        """Of these partitions, or of all."""
        admin = self._admin
        there = admin.description(topic)
        numbers = range(len(there.partitions)) if numbers is None else numbers
        begins = admin.positions.begins(topic, numbers)
        return Look(str(there.topic_id), len(there.partitions), begins, admin.positions.ends(topic, numbers))

    def _forget(self, member: KafkaConsumer | KafkaProducer | KafkaTail) -> None:
        with self._lock:
            self._members.discard(member)
