"""A topic's settings in settled's words and in Kafka's, and what is between them. No I/O.

retention_s         retention.ms; none is -1
retention_bytes     retention.bytes, which Kafka counts per partition: the topic's bytes over its partitions, rounded up
max_message_bytes   max.message.bytes, which Kafka counts per batch with its frame and settled's headers: ROOM more
replicas            the replication factor; none: 3, or as many as there are brokers
min_isr             min.insync.replicas; none: 2, or as many as there are replicas
compact             cleanup.policy: compact, with delete beside it where retention bounds the topic. A topic that is
                    compacted already is not told to stop: with cleanup.policy=delete its age would be judged at once
tombstone_s         delete.retention.ms
pass_groups         always, where a topic is compacted: brokers look at no group
Accepted times are the brokers' (message.timestamp.type=LogAppendTime), so retention is judged by their clocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from settled.engine import Durability, TopicSpec
from settled.errors import ContractError
from settled.record import checked_name

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_PARTITIONS = 10_000
REPLICAS, MIN_ISR = 3, 2
ROOM = 16 * 1024  # bytes of a batch that are not counted by Message.size: its frame, and settled's own headers
NAMES = (
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "min.insync.replicas",
    "message.timestamp.type",
    "cleanup.policy",
    "delete.retention.ms",
    "unclean.leader.election.enable",
    "flush.messages",
)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as the cluster has it: `spec` in settled's words, the rest as it matters for promises.

    replicas            the fewest that any partition has
    synced              each record is synced to disk before it is acknowledged (flush.messages=1)
    unclean             a replica that is behind may become the leader: acknowledged records may be lost
    compacted           records are removed when a later one of their key is there
    brokers_time        accepted times are the brokers'
    """

    spec: TopicSpec
    replicas: int
    min_isr: int
    synced: bool
    unclean: bool
    compacted: bool
    brokers_time: bool


def check(spec: TopicSpec) -> None:
    """Raises ContractError for a topic that cannot be."""
    checked_name("topic", spec.name)
    limit, replicas, min_isr = spec.max_message_bytes, spec.replicas, spec.min_isr
    for field, value, good, wanted in (
        ("partitions", spec.partitions, 1 <= spec.partitions <= MAX_PARTITIONS, f"from 1 to {MAX_PARTITIONS}"),
        ("retention_s", spec.retention_s, spec.retention_s is None or spec.retention_s > 0, "above 0, or none"),
        ("retention_bytes", spec.retention_bytes, (spec.retention_bytes or 1) > 0, "above 0, or none"),
        (
            "max_message_bytes",
            limit,
            0 < (MAX_MESSAGE_BYTES if limit is None else limit) <= MAX_MESSAGE_BYTES,
            f"from 1 to {MAX_MESSAGE_BYTES}, the engine's own limit",
        ),
        ("tombstone_s", spec.tombstone_s, spec.tombstone_s >= 0, "0 or more"),
        ("replicas", replicas, (1 if replicas is None else replicas) > 0, "1 or more"),
        ("min_isr", min_isr, 0 < (min_isr or 1) <= (replicas or 32_767), "from 1 to the number of replicas"),
    ):
        if not good:
            raise ContractError(
                f"topic {spec.name!r}: {field} is {value}", field=field, value=value, hint=f"give {wanted}"
            )


def replicas_of(spec: TopicSpec, brokers: int) -> int:
    """How many replicas a new topic gets in a cluster of so many brokers."""
    return spec.replicas if spec.replicas is not None else min(REPLICAS, max(1, brokers))


def created_with(spec: TopicSpec, replicas: int) -> dict[str, str]:
    """The settings of a new topic."""
    min_isr = spec.min_isr if spec.min_isr is not None else min(MIN_ISR, replicas)
    return {**adopted(spec), "min.insync.replicas": str(min_isr), "message.timestamp.type": "LogAppendTime"}


