"""The rules that a contract is checked against, one function each: what contradicts itself, with the numbers and what
to change. A rule returns none when the contract keeps it. `check` runs them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import msgspec

from settled.contract.model import Backoff, Contract
from settled.contract.units import show_duration, show_rate, show_size
from settled.engine import Capabilities

Severity = Literal["error", "warning", "note"]
Told = tuple[str, str] | None  # message with the numbers, remedy
Test = Callable[[Contract, Capabilities | None], Told]


class Rule(msgspec.Struct, frozen=True):
    """`field` is where the contract is changed most likely; `meaning` says when the rule is broken."""

    name: str
    severity: Severity
    field: str
    meaning: str
    test: Test


RULES: list[Rule] = []


def _rule(name: str, severity: Severity, field: str, meaning: str) -> Callable[[Test], Test]:
    def keep(test: Test) -> Test:
        RULES.append(Rule(name, severity, field, meaning, test))
        return test

    return keep


def _marks(contract: Contract) -> float:
    """Seconds that inbox marks live; infinite where the question does not arise."""
    if contract.delivery.mode != "effectively-once" or contract.delivery.dedupe.horizon is None:
        return math.inf
    return contract.delivery.dedupe.horizon


# Marks against every source of redelivery


@_rule(
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


@_rule(
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


@_rule(
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


@_rule(
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


@_rule(
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


# Time


@_rule(
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


@_rule(
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


@_rule(
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


@_rule(
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


@_rule(
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


# Keys and order


@_rule("ordering-without-key", "error", "delivery.ordering", "Order by key is asked for, and records have no key.")
def _ordering(contract: Contract, _: Capabilities | None) -> Told:
    if contract.delivery.ordering != "key" or contract.transport.key is not None:
        return None
    return "delivery.ordering is key, transport.key is null", "name the field in transport.key, or set ordering: none"


@_rule("version-without-key", "error", "transport.version", "Versions rise per key, and records have no key.")
def _version(contract: Contract, _: Capabilities | None) -> Told:
    if contract.transport.version is None or contract.transport.key is not None:
        return None
    return (
        f"transport.version is {contract.transport.version}, transport.key is null",
        "name the field that the version belongs to in transport.key, or remove transport.version",
    )


@_rule("park-without-ordering", "error", "poison.then", "Parking holds a key's later records, and no order is kept.")
def _park(contract: Contract, _: Capabilities | None) -> Told:
    if contract.poison.then != "park" or contract.delivery.ordering == "key":
        return None
    return "poison.then is park, delivery.ordering is none", "set delivery.ordering: key, or poison.then: continue"


@_rule(
    "effect-identity-empty",
    "error",
    "effect.identity",
    "An effect is named, and nothing says when two of them are the same one.",
)
def _identity(contract: Contract, _: Capabilities | None) -> Told:
    if contract.effect.name is None or contract.effect.identity:
        return None
    return (
        f"effect.name is {contract.effect.name}, effect.identity is empty",
        "list the fields that make it one effect, e.g. identity: [order_id, version]",
    )


# Room


@_rule(
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


@_rule(
    "group-above-in-flight", "error", "delivery.group_size", "A transaction could settle more than may be in flight."
)
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


@_rule(
    "concurrency-above-in-flight",
    "error",
    "delivery.concurrency",
    "More effects are to run side by side than records may be in flight.",
)
def _concurrency(contract: Contract, _: Capabilities | None) -> Told:
    effects, held = contract.delivery.concurrency, contract.delivery.in_flight.records
    if effects <= held:
        return None
    return f"{effects} effects side by side, {held} records in flight", "lower delivery.concurrency"


@_rule(
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


@_rule(
    "more-consumers-than-partitions",
    "error",
    "delivery.consumers",
    "A partition has one owner, so the consumers beyond the partitions stay idle.",
)
def _consumers(contract: Contract, _: Capabilities | None) -> Told:
    consumers, partitions = contract.delivery.consumers, contract.transport.partitions
    if consumers <= partitions:
        return None
    return (
        f"{consumers} consumers for {partitions} partitions: {consumers - partitions} would stay idle",
        f"lower delivery.consumers to {partitions}, or choose more partitions before the topic is made",
    )


# Failure


@_rule("quarantine-without-owner", "error", "poison.owner", "Nobody answers for records that cannot be settled.")
def _owner(contract: Contract, _: Capabilities | None) -> Told:
    if contract.poison.owner is not None:
        return None
    return "poison.owner is not stated", "name a team or a person, e.g. owner: orders-oncall"


def waits(backoff: Backoff, retries: int) -> float:
    """The longest that so many retries may wait in all, in seconds."""
    first, factor, most = min(backoff.first, backoff.most), backoff.factor, backoff.most
    if factor == 1.0:
        return first * retries
    growing = min(retries, max(0, math.ceil(math.log(most / first) / math.log(factor))))
    return first * (factor**growing - 1) / (factor - 1) + most * (retries - growing)


@_rule(
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


@_rule("backoff-first-above-most", "error", "poison.backoff.first", "The first wait is above the longest one.")
def _backoff(contract: Contract, _: Capabilities | None) -> Told:
    first, most = contract.poison.backoff.first, contract.poison.backoff.most
    if first <= most:
        return None
    return f"first is {show_duration(first)}, most is {show_duration(most)}", "lower first, or raise most"


@_rule("class-listed-twice", "error", "poison.classes", "One exception type is in two classes of failure.")
def _classes(contract: Contract, _: Capabilities | None) -> Told:
    classes = contract.poison.classes
    listed = [*set(classes.transient), *set(classes.permanent), *set(classes.defect)]
    twice = sorted({name for name in listed if listed.count(name) > 1})
    if not twice:
        return None
    return f"in more than one class: {', '.join(twice)}", "leave each type in the one class that is meant"


# Rates


@_rule(
    "envelope-exceeded",
    "error",
    "recovery.envelope",
    "Live traffic, headroom and replay together are more than the effect store bears.",
)
def _envelope(contract: Contract, _: Capabilities | None) -> Told:
    recovery = contract.recovery
    parts = {"live": recovery.live, "headroom": recovery.headroom, "replay": recovery.replay_rate}
    total = sum(part or 0.0 for part in parts.values())
    if recovery.envelope is None or total <= recovery.envelope * (1 + 1e-9):
        return None
    sums = " + ".join(f"{name} {show_rate(part)}" for name, part in parts.items() if part is not None)
    return (
        f"{sums} = {show_rate(total)}, the envelope is {show_rate(recovery.envelope)}",
        f"lower recovery.replay_rate by {show_rate(total - recovery.envelope)}, or raise the envelope if it was measured",
    )


@_rule(
    "replay-rate-above-envelope",
    "error",
    "recovery.replay_rate",
    "A replay alone is more than the effect store bears.",
)
def _replay_rate(contract: Contract, _: Capabilities | None) -> Told:
    rate, envelope = contract.recovery.replay_rate, contract.recovery.envelope
    if rate is None or envelope is None or rate <= envelope:
        return None
    return f"replay {show_rate(rate)}, envelope {show_rate(envelope)}", "lower recovery.replay_rate"


@_rule(
    "abort-within-objective",
    "warning",
    "recovery.abort",
    "A replay stops at a value that counts as good service.",
)
def _abort(contract: Contract, _: Capabilities | None) -> Told:
    for abort in contract.recovery.abort:
        objective = getattr(contract.objectives, abort.signal)
        if objective is not None and abort.above < objective:
            return (
                f"a replay stops at {abort.signal} {show_duration(abort.above)}, the objective is "
                f"{show_duration(objective)}",
                "raise the abort signal above the objective",
            )
    return None


# What the engine can keep


@_rule("durability-not-kept", "error", "producer.durability", "The engine cannot keep the durability that is declared.")
def _durability(contract: Contract, engine: Capabilities | None) -> Told:
    if engine is None or contract.producer.durability in engine.durability:
        return None
    kept = [point for point in ("memory", "local", "committed") if point in engine.durability]
    return (
        f"durability is {contract.producer.durability}, the engine keeps {', '.join(kept) or 'none'}",
        "declare one that it keeps, or run on an engine that keeps this one (committed needs replication)",
    )


@_rule(
    "durability-below-mode",
    "warning",
    "producer.durability",
    "A power cut may take accepted records, whatever the delivery mode promises of the rest.",
)
def _memory(contract: Contract, _: Capabilities | None) -> Told:
    if contract.producer.durability != "memory" or contract.delivery.mode == "at-most-once":
        return None
    return f"durability is memory, the mode is {contract.delivery.mode}", "declare durability: local or committed"


@_rule("form-not-kept", "error", "transport.form", "The engine does not offer the transport form that is declared.")
def _form(contract: Contract, engine: Capabilities | None) -> Told:
    if engine is None or contract.transport.form in engine.forms:
        return None
    return (
        f"form is {contract.transport.form}, the engine offers {', '.join(sorted(engine.forms))}",
        "declare a form that it offers, or run on another engine",
    )


@_rule(
    "batch-above-record-limit",
    "error",
    "producer.batch.bytes",
    "A batch may be larger than the largest write that the engine takes.",
)
def _batch_limit(contract: Contract, engine: Capabilities | None) -> Told:
    batch = contract.producer.batch.bytes
    if engine is None or batch <= engine.max_message_bytes:
        return None
    return (
        f"a batch has up to {show_size(batch)}, the engine takes {show_size(engine.max_message_bytes)}",
        "lower producer.batch.bytes, or raise the engine's limit",
    )


@_rule(
    "record-limit-above-engine",
    "error",
    "transport.record_limit",
    "Records are promised room that the engine does not give.",
)
def _record_limit(contract: Contract, engine: Capabilities | None) -> Told:
    limit = contract.transport.record_limit
    if engine is None or limit is None or limit <= engine.max_message_bytes:
        return None
    return (
        f"the record limit is {show_size(limit)}, the engine takes {show_size(engine.max_message_bytes)}",
        "lower transport.record_limit, or raise the engine's limit",
    )
