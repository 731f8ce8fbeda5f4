"""Records, bytes and consumers: what is to be held against what may be held."""

from __future__ import annotations

from settled.contract.model import Contract
from settled.contract.rules.rule import Told, rule
from settled.contract.units import show_size
from settled.engine import Capabilities


@rule(
    "in-flight-above-process-budget",
    "error",
    "delivery.in_flight.bytes",
    "What may be in flight is more than the process may hold in all.",
)
def _budget(contract: Contract, _: Capabilities | None) -> Told:
    held, budget = contract.delivery.in_flight.bytes, contract.delivery.process_budget
    if held <= budget:
        return None
    return (
        f"in flight {show_size(held)}, the process may hold {show_size(budget)}",
        "lower delivery.in_flight.bytes, or raise delivery.process_budget",
    )


@rule("group-above-in-flight", "error", "delivery.group_size", "A transaction could settle more than may be in flight.")
def _group(contract: Contract, _: Capabilities | None) -> Told:
    group, held = contract.delivery.group_size, contract.delivery.in_flight
    parts = []
    if group.records > held.records:
        parts.append(f"a group has up to {group.records} records, in flight are up to {held.records}")
    if group.bytes > held.bytes:
        parts.append(f"a group has up to {show_size(group.bytes)}, in flight are up to {show_size(held.bytes)}")
    if not parts:
        return None
    return "; ".join(parts), "lower delivery.group_size, or raise delivery.in_flight"


@rule(
    "concurrency-above-in-flight",
    "error",
    "delivery.concurrency",
    "More effects are to run side by side than records may be in flight.",
)
def _concurrency(contract: Contract, _: Capabilities | None) -> Told:
    effects, held = contract.delivery.concurrency or 1, contract.delivery.in_flight.records
    if effects <= held:
        return None
    return f"{effects} effects side by side, {held} records in flight", "lower delivery.concurrency"


@rule(
    "batch-above-in-flight",
    "warning",
    "producer.batch.bytes",
    "One published batch is more than a consumer may have in flight; it comes whole all the same.",
)
def _batch_flight(contract: Contract, _: Capabilities | None) -> Told:
    batch, held = contract.producer.batch.bytes, contract.delivery.in_flight.bytes
    if batch <= held:
        return None
    return (
        f"a batch has up to {show_size(batch)}, in flight are up to {show_size(held)}",
        "lower producer.batch.bytes, or raise delivery.in_flight.bytes",
    )


@rule(
    "more-consumers-than-partitions",
    "error",
    "delivery.consumers",
    "A partition has one owner, so the consumers beyond the partitions stay idle.",
)
def _consumers(contract: Contract, _: Capabilities | None) -> Told:
    consumers, partitions = contract.delivery.consumers, contract.transport.partitions
    if consumers <= partitions or contract.transport.form == "notification":  # each reader is given all hints
        return None
    return (
        f"{consumers} consumers for {partitions} partitions: {consumers - partitions} would stay idle",
        f"lower delivery.consumers to {partitions}, or choose more partitions before the topic is made",
    )
