"""What the contract asks of the engine against what the engine can keep."""

from __future__ import annotations

from settled.contract.model import Contract
from settled.contract.rules.rule import Told, rule
from settled.contract.units import show_size
from settled.engine import Capabilities


@rule("durability-not-kept", "error", "producer.durability", "The engine cannot keep the durability that is declared.")
def _durability(contract: Contract, engine: Capabilities | None) -> Told:
    if engine is None or contract.producer.durability in engine.durability:
        return None
    kept = [point for point in ("memory", "local", "committed") if point in engine.durability]
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


@rule("form-not-kept", "error", "transport.form", "The engine does not offer the transport form that is declared.")
def _form(contract: Contract, engine: Capabilities | None) -> Told:
    if engine is None or contract.transport.form in engine.forms:
        return None
    return (
        f"form is {contract.transport.form}, the engine offers {', '.join(sorted(engine.forms))}",
        "declare a form that it offers, or run on another engine",
    )


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
