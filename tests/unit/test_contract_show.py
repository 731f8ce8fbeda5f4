"""What is in force, as YAML that loads back."""

from __future__ import annotations

from pathlib import Path

from contract_values import contracts
from hypothesis import HealthCheck, given, settings

from settled.contract.load import load, loads
from settled.contract.model import Contract

MERCURY = Path(__file__).parents[2] / "examples" / "mercury" / "contract.yaml"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(contracts())
def test_any_contract_shown_loads_back_as_itself(contract: Contract) -> None:
    assert loads(contract.show())[0] == contract


def test_the_worked_example_shown_loads_back_as_itself() -> None:
    contract = load(MERCURY)
    assert loads(contract.show())[0] == contract


def test_lines_that_hold_a_default_say_so_and_no_others() -> None:
    shown = loads("name: x\nversion: 3\ndelivery: {lease: 20s}\neffect: {identity: [a, b c]}\n")[0].show()
    stated = [line.strip() for line in shown.splitlines() if not line.endswith(":") and not line.endswith("# default")]
    assert stated == ["name: x", "version: 3", 'identity: [a, "b c"]', "lease: 20s"]
    assert "  group: x-v3  # default\n" in shown
    assert "    bytes: 600kB  # default\n" in shown
