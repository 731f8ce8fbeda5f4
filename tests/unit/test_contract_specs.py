"""The contract as the ports take it."""

from __future__ import annotations

from pathlib import Path

from settled.contract.load import from_mapping, load
from settled.contract.specs import consumer_group, consumer_spec, producer_spec, topic_spec
from settled.engine import ConsumerGroup, ProducerSpec, TopicSpec
from settled.store import ConsumerSpec

MERCURY = load(Path(__file__).parents[2] / "examples" / "mercury" / "contract.yaml")


def test_the_topic_has_the_contracts_partitions_and_retention() -> None:
    assert topic_spec(MERCURY) == TopicSpec(
        name="fulfilment", partitions=12, retention_s=604_800.0, retention_bytes=10 * 2**30
    )
    limited = from_mapping({"name": "x", "transport": {"record_limit": "5kB"}, "retention": {"age": None}})
    assert (topic_spec(limited).max_message_bytes, topic_spec(limited).retention_s) == (5000, None)


def test_the_producer_batches_by_the_contracts_three_bounds() -> None:
    spec = ProducerSpec(
        identity="order-service",
        durability="local",
        compression="zstd",
        batch_records=400,
        batch_bytes=600_000,
        linger_s=0.008,
    )
    assert producer_spec(MERCURY) == spec
    assert producer_spec(MERCURY, "loader-1").identity == "loader-1"
    assert producer_spec(from_mapping({"name": "x"})).identity is None


def test_a_member_joins_the_contracts_group() -> None:
    assert consumer_group(MERCURY, "w1") == ConsumerGroup(
        group="inventory-reservation-v3", topics=("fulfilment",), lease_s=10.0, member="w1"
    )


def test_the_store_screens_versions_and_marks_as_the_contract_says() -> None:
    spec = consumer_spec(MERCURY, "abc123")
    assert (spec.consumer, spec.inbox, spec.versioned) == ("inventory-reservation-v3", True, True)
    assert (spec.owner, spec.code_version) == ("fulfilment-oncall", "abc123")


def test_other_modes_and_scopes_make_other_consumers() -> None:
    by_topic = from_mapping(
        {"name": "x", "delivery": {"group": "g", "mode": "at-least-once", "dedupe": {"scope": "topic"}}}
    )
    assert consumer_spec(by_topic) == ConsumerSpec(consumer="g/x", inbox=False)
