"""Each example runs as it is, twice, and prints what it says it prints: the second run changes nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from settled import connect
from settled.contract.check import check
from settled.contract.load import load
from settled.engines.sqlite import SqliteEngine

NEEDS = {"django": ("django",), "fastapi": ("fastapi", "httpx", "sqlalchemy", "aiosqlite")}
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("app.py"))
CONTRACTS = sorted((ROOT / "examples").rglob("contract.yaml"))


def test_there_are_examples():
    assert {path.parent.name for path in EXAMPLES} >= {"first", "mercury", "batch", "typed", "outbox", *NEEDS}
    assert {path.parent.name for path in EXAMPLES} >= {"cache", "rendering", "audit", "prices"}


def test_what_the_page_shows_of_contracts_is_theirs():
    page = (ROOT / "docs" / "choose-a-form.md").read_text()
    shown = re.findall(r"^```yaml file=(\S+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert {Path(name).parent.name for name, _ in shown} == {"cache", "rendering", "audit", "prices"}
    for name, excerpt in shown:
        lines = (ROOT / name).read_text().splitlines()
        assert [line for line in excerpt.splitlines() if line not in lines] == [], name


@pytest.mark.parametrize(
    ("name", "url"), [("SQLite", "sqlite:"), ("Kafka", "kafka:"), ("RabbitMQ", "rabbitmq://localhost")]
)
def test_the_page_says_which_engine_keeps_which_form(name: str, url: str):
    page = (ROOT / "docs" / "choose-a-form.md").read_text()
    (forms,) = re.findall(r"^\| \| (queue .*?) \|$", page, re.MULTILINE)
    (row,) = re.findall(rf"^\| {name} \| (.*?) \|$", page, re.MULTILINE)
    kept = {form for form, said in zip(forms.split(" | "), row.split(" | "), strict=True) if said.startswith("yes")}
    assert kept == {form.replace("pubsub", "pub/sub") for form in connect.kind(url)[1].forms}


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda path: path.parent.name)
def test_a_contract_keeps_all_rules_on_the_embedded_engine(contract: Path):
    assert check(load(contract), capabilities=SqliteEngine.capabilities) == []


@pytest.mark.parametrize("app", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_prints_what_is_expected(app: Path, tmp_path: Path):
    for library in NEEDS.get(app.parent.name, ()) if os.environ.get("CI") != "true" else ():
        pytest.importorskip(library)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-W", "error", str(app)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == (app.parent / "expected.txt").read_text()
