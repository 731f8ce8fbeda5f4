"""Attempts, waits and owners of what cannot be settled."""

from __future__ import annotations

import math

from settled.contract.model import Backoff, Contract
from settled.contract.rules.rule import Told, rule
from settled.contract.units import show_duration
from settled.engine import Capabilities


@rule("quarantine-without-owner", "error", "poison.owner", "Nobody answers for records that cannot be settled.")
def _owner(contract: Contract, _: Capabilities | None) -> Told:
    if contract.poison.owner is not None or contract.transport.form == "notification":  # nothing is quarantined
        return None
    return "poison.owner is not stated", "name a team or a person, e.g. owner: orders-oncall"


def waits(backoff: Backoff, retries: int) -> float:
    """The longest that so many retries may wait in all, in seconds."""
    first, factor, most = min(backoff.first, backoff.most), backoff.factor, backoff.most
    if factor == 1.0:
        return first * retries
    growing = min(retries, max(0, math.ceil(math.log(most / first) / math.log(factor))))
    return first * (factor**growing - 1) / (factor - 1) + most * (retries - growing)


@rule(
    "deadline-shorter-than-backoff",
    "error",
    "poison.deadline",
    "The waits between the attempts may take longer than the deadline, so that some are never made.",
)
def _deadline(contract: Contract, _: Capabilities | None) -> Told:
    poison = contract.poison
    attempts = max(poison.attempts.defect, poison.attempts.transient or 1, poison.attempts.worker_lost)
    total = round(waits(poison.backoff, attempts - 1), 6)
    if total <= poison.deadline:
        return None
    return (
        f"{attempts} attempts may wait {show_duration(total)} in all, the deadline is {show_duration(poison.deadline)}",
        "raise poison.deadline, or lower poison.attempts or poison.backoff",
    )


@rule("backoff-first-above-most", "error", "poison.backoff.first", "The first wait is above the longest one.")
def _backoff(contract: Contract, _: Capabilities | None) -> Told:
    first, most = contract.poison.backoff.first, contract.poison.backoff.most
    if first <= most:
        return None
    return f"first is {show_duration(first)}, most is {show_duration(most)}", "lower first, or raise most"


@rule("class-listed-twice", "error", "poison.classes", "One exception type is in two classes of failure.")
def _classes(contract: Contract, _: Capabilities | None) -> Told:
    classes = contract.poison.classes
    listed = [*set(classes.transient), *set(classes.permanent), *set(classes.defect)]
    twice = sorted({name for name in listed if listed.count(name) > 1})
    if not twice:
        return None
    return f"in more than one class: {', '.join(twice)}", "leave each type in the one class that is meant"


@rule("call-listed-twice", "error", "external", "One call outside the transaction has two policies.")
def _calls(contract: Contract, _: Capabilities | None) -> Told:
    calls = contract.external
    listed = [*set(calls.repeat), *set(calls.reconcile), *set(calls.quarantine)]
    twice = sorted({name for name in listed if listed.count(name) > 1})
    if not twice:
        return None
    return f"under more than one policy: {', '.join(twice)}", "leave each call under the one policy that is meant"
