"""What a contract means on an engine, refused where the engine does not keep its form."""

from __future__ import annotations

from settled.contract.check import check
from settled.contract.explain import Fact, explain
from settled.contract.model import Contract
from settled.engine import Capabilities
from settled.errors import Unsupported

REASONS = {  # engine and form: what it lacks, beyond the rule's own words
    ("kafka", "queue"): "the client's share consumer cannot extend its lock on a record that runs, and hands out "
    "nothing more while one does; a group on a log divides the work too, a partition at a time",
}


def explained(contract: Contract, engine: str, capabilities: Capabilities) -> list[Fact]:
    """The facts. Raises Unsupported for a form that the engine does not keep."""
    for finding in check(contract, capabilities=capabilities):
        if finding.rule == "form-not-kept":
            reason = REASONS.get((engine, contract.transport.form), "")
            raise Unsupported(
                f"{engine}: {finding.message}" + (f"; {reason}" if reason else ""),
                field=finding.field,
                value=contract.transport.form,
                source=f"rule {finding.rule}",
                hint=finding.remedy,
            )
    return explain(contract, engine, capabilities)
