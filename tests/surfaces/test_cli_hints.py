"""settled run on a notification: handlers run for hints, the sweep repairs, signals end it in good order."""

from __future__ import annotations

import signal
from pathlib import Path

import apsw
import pytest
from cli_runs import Running, settled, started

CONTRACT = """\
name: OrderChanged
transport: {form: notification, topic: changed, partitions: 1, key: order_id, version: version}
"""

APP = """\
from settled import App

app = App("contract.yaml")


@app.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS seen (what TEXT, version INTEGER)")


@app.handler
def refresh(tx, hint):
    tx.execute("INSERT INTO seen VALUES (?, ?)", [hint.key.decode(), hint.version])


@app.sweep(every="1h")
def repair(tx):
    tx.execute("INSERT INTO seen VALUES ('swept', 0)")
"""


def seen(folder: Path) -> list[tuple[str, int]]:
    connection = apsw.Connection(str(folder / "settled-effects.db"))
    found = connection.execute("SELECT what, version FROM seen").fetchall()
    connection.close()
    return [(str(what), int(version)) for what, version in found]  # type: ignore[arg-type]


def test_run_works_on_hints_until_it_is_told_to_stop(tmp_path: Path) -> None:
    folder = started(tmp_path, contract_yaml=CONTRACT, app_py=APP)
    running = Running(folder, "run", "app.py")
    running.wait_for(lambda line: ": idle" in line)
    folder.joinpath("changed.jsonl").write_text('{"order_id": "o-1", "version": 7}\n')
    settled(folder, "publish", "changed.jsonl", "--contract", "contract.yaml")
    folder.joinpath("more.jsonl").write_text('{"order_id": "o-1", "version": 6}\n{"order_id": "o-2", "version": 1}\n')
    settled(folder, "publish", "more.jsonl", "--contract", "contract.yaml")
    from waiting import until

    until(lambda: ("o-2", 1) in seen(folder))
    assert running.end(signal.SIGTERM) == 0
    assert seen(folder) == [("swept", 0), ("o-1", 7), ("o-2", 1)]
    assert any("2 applied" in line for line in running.said)


def test_a_drain_sweeps_once(tmp_path: Path) -> None:
    folder = started(tmp_path, contract_yaml=CONTRACT, app_py=APP)
    settled(folder, "run", "app.py", "--mode", "drain")
    assert seen(folder) == [("swept", 0)]


@pytest.mark.parametrize(
    ("app", "contract", "word"),
    [
        (APP.replace("@app.sweep", "@(lambda every: lambda f: f)"), CONTRACT, "app.sweep(None)"),
        (APP.replace("@app.handler", ""), CONTRACT, "no handler"),
        (APP, CONTRACT + "delivery: {mode: effectively-once}\n", "hints-lost-under-mode"),
    ],
)
def test_what_is_missing_is_told_before_anything_runs(tmp_path: Path, app: str, contract: str, word: str) -> None:
    folder = started(tmp_path, contract_yaml=contract, app_py=app)
    assert word in settled(folder, "run", "app.py", "--mode", "drain", code=2).err


def test_verbs_that_count_what_is_settled_say_why_they_cannot(tmp_path: Path) -> None:
    folder = started(tmp_path, contract_yaml=CONTRACT, app_py=APP)
    settled(folder, "run", "app.py", "--mode", "drain")
    assert "no progress" in settled(folder, "status", "--contract", "contract.yaml", code=2).err
    assert "nothing to count" in settled(folder, "drill", "app.py", "--kills", "1", code=2).err


def test_the_contract_check_names_what_a_notification_lacks(tmp_path: Path) -> None:
    folder = started(tmp_path, contract_yaml=CONTRACT, app_py=APP)
    assert settled(folder, "contract", "check", "contract.yaml").json["findings"] == []
    folder.joinpath("contract.yaml").write_text(CONTRACT.replace(", version: version", ""))
    found = settled(folder, "contract", "check", "contract.yaml").json["findings"]
    assert [one["rule"] for one in found] == ["hint-without-version"]
