"""settled contract explain: what a contract means on an engine, without opening one."""

from __future__ import annotations

from pathlib import Path

from cli_runs import settled, started


def test_it_explains_a_contract_and_opens_nothing(tmp_path: Path) -> None:
    folder = started(tmp_path)
    before = sorted(path.name for path in folder.iterdir())
    found = settled(folder, "contract", "explain", "contract.yaml", "-o", "json").json
    assert (found["form"], found["engine"], found["name"]) == ("log", "sqlite", "OrderPlaced")
    assert all(fact["told"] for fact in found["facts"])
    assert "stock-v1" in str(found["facts"])
    text = settled(folder, "contract", "explain", "app.py", "--engine", "kafka://nowhere:1", "-o", "table").out
    assert "Who owns a record" in text
    assert "enforced by: the brokers, which wait for no group" in text
    lines = settled(folder, "contract", "explain", "contract.yaml", "-o", "jsonl").lines
    assert {line["about"] for line in lines} >= {"owner", "order", "losses"}
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before


def test_what_the_engine_cannot_keep_is_told_with_the_remedy(tmp_path: Path) -> None:
    folder = started(tmp_path)
    folder.joinpath("contract.yaml").write_text("name: x\ntransport: {form: queue}\n")
    told = settled(folder, "contract", "explain", "contract.yaml", "--engine", "kafka://nowhere:1", code=2).err
    assert "form is queue" in told
    assert "lock" in told
    assert "hint: " in told
    settled(folder, "contract", "explain", "contract.yaml", "--engine", "carrier-pigeon://x", code=2)
    settled(folder, "contract", "explain", "nothing.yaml", code=2)
