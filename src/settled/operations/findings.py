"""What is found in a contract: for `settled contract check`, and before a worker starts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from settled.contract.build import Places
from settled.contract.check import WORKER_MAY_START, Finding, check, not_enforced
from settled.contract.load import ContractErrors
from settled.contract.model import Contract
from settled.engine import Capabilities
from settled.errors import ContractError


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A finding and where its field stands in the file; no line: it is a default, or it came from keywords."""

    rule: str
    severity: str
    field: str
    message: str
    remedy: str
    line: int | None = None
    column: int | None = None


def findings(
    contract: Contract, capabilities: Capabilities | None = None, places: Places | None = None
) -> list[Placed]:
    """All that is found, errors first, then what is declared and not enforced."""
    told = [*check(contract, capabilities=capabilities), *not_enforced(contract)]
    return [_placed(finding, places or {}) for finding in told]


def require_startable(contract: Contract, capabilities: Capabilities) -> None:
    """Raises ContractError (all of them) when the contract breaks a rule that a worker cannot start with."""
    faults = [
        ContractError(finding.message, hint=finding.remedy, field=finding.field, source=f"rule {finding.rule}")
        for finding in check(contract, capabilities=capabilities)
        if finding.severity == "error" and finding.rule not in WORKER_MAY_START
    ]
    if faults:
        raise ContractErrors(faults)


def _placed(finding: Finding, places: Mapping[str, tuple[int | None, int | None]]) -> Placed:
    line, column = places.get(finding.field, (None, None))
    return Placed(**msgspec.structs.asdict(finding), line=line, column=column)
