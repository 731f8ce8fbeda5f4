"""What the contract asks of the engine against what the engine can keep."""

from __future__ import annotations

from settled.contract.model import Contract
from settled.contract.rules.rule import Told, rule
from settled.contract.units import show_size
from settled.engine import DURABILITIES, Capabilities


@rule("durability-not-kept", "error", "producer.durability", "The engine cannot keep the durability that is declared.")
def _durability(contract: Contract, engine: Capabilities | None) -> Told:
    if engine is None or contract.producer.durability in engine.durability:
        return None
    kept = [point for point in DURABILITIES if point in engine.durability]
    return (
        f"durability is {contract.producer.durability}, the engine keeps {', '.join(kept) or 'none'}",
        "declare one that it keeps, or run on an engine that keeps this one (committed needs replication)",
    )


@rule(
    "durability-below-mode",
    "warning",
    "producer.durability",
    "A power cut may take accepted records, whatever the delivery mode promises of the rest.",
)
def _memory(contract: Contract, _: Capabilities | None) -> Told:
    if contract.producer.durability != "memory" or contract.delivery.mode == "at-most-once":
        return None
    return f"durability is memory, the mode is {contract.delivery.mode}", "declare durability: local or committed"


@rule(
    "replicas-below-durability",
    "error",
    "transport.min_isr",
    "A record counts as committed, and the loss of one copy may take it.",
)
def _replicas(contract: Contract, _: Capabilities | None) -> Told:
    copies, held = contract.transport.replicas, contract.transport.min_isr
    few = [f"{name} is {count}" for name, count in (("replicas", copies), ("min_isr", held)) if count == 1]
    if contract.producer.durability != "committed" or not few:
        return None
    return (
        f"durability is committed, {' and '.join(few)}",
        "set transport.replicas: 3 and min_isr: 2, or leave both out; with a single broker for development declare "
        "durability: memory",
    )


@rule("min-isr-above-replicas", "error", "transport.min_isr", "More copies must hold a record than there are.")
def _min_isr(contract: Contract, _: Capabilities | None) -> Told:
    copies, held = contract.transport.replicas, contract.transport.min_isr
    if copies is None or held is None or held <= copies:
        return None
    return f"min_isr is {held}, replicas is {copies}", "set min_isr to replicas - 1, and to no more than replicas"


@rule(
    "min-isr-equals-replicas",
    "warning",
    "transport.min_isr",
    "While one copy is away nothing is accepted: a broker that restarts stops all publishing.",
)
def _no_spare(contract: Contract, _: Capabilities | None) -> Told:
    copies, held = contract.transport.replicas, contract.transport.min_isr
    if copies is None or copies == 1 or held != copies:
        return None
    return f"min_isr and replicas are both {copies}", f"set min_isr: {copies - 1}, or one replica more"


@rule(
    "at-most-once-not-kept",
    "error",
    "delivery.mode",
    "A record that was given up before its handler ran comes again under another number, and runs again.",
)
def _at_most_once(contract: Contract, engine: Capabilities | None) -> Told:
    if engine is None or not engine.renumbers or contract.delivery.mode != "at-most-once":
        return None
    return (
        "mode is at-most-once, and the engine hands out again what was not acknowledged when its reader died",
        "declare effectively-once or at-least-once, or run on an engine with a log",
    )


@rule("form-not-kept", "error", "transport.form", "The engine does not offer the transport form that is declared.")
def _form(contract: Contract, engine: Capabilities | None) -> Told:
    if engine is None or contract.transport.form in engine.forms:
        return None
    return (
        f"form is {contract.transport.form}, the engine offers {', '.join(sorted(engine.forms))}",
        "declare a form that it offers, or run on another engine",
    )


@rule("compaction-not-kept", "error", "retention.compact", "The engine cannot keep the newest record of each key only.")
def _compaction(contract: Contract, engine: Capabilities | None) -> Told:
    if engine is None or not contract.retention.compact or engine.compaction:
        return None
    return "retention.compact is true, the engine does not compact", "set compact: false, or run on another engine"


@rule(
    "compaction-passes-groups",
    "error",
    "retention.pass_groups",
    "The brokers compact without looking at groups: one that is behind misses older records of a key.",
)
def _passing(contract: Contract, engine: Capabilities | None) -> Told:
    if engine is None or not contract.retention.compact or contract.retention.pass_groups or engine.maintains:
        return None
    return (
        "retention.compact is true, pass_groups is false, and brokers compact by themselves",
        "set pass_groups: true if the newest record of each key is all that a group needs, or compact: false",
    )


@rule("compaction-without-key", "error", "retention.compact", "Records are compacted by key, and have none.")
def _keyless(contract: Contract, _: Capabilities | None) -> Told:
    if not contract.retention.compact or contract.transport.key is not None:
        return None
    return "retention.compact is true, transport.key is null", "name the field in transport.key, or set compact: false"


@rule(
    "compaction-of-a-queue",
    "error",
    "retention.compact",
    "What is settled leaves a queue: there is nothing to compact.",
)
def _queue(contract: Contract, _: Capabilities | None) -> Told:
    if not contract.retention.compact or contract.transport.form != "queue":
        return None
    return "retention.compact is true, form is queue", "set compact: false, or choose the form log"


@rule(
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


@rule(
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
