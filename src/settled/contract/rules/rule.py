"""A rule: a name, how grave, the field to change, and the test that a contract passes or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from settled.contract.model import Contract
from settled.engine import Capabilities

Severity = Literal["error", "warning", "note"]
Told = tuple[str, str] | None  # message with the numbers, remedy; none: the contract keeps the rule
Test = Callable[[Contract, Capabilities | None], Told]


class Rule(msgspec.Struct, frozen=True):
    """`field` is where the contract is changed most likely; `meaning` says what it is to break the rule."""

    name: str
    severity: Severity
    field: str
    meaning: str
    test: Test


RULES: list[Rule] = []  # filled by `rule` as the modules of this folder are imported


def rule(name: str, severity: Severity, field: str, meaning: str) -> Callable[[Test], Test]:
    """Make the function a rule."""

    def keep(test: Test) -> Test:
        RULES.append(Rule(name, severity, field, meaning, test))
        return test

    return keep