def adopted(spec: TopicSpec) -> dict[str, str]:
    """The settings that an existing topic takes on from a spec. What the spec leaves open is left as it is."""
    taken = {
        "retention.ms": "-1" if spec.retention_s is None else str(max(1, round(spec.retention_s * 1000))),
        "retention.bytes": "-1" if spec.retention_bytes is None else str(-(-spec.retention_bytes // spec.partitions)),
    }
    if spec.max_message_bytes is not None:
        taken["max.message.bytes"] = str(spec.max_message_bytes + ROOM)
    if spec.min_isr is not None:
        taken["min.insync.replicas"] = str(spec.min_isr)
    if spec.compact:
        bounded = spec.retention_s is not None or spec.retention_bytes is not None
        taken["cleanup.policy"] = "compact,delete" if bounded else "compact"
        taken["delete.retention.ms"] = str(round(spec.tombstone_s * 1000))
    return taken


def found(name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> Found:
    """From what the cluster says. `replicas`: the fewest of any partition."""
    age, most = int(config["retention.ms"]), int(config["retention.bytes"])
    min_isr = int(config["min.insync.replicas"])
    compacted = "compact" in config["cleanup.policy"]
    return Found(
        spec=TopicSpec(
            name=name,
            partitions=partitions,
            compact=compacted,
            tombstone_s=int(config["delete.retention.ms"]) / 1000,
            pass_groups=compacted,
            retention_s=None if age < 0 else age / 1000,
            retention_bytes=None if most < 0 else most * partitions,
            max_message_bytes=max(1, int(config["max.message.bytes"]) - ROOM),
            replicas=replicas,
            min_isr=min_isr,
        ),
        replicas=replicas,
        min_isr=min_isr,
        synced=config["flush.messages"] == "1",
        unclean=config["unclean.leader.election.enable"] == "true",
        compacted=compacted,
        brokers_time=config["message.timestamp.type"] == "LogAppendTime",
    )


def notes(there: Found) -> tuple[str, ...]:
    """What of the topic weakens a promise."""
    told = []
    if not there.brokers_time:
        told.append("accepted times are the producers' (message.timestamp.type=CreateTime): ages go by their clocks")
    if there.unclean:
        told.append("accepted records may be lost in an unclean leader election (unclean.leader.election.enable=true)")
    if there.compacted:
        told.append("of each key only the latest record is kept (cleanup.policy=compact): a group may miss the others")
    if 1 < there.replicas == there.min_isr:
        told.append("while one replica is away nothing is accepted (min.insync.replicas is the number of replicas)")
    return tuple(told)


def require_durability(durability: Durability, there: Found) -> None:
    """Raises ContractError when the topic cannot keep the durability point that the contract declares.

    memory      the replicas in sync hold the record in memory: any topic
    local       it outlives a power cut of one machine: two replicas hold it, or it is synced before the answer
    committed   a quorum holds it: at least two replicas, of which at least two must have it
    """
    name = there.spec.name
    if there.min_isr > there.replicas:
        raise _contradiction(
            durability,
            f"topic {name!r} has {there.replicas} replicas and min.insync.replicas={there.min_isr}: it accepts nothing",
            "lower min.insync.replicas, or add replicas",
        )
    replicated = there.replicas >= 2 and there.min_isr >= 2
    if durability == "memory" or (durability == "local" and there.synced and not there.unclean):
        return
    if not replicated:
        raise _contradiction(
            durability,
            f"durability is {durability}, and topic {name!r} has {there.replicas} replicas of which {there.min_isr} "
            "must hold a record: the loss of one broker may take accepted records",
            "give it replicas: 3 and min_isr: 2; with a single broker for development declare producer.durability: "
            "memory" + ("" if durability == "committed" else ", or set flush.messages=1 on the topic"),
        )
    if there.unclean:
        raise _contradiction(
            durability,
            f"durability is {durability}, and topic {name!r} has unclean.leader.election.enable=true: a replica that "
            "is behind may become the leader, and accepted records are lost",
            f"kafka-configs --alter --topic {name} --add-config unclean.leader.election.enable=false",
        )


def _contradiction(durability: Durability, message: str, hint: str) -> ContractError:
    return ContractError(message, field="producer.durability", value=durability, hint=hint)
