"""Waits, leases and deadlines that contradict one another or an objective."""

from __future__ import annotations

from settled.contract.model import Contract
from settled.contract.rules.rule import Told, rule
from settled.contract.units import show_duration
from settled.engine import Capabilities


@rule(
    "lease-not-above-effect-tail",
    "error",
    "delivery.lease",
    "A member may lose its partitions while a slow effect runs, and the effect is undone and run again.",
)
def _lease(contract: Contract, _: Capabilities | None) -> Told:
    lease, tail = contract.delivery.lease, contract.delivery.effect_tail
    if lease > tail:
        return None
    return (
        f"the lease is {show_duration(lease)}, an effect may take {show_duration(tail)}",
        f"raise delivery.lease well above {show_duration(tail)}, e.g. to {show_duration(3 * tail)}",
    )


@rule(
    "grace-shorter-than-effect-tail",
    "error",
    "delivery.grace",
    "A stopping process may have to roll back an effect that only takes its usual time.",
)
def _grace(contract: Contract, _: Capabilities | None) -> Told:
    grace, tail = contract.delivery.grace, contract.delivery.effect_tail
    if grace >= tail:
        return None
    return (
        f"a stopping process has {show_duration(grace)}, an effect may take {show_duration(tail)}",
        f"raise delivery.grace to {show_duration(tail)} or more",
    )


@rule(
    "linger-above-objective",
    "error",
    "delivery.group_size.linger",
    "Waiting for a fuller group alone uses up the age that the objective allows.",
)
def _linger(contract: Contract, _: Capabilities | None) -> Told:
    linger, age = contract.delivery.group_size.linger, contract.objectives.oldest_age
    if age is None or linger < age:
        return None
    return (
        f"a group may wait {show_duration(linger)}, the oldest record may be {show_duration(age)} old",
        "shorten delivery.group_size.linger, or raise objectives.oldest_age",
    )


@rule(
    "batch-time-above-objective",
    "error",
    "producer.batch.time",
    "Waiting for a fuller batch alone uses up the time that the publish objective allows.",
)
def _batch_time(contract: Contract, _: Capabilities | None) -> Told:
    wait, objective = contract.producer.batch.time, contract.objectives.publish_p99
    if objective is None or wait < objective:
        return None
    return (
        f"a batch may wait {show_duration(wait)}, a publish may take {show_duration(objective)}",
        "shorten producer.batch.time, or raise objectives.publish_p99",
    )


@rule(
    "effect-tail-below-objective",
    "warning",
    "delivery.effect_tail",
    "The longest effect is declared shorter than the 99th percentile that is aimed at.",
)
def _tail(contract: Contract, _: Capabilities | None) -> Told:
    tail, objective = contract.delivery.effect_tail, contract.objectives.effect_p99
    if objective is None or tail >= objective:
        return None
    return (
        f"effect_tail (p99.9) is {show_duration(tail)}, effect_p99 is {show_duration(objective)}",
        "raise delivery.effect_tail, or lower objectives.effect_p99",
    )
