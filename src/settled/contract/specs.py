"""From the contract to what the two ports take."""

from __future__ import annotations

from settled.contract.model import Contract
from settled.engine import ConsumerGroup, ProducerSpec, TopicSpec
from settled.store import ConsumerSpec


def topic_spec(contract: Contract) -> TopicSpec:
    """The topic, as `Engine.ensure_topic` takes it."""
    return TopicSpec(
        name=contract.transport.topic,
        partitions=contract.transport.partitions,
        retention_s=contract.retention.age,
        retention_bytes=contract.retention.bytes,
        max_message_bytes=contract.transport.record_limit,
    )


def producer_spec(contract: Contract, identity: str | None = None) -> ProducerSpec:
    """The producer. `identity` takes the place of the contract's; a name belongs to one running producer at a time."""
    producer = contract.producer
    return ProducerSpec(
        identity=producer.identity if identity is None else identity,
        durability=producer.durability,
        compression=producer.compression,
        batch_records=producer.batch.records,
        batch_bytes=producer.batch.bytes,
        linger_s=producer.batch.time,
    )


def consumer_group(contract: Contract, member: str | None = None) -> ConsumerGroup:
    """The group, as a member joins it."""
    return ConsumerGroup(
        group=contract.delivery.group,
        topics=(contract.transport.topic,),
        lease_s=contract.delivery.lease,
        member=member,
    )


def consumer_spec(contract: Contract, code_version: str = "") -> ConsumerSpec:
    """Who consumes, as the effect store knows it."""
    group, topic = contract.delivery.group, contract.transport.topic
    return ConsumerSpec(
        consumer=f"{group}/{topic}" if contract.delivery.dedupe.scope == "topic" else group,
        inbox=contract.delivery.mode == "effectively-once",
        versioned=contract.transport.version is not None,
        owner=contract.poison.owner or "",
        code_version=code_version,
    )
