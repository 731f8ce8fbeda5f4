"""What people do with quarantined records: choose (frozen: what arrives later is not included), redrive, discard.

A redrive only asks: the worker that owns the partition runs the record through normal validation, its key's order and
the inbox, so that what succeeded before is not applied again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from settled.errors import ContractError
from settled.store import Quarantine, QuarantineEntry, Selection

ALL_STATES = ("held", "requested", "settled", "discarded")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that a verb would work on.

    numbers     frozen, oldest first; those behind a head included
    behind      of these: parked records taken along because the head of their key is redriven
    left        parked records that stay although the head of their key is discarded
    states      how many of them are in which state
    """

    numbers: list[int]
    behind: list[int]
    left: list[int]
    states: dict[str, int]
    groups: dict[str, int]  # by error class


def chosen(quarantine: Quarantine, selection: Selection) -> list[int]:
    """The numbers selected. Raises ContractError when something was named that is not there."""
    if selection.numbers:
        quarantine.entries(selection.numbers)  # names the first that is missing
    numbers = quarantine.select(selection)
    if not numbers and (selection.event_id is not None or selection.fingerprint is not None):
        named = selection.event_id if selection.event_id is not None else selection.fingerprint
        field = "--id" if selection.event_id is not None else "--group-of"
        anything = quarantine.select(msgspec.structs.replace(selection, states=()))
        if not anything:
            raise ContractError(
                f"nothing in quarantine is called {named!r}", field=field, value=named, hint="settled quarantine ls"
            )
    return numbers


def redrive_plan(quarantine: Quarantine, selection: Selection) -> Plan:
    """All that match in any state (what is not held is counted, not asked for again), and what is parked behind."""
    numbers = chosen(quarantine, msgspec.structs.replace(selection, states=selection.states or ALL_STATES))
    entries = quarantine.entries(numbers)
    heads = [entry for entry in entries if entry.state == "held" and not entry.parked]
    behind = sorted(set(_parked_behind(quarantine, heads)) - set(numbers))
    return _plan(quarantine, sorted({*numbers, *behind}), behind=behind)


def discard_plan(quarantine: Quarantine, selection: Selection) -> Plan:
    """All that match and are held."""
    states = ALL_STATES if selection.numbers else ("held",)
    numbers = chosen(quarantine, msgspec.structs.replace(selection, states=states))
    heads = [entry for entry in quarantine.entries(numbers) if entry.state == "held" and not entry.parked]
    return _plan(quarantine, numbers, left=sorted(set(_parked_behind(quarantine, heads)) - set(numbers)))


def redrive(
    quarantine: Quarantine,
    numbers: Sequence[int],
    *,
    reason: str,
    who: str,
    per_second: float | None = None,
    told: Callable[[int], None] = lambda done: None,
    wait: Callable[[float], object] = time.sleep,
) -> dict[str, int]:
    """Ask for the redrive of all numbers, at most `per_second` of them a second. Returns counts by what was found.

    Stopped midway, the same call goes on: what was asked for is counted as asked for. Raises Refused when a mark is
    gone (law 9).
    """
    counts = {"requested": 0, "already_requested": 0, "settled": 0, "discarded": 0}
    step = len(numbers) if per_second is None else max(1, math.floor(per_second))
    for start in range(0, len(numbers), step or 1):
        if start and per_second is not None:
            wait(step / per_second)
        for name, count in quarantine.request(numbers[start : start + step], reason=reason, who=who).items():
            counts[name] += count
        told(min(len(numbers), start + step))
    return counts


def _plan(quarantine: Quarantine, numbers: list[int], *, behind: Sequence[int] = (), left: Sequence[int] = ()) -> Plan:
    states: dict[str, int] = {}
    groups: dict[str, int] = {}
    for entry in quarantine.entries(numbers):
        states[entry.state] = states.get(entry.state, 0) + 1
        groups[entry.failure.error] = groups.get(entry.failure.error, 0) + 1
    return Plan(numbers=numbers, behind=list(behind), left=list(left), states=states, groups=groups)


def _parked_behind(quarantine: Quarantine, heads: Sequence[QuarantineEntry]) -> list[int]:
    """Held entries that are parked behind one of these."""
    first: dict[tuple[str, str, int, bytes | None], int] = {}
    for head in heads:
        lane = _lane(head)
        first[lane] = min(first.get(lane, head.record.offset), head.record.offset)
    found: list[int] = []
    for consumer, topic in {(lane[0], lane[1]) for lane in first}:
        held = quarantine.select(Selection(consumer=consumer, topic=topic))
        for entry in quarantine.entries(held):
            if entry.parked and entry.record.offset > first.get(_lane(entry), entry.record.offset):
                found.append(entry.number)
    return found


def _lane(entry: QuarantineEntry) -> tuple[str, str, int, bytes | None]:
    return entry.consumer, entry.record.topic, entry.record.partition, entry.record.key
