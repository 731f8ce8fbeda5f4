"""Topics, groups and positions of a cluster: made, compared, described. Nothing here joins a group or commits."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import confluent_kafka
from confluent_kafka import TopicCollection
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from settled.engine import Durability, GroupInfo, TopicInfo, TopicSpec
from settled.engines.kafka import faults, groups, topic_settings
from settled.engines.kafka.calls import CALL_S, PAUSE_S, SETTLE_S, Cluster
from settled.engines.kafka.config import Settings
from settled.engines.kafka.positions import Positions
from settled.engines.kafka.reader import Reader
from settled.engines.kafka.topic_settings import Found
from settled.errors import ContractError, Unavailable, Unsupported
from settled.partition import other_number
from settled.record import checked_name

INTERNAL = "__"  # what names of topics begin with that belong to the brokers
PROBE = "settled-probe"
GONE_S = 2.0  # a topic that no broker knows for so long was deleted
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # the topic id of brokers that have none


class Admin:
    """Any thread may call it. Every call is bounded by `call_s` seconds per step; then it raises Unavailable."""

    def __init__(self, settings: Settings, *, call_s: float = CALL_S) -> None:
        self.settings = settings
        self.cluster = Cluster(settings, call_s=call_s)
        self.reader = Reader(settings, call_s=call_s)
        self.positions = Positions(self.cluster, self._require_there)
        self._recent = False
        # Topics made or grown here: until when a broker that does not know so many partitions is asked again.
        self._made: dict[str, tuple[float, int]] = {}

    def connect(self) -> str:
        """The cluster's id. Raises Unavailable naming the brokers asked, Unsupported for brokers that are too old."""
        found = self.cluster.one(self.cluster.client.describe_cluster, "looking at the cluster")
        if not self._recent:
            self._require_recent()
        return str(found.cluster_id)

    def brokers(self) -> list[str]:
        """host:port of the brokers that run now."""
        found = self.cluster.one(self.cluster.client.describe_cluster, "looking at the cluster")
        return sorted(f"{node.host}:{node.port}" for node in found.nodes)

    def ensure_topic(self, spec: TopicSpec) -> TopicInfo:
        """As `Engine.ensure_topic`. All brokers know the topic when it returns."""
        topic_settings.check(spec)
        there = self._described([spec.name]).get(spec.name)
        if there is None:
            there = self._create(spec)
        if len(there.partitions) != spec.partitions:
            raise other_number(spec.name, len(there.partitions), spec.partitions)
        config = self._configs([spec.name])[spec.name]
        changed = {name: value for name, value in topic_settings.adopted(spec).items() if config[name] != value}
        if changed:
            self._alter(spec.name, changed)
            self.cluster.until(lambda: self._in_force(spec.name, changed), f"changing topic {spec.name!r}")
        return self._infos([spec.name])[0]

    def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Add partitions; durable when it returns. Keys may map to other partitions from now on."""
        before = len(self.description(name).partitions)
        if not before <= partitions <= topic_settings.MAX_PARTITIONS:
            raise ContractError(
                f"topic {name!r} has {before} partitions and cannot have {partitions}",
                field="partitions",
                value=partitions,
                hint=f"a topic can only grow, up to {topic_settings.MAX_PARTITIONS} partitions",
            )
        if partitions > before:
            what = f"growing topic {name!r}"
            self.cluster.each(
                self.cluster.all(self.cluster.client.create_partitions, [NewPartitions(name, partitions)], what),
                what,
                operation="Alter",
            )
            self._made[name] = time.monotonic() + SETTLE_S, partitions
            self._when_led(name, partitions)
        return self._infos([name])[0]

    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        """All topics that this login may see but the brokers' own, or those of the named ones that are there."""
        if names is None:
            names = [name for name in self._metadata().topics if not name.startswith(INTERNAL)]
        return self._infos(sorted(names))

    def found(self, name: str) -> Found:
        """A topic's settings. Raises ContractError when there is none."""
        return self._found(self.description(name), self._configs([name])[name])

    def require_durability(self, name: str, durability: Durability) -> None:
        """Raises ContractError when the topic cannot keep the durability, see `topic_settings.require_durability`."""
        topic_settings.require_durability(durability, self.found(name))

    def groups(self, group: str | None = None) -> list[GroupInfo]:
        """All groups of consumers, or the one named; those that nobody ever joined or committed for are not there."""
        return groups.described(self.cluster, group)

    def offset_at(self, topic: str, partition: int, us: int) -> int:
        """As `Engine.offset_at`. Kafka's times are milliseconds."""
        self.require_partition(topic, partition)
        return self.positions.at(topic, partition, us)

    def read(self, topic: str, partition: int, offset: int, *, records: int = 100) -> list[Any]:
        """Up to `records` messages (of confluent_kafka) from `offset` on, without joining a group."""
        self.require_partition(topic, partition)
        begin = self.positions.begins(topic, [partition])[partition]
        end = self.positions.ends(topic, [partition])[partition]
        return self.reader.read(topic, partition, max(offset, begin), end, records)

    def rights(self, topic: str) -> frozenset[str]:
        """What this login may do with the topic, in Kafka's words (READ, WRITE, ...)."""
        what = f"looking at the rights on topic {topic!r}"
        names = TopicCollection([topic])
        found = self.cluster.read(self.cluster.client.describe_topics, names, what, include_authorized_operations=True)
        return frozenset(
            operation.name
            for there in self.cluster.each(found, what).values()
            for operation in there.authorized_operations or ()
        )

    def require_right(self, topic: str, operation: str) -> None:
        """Raises ContractError with the ACL that is missing. What a cluster does not tell counts as given."""
        rights = self.rights(topic)
        if rights and not rights & {operation.upper(), "ALL"}:
            refused = confluent_kafka.KafkaError(confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)
            what = f"looking at the rights on topic {topic!r}"
            raise faults.translate(refused, what, settings=self.settings, topic=topic, operation=operation)

    def description(self, name: str) -> TopicDescription:
        """What the cluster says of a topic. Raises ContractError when there is none."""
        checked_name("topic", name)
        found = self._described([name]).get(name)
        if found is None:
            raise _absent(name)
        return found

    def require_partition(self, topic: str, partition: int) -> None:
        """Raises ContractError for a topic or a partition that is not there."""
        count = len(self.description(topic).partitions)
        if not 0 <= partition < count:
            raise ContractError(
                f"topic {topic!r} has no partition {partition}",
                field="partition",
                value=partition,
                hint=f"it has 0 to {count - 1}",
            )

    def close(self) -> None:
        """A second call does nothing."""
        self.reader.close()

    def _require_recent(self) -> None:
        """Raises Unsupported for brokers that do not know a request which settled makes. Tries a change of a topic
        that is not there, for validation only: any other answer than that it is not known will do."""
        entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        asked = [ConfigResource(ResourceType.TOPIC, PROBE, incremental_configs=[entry])]
        what = "looking at what the brokers can do"
        tried = self.cluster.all(self.cluster.client.incremental_alter_configs, asked, what, validate_only=True)
        for error in tried.values():
            if isinstance(error, confluent_kafka.KafkaException):
                fault = self.cluster.fault(error, what)
                if isinstance(fault, Unsupported | Unavailable):
                    raise fault from error
        self._recent = True

    # Topics

    def _create(self, spec: TopicSpec) -> TopicDescription:
        replicas = topic_settings.replicas_of(spec, len(self.brokers()))
        topic = NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=replicas,
            config=topic_settings.created_with(spec, replicas),
        )
        what = f"creating topic {spec.name!r}"
        for error in self.cluster.all(self.cluster.client.create_topics, [topic], what).values():
            if isinstance(error, confluent_kafka.KafkaException):
                if error.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    continue  # another process was first
                raise self.cluster.fault(error, what, topic=spec.name, operation="Create")
        self._made[spec.name] = time.monotonic() + SETTLE_S, 1
        return self._when_led(spec.name, 1)

    def _when_led(self, name: str, partitions: int) -> TopicDescription:
        """The topic, once each partition has a leader and so many are known."""

        def look() -> TopicDescription | None:
            there = self._seen([name]).get(name)
            led = there is not None and len(there.partitions) >= partitions and all(p.leader for p in there.partitions)
            return there if led else None

        return self.cluster.until(look, f"waiting for the leaders of topic {name!r}")

    def _in_force(self, name: str, wanted: dict[str, str]) -> bool | None:
        config = self._configs([name])[name]
        return all(config[each] == value for each, value in wanted.items()) or None

    def _alter(self, name: str, changed: dict[str, str]) -> None:
        entries = [
            ConfigEntry(each, value, incremental_operation=AlterConfigOpType.SET) for each, value in changed.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        what = f"changing {', '.join(changed)} of topic {name!r}"
        found = self.cluster.all(self.cluster.client.incremental_alter_configs, [resource], what)
        self.cluster.each({each.name: value for each, value in found.items()}, what, operation="AlterConfigs")

    def _metadata(self) -> Any:
        try:
            return self.cluster.client.list_topics(timeout=self.cluster.call_s)
        except confluent_kafka.KafkaException as error:
            raise self.cluster.fault(error, "listing topics") from error

    def _described(self, names: list[str]) -> dict[str, TopicDescription]:
        """The topics that are there, by name."""
        now = time.monotonic()
        fresh = {name: self._made[name][1] for name in names if name in self._made and self._made[name][0] > now}
        if not fresh:
            return self._seen(names)

        def look() -> dict[str, TopicDescription] | None:
            there = self._seen(names)
            known = all(name in there and len(there[name].partitions) >= count for name, count in fresh.items())
            return there if known else None

        return self.cluster.until(look, "waiting for the brokers to know a new topic")

    def _seen(self, names: list[str]) -> dict[str, TopicDescription]:
        """The topics that the broker which answers knows."""
        if not names:
            return {}
        what = f"looking at topic {names[0]!r}" if len(names) == 1 else "looking at topics"
        asked = self.cluster.read(self.cluster.client.describe_topics, TopicCollection(names), what)
        found = {
            name: value
            for name, value in asked.items()
            if not (isinstance(value, confluent_kafka.KafkaException) and faults.is_absent(value))
        }
        there: dict[str, TopicDescription] = self.cluster.each(found, what)
        for name, description in there.items():
            if str(description.topic_id) == NO_ID:
                raise Unsupported(
                    f"topic {name!r} has no id: these brokers are too old",
                    field="engine",
                    hint="settled needs brokers of Apache Kafka 2.8 or newer",
                )
        return there

    def _configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        """The settings of topics that are there. Asked again while a broker does not know a new one."""
        what = f"reading the settings of topic {names[0]!r}" if len(names) == 1 else "reading the settings of topics"
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]

        def look() -> dict[str, Any] | None:
            found = self.cluster.read(self.cluster.client.describe_configs, asked, what) if asked else {}
            named = {resource.name: value for resource, value in found.items()}
            if unknown := {name for name, each in named.items() if faults.passes(each)}:
                self._require_there(unknown)
                return None
            return self.cluster.each(named, what, operation="DescribeConfigs")

        entries = self.cluster.until(look, what)
        return {name: {key: entry.value for key, entry in config.items()} for name, config in entries.items()}

    def _found(self, there: TopicDescription, config: dict[str, str]) -> Found:
        replicas = min(len(part.replicas) for part in there.partitions)
        return topic_settings.found(there.name, len(there.partitions), replicas, config)

    # Positions

    def _infos(self, names: list[str]) -> list[TopicInfo]:
        """Without those that are deleted while they are looked at."""
        left = list(names)
        while True:
            try:
                return self._infos_of(left)
            except ContractError as error:
                if error.field != "topic" or error.value not in left:
                    raise
                left.remove(error.value)

    def _infos_of(self, names: list[str]) -> list[TopicInfo]:
        described = self._described(names)
        configs = self._configs(list(described))
        places = [(name, part.id) for name, there in described.items() for part in there.partitions]
        held = self.positions.of(places)
        found: list[TopicInfo] = []
        for name, there in sorted(described.items()):
            settings = self._found(there, configs[name])
            parts = [held[name, part.id] for part in sorted(there.partitions, key=lambda part: part.id)]
            notes = topic_settings.notes(settings)
            found.append(TopicInfo(spec=settings.spec, identity=str(there.topic_id), partitions=parts, notes=notes))
        return found

    def _require_there(self, names: set[str]) -> None:
        """Raises ContractError for a topic that no broker knows for a while: it was deleted."""
        deadline = time.monotonic() + GONE_S
        while missing := names - self._described(sorted(names)).keys():
            if time.monotonic() > deadline:
                raise _absent(min(missing))
            time.sleep(PAUSE_S)


def _absent(name: str) -> ContractError:
    return ContractError(
        f"there is no topic {name!r}", field="topic", value=name, hint="create it first, from a contract"
    )
