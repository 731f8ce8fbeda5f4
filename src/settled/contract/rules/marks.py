"""Marks outlive every source of redelivery: retention, replay, retries. Law 9 in numbers."""

from __future__ import annotations

import math

from settled.contract.model import Contract
from settled.contract.rules.rule import Told, rule
from settled.contract.units import show_duration
from settled.engine import Capabilities


def _marks(contract: Contract) -> float:
    """Seconds that inbox marks live; infinite where the question does not arise."""
    if contract.delivery.mode != "effectively-once" or contract.delivery.dedupe.horizon is None:
        return math.inf
    return contract.delivery.dedupe.horizon


@rule(
    "dedupe-shorter-than-retention",
    "error",
    "delivery.dedupe.horizon",
    "Marks go before the records do, so that a record could come again unrecognised.",
)
def _retention(contract: Contract, _: Capabilities | None) -> Told:
    marks, age = _marks(contract), contract.retention.age
    if marks == math.inf or (age is not None and marks >= age):
        return None
    kept = "for ever" if age is None else show_duration(age)
    remedy = (
        "set delivery.dedupe.horizon to null" if age is None else f"raise delivery.dedupe.horizon to {kept} or more"
    )
    return f"marks are kept {show_duration(marks)}, records {kept}", f"{remedy}, or shorten retention.age"


@rule(
    "dedupe-shorter-than-replay",
    "error",
    "delivery.dedupe.horizon",
    "A replay may reach further back than the marks, and would apply effects again.",
)
def _replay(contract: Contract, _: Capabilities | None) -> Told:
    marks, reach = _marks(contract), contract.recovery.replay_horizon
    if reach is None or marks >= reach:
        return None
    return (
        f"marks are kept {show_duration(marks)}, a replay may reach back {show_duration(reach)}",
        f"raise delivery.dedupe.horizon to {show_duration(reach)} or more, or shorten recovery.replay_horizon",
    )


@rule(
    "retry-deadline-above-dedupe-horizon",
    "error",
    "poison.deadline",
    "A record may still be retried when the marks of its time are gone.",
)
def _deadline_marks(contract: Contract, _: Capabilities | None) -> Told:
    marks, deadline = _marks(contract), contract.poison.deadline
    if deadline <= marks:
        return None
    return (
        f"retries go on for {show_duration(deadline)}, marks are kept {show_duration(marks)}",
        "shorten poison.deadline, or raise delivery.dedupe.horizon above it",
    )


@rule(
    "retry-deadline-above-retention",
    "warning",
    "poison.deadline",
    "A record may still be retried when retention removes it from the log.",
)
def _deadline_retention(contract: Contract, _: Capabilities | None) -> Told:
    age, deadline = contract.retention.age, contract.poison.deadline
    if age is None or deadline <= age:
        return None
    return (
        f"retries go on for {show_duration(deadline)}, records are kept {show_duration(age)}",
        "shorten poison.deadline, or raise retention.age above it",
    )


@rule(
    "replay-horizon-above-retention",
    "error",
    "recovery.replay_horizon",
    "A replay is promised of records that the log no longer holds.",
)
def _replay_retention(contract: Contract, _: Capabilities | None) -> Told:
    age, reach = contract.retention.age, contract.recovery.replay_horizon
    if age is None or reach is None or reach <= age:
        return None
    return (
        f"a replay may reach back {show_duration(reach)}, records are kept {show_duration(age)}",
        "shorten recovery.replay_horizon, or raise retention.age to it",
    )
