"""Live traffic, headroom and replay against what the effect store bears."""

from __future__ import annotations

from settled.contract.model import Contract
from settled.contract.rules.rule import Told, rule
from settled.contract.units import show_duration, show_rate
from settled.engine import Capabilities


@rule(
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
        f"lower recovery.replay_rate by {show_rate(total - recovery.envelope)}, or raise an envelope that was measured",
    )


@rule(
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


@rule(
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
