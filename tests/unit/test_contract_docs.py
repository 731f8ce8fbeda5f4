"""docs/contract.md names every field with its default and where it is enforced, and every rule: no more, no less."""

from __future__ import annotations

import re
from pathlib import Path

import settled
from settled.contract.check import ENFORCED
from settled.contract.load import loads
from settled.contract.model import Contract
from settled.contract.rules import RULES
from settled.contract.shape import leaves

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in DOC.splitlines() if line.startswith("| `")]
FIELDS = {row[0].strip("`"): row for row in ROWS if len(row) == 5}
RULE_ROWS = {row[0].strip("`"): row for row in ROWS if len(row) == 3}


def test_the_documentation_lists_every_field_in_order() -> None:
    assert list(FIELDS) == [path for path, _ in leaves(Contract)]


def test_the_documented_defaults_are_the_models() -> None:
    shown = re.findall(r"^ *([\w-]+): (.+?)(?:  # default)?$", Contract(name="x").show(), re.MULTILINE)
    derived = {"name": "the topic", "transport.topic": "the name", "delivery.group": "`<name>-v<version>`"}
    for (path, row), (key, default) in zip(FIELDS.items(), shown, strict=True):
        assert path.rpartition(".")[2] == key
        assert row[3] == derived.get(path, f"`{default}`"), path


def test_the_documentation_says_where_each_field_is_enforced() -> None:
    for path, row in FIELDS.items():
        where = ENFORCED.get(path)
        assert row[4] == (f"`{where}`" if where else "not yet"), path


def test_the_documentation_lists_every_rule() -> None:
    assert {name: row[1:] for name, row in RULE_ROWS.items()} == {
        rule.name: [rule.severity, rule.meaning] for rule in RULES
    }


def test_the_example_in_the_documentation_loads() -> None:
    example = re.search(r"```yaml\n(.*?)```", DOC, re.DOTALL)
    assert example
    assert loads(example[1])[0].transport.topic == "orders"


def test_what_the_contract_enforces_itself_is_where_it_says() -> None:
    package = Path(settled.__file__).parent
    own = {where for where in ENFORCED.values() if where.startswith("contract/")}
    assert own
    assert [where for where in sorted(own) if not (package / where).is_file()] == []
