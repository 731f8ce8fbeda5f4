"""What a notification may promise: a hint has no authority, and may be lost."""

from __future__ import annotations

from settled.contract.model import HINTS_KEPT_S, Contract
from settled.contract.rules.rule import Told, rule
from settled.contract.units import show_duration
from settled.engine import Capabilities

LONG_S = 86_400.0


@rule("hints-lost-under-mode", "error", "delivery.mode", "Hints are lost with the reader that dies, whatever the mode.")
def _mode(contract: Contract, _: Capabilities | None) -> Told:
    if contract.transport.form != "notification" or contract.delivery.mode == "at-most-once":
        return None
    return (
        f"form is notification, the mode is {contract.delivery.mode}",
        "leave delivery.mode out (a notification is at-most-once), or choose the form log",
    )


@rule(
    "hint-without-version",
    "warning",
    "transport.version",
    "An older hint of a key cannot be told from a newer one.",
)
def _version(contract: Contract, _: Capabilities | None) -> Told:
    if contract.transport.form != "notification" or contract.transport.version is not None:
        return None
    return "form is notification, transport.version is null", "name the field that rises per key in transport.version"


@rule("hints-kept-long", "warning", "retention.age", "Nobody reads hints that passed, and the log keeps them.")
def _kept(contract: Contract, _: Capabilities | None) -> Told:
    age = contract.retention.age
    if contract.transport.form != "notification" or (age is not None and age <= LONG_S):
        return None
    kept = "for ever" if age is None else show_duration(age)
    return f"hints are kept {kept}", f"leave retention.age out ({show_duration(HINTS_KEPT_S)}), or shorten it"
