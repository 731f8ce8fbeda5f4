"""settled quarantine: evidence without loss, frozen selections, redrives that apply once."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from cli_runs import APP, CONTRACT, Running, environment, orders, settled, started

from settled import App
from settled.operations.quarantine import redrive
from settled.store import Selection
from settled.stores.sqlite import SqliteStore

FAILING = APP.replace("@app.handler", "import pathlib\n\n\n@app.handler").replace(
    '    tx.execute("INSERT',
    '    if not pathlib.Path("ok").exists():\n        raise ValueError("no goods")\n    tx.execute("INSERT',
)
ONE_RUN = CONTRACT.replace("poison: {", "poison: {attempts: 1, eviction: {burst: 1000}, ")


def run(folder: Path) -> None:
    settled(folder, "run", "app.py", "--mode", "drain")


def until_settled(folder: Path) -> None:
    """Run a worker until nothing is asked for any more."""
    running = Running(folder, "run", "app.py")
    try:
        deadline = time.monotonic() + 40
        while entries(folder, "--state", "requested"):
            assert time.monotonic() < deadline
        assert running.end(15) == 0
    finally:
        running.close()


def entries(folder: Path, *arguments: object) -> list[Any]:
    found: list[Any] = settled(folder, "quarantine", "ls", *arguments).json["entries"]
    return found


def stock(folder: Path) -> list[Any]:
    connection = apsw.Connection(str(folder / "settled-effects.db"))
    try:
        return connection.execute("SELECT order_id, version FROM stock ORDER BY order_id, version").fetchall()
    finally:
        connection.close()


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Five orders in quarantine."""
    started(tmp_path, app_py=FAILING, contract_yaml=ONE_RUN, events_jsonl=orders(5))
    settled(tmp_path, "publish", "events.jsonl", "--id", "{key}", "--producer", "p")
    run(tmp_path)
    return tmp_path


def test_what_is_held_is_shown_with_its_evidence(shelf: Path) -> None:
    held = entries(shelf)
    assert [entry["state"] for entry in held] == ["held"] * 5
    assert {entry["failure"]["error"] for entry in held} == {"ValueError"}
    (group,) = settled(shelf, "quarantine", "groups").json["groups"]
    assert (group["count"], group["error"]) == (5, "ValueError")
    assert len(entries(shelf, "--group-of", group["fingerprint"])) == 5
    assert len(entries(shelf, "--id", "o-3")) == len(entries(shelf, held[0]["number"])) == 1
    assert entries(shelf, "--consumer", "other") == entries(shelf, "--topic", "other") == []
    shown = settled(shelf, "quarantine", "show", held[0]["number"]).json
    assert shown["record"]["value"]["text"].startswith('{"order_id"')
    assert shown["owner"] == "orders-oncall"
    settled(shelf, "quarantine", "note", held[0]["number"], "asked the supplier")
    assert any(
        "asked the supplier" in note for note in settled(shelf, "quarantine", "show", held[0]["number"]).json["notes"]
    )
    assert "quarantine: 5 held" in settled(shelf, "status", "-o", "table").out


def test_a_redrive_applies_once_and_a_second_says_so(shelf: Path) -> None:
    (entry,) = entries(shelf, "--id", "o-2")
    (shelf / "ok").touch()
    asked = settled(shelf, "quarantine", "redrive", "--id", "o-2", "--reason", "goods came", "--yes").json
    assert (asked["numbers"], asked["counts"]["requested"]) == ([entry["number"]], 1)
    until_settled(shelf)
    assert stock(shelf) == [("o-2", 1)]
    again = settled(shelf, "quarantine", "redrive", entry["number"], "--reason", "again", "--yes").json
    assert (again["counts"]["requested"], again["counts"]["settled"]) == (0, 1)
    assert [one["state"] for one in entries(shelf, "--id", "o-2", "--state", "all")] == ["settled"]


def test_nothing_happens_without_a_word(shelf: Path) -> None:
    settled(shelf, "quarantine", "redrive", code=2)
    settled(shelf, "quarantine", "redrive", "--all", "--yes", code=2)  # no reason
    told = settled(shelf, "quarantine", "redrive", "--all", "--reason", "why", code=3)
    assert "5 entries" in told.err
    planned = settled(shelf, "quarantine", "redrive", "--all", "--dry-run").json
    assert (len(planned["numbers"]), planned["counts"]) == (5, {})
    settled(shelf, "quarantine", "discard", "--all", "--reason", "why", code=3)
    settled(shelf, "quarantine", "redrive", "--all", "--reason", "why", "--yes", "--rate", "0/s", code=2)
    assert {entry["state"] for entry in entries(shelf)} == {"held"}


@pytest.mark.parametrize("arguments", [("999",), ("--id", "nosuch"), ("--group-of", "nosuch")])
def test_what_is_not_there_is_named(shelf: Path, arguments: tuple[str, ...]) -> None:
    for verb in ("redrive", "discard"):
        told = settled(shelf, "quarantine", verb, *arguments, "--reason", "why", "--yes", code=2)
        assert arguments[-1] in told.err
    assert "999" in settled(shelf, "quarantine", "show", 999, code=2).err
    assert "999" in settled(shelf, "quarantine", "note", 999, "text", code=2).err


def test_two_redrives_at_once_ask_once(shelf: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "settled",
        "quarantine",
        "redrive",
        "--all",
        "--reason",
        "r",
        "--yes",
        "-o",
        "json",
    ]
    both = [
        subprocess.Popen(command, cwd=shelf, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    counts = [json.loads(answer)["counts"] for answer in answers]
    assert sum(count["requested"] for count in counts) == 5
    assert sum(count["already_requested"] for count in counts) == 5
    (shelf / "ok").touch()
    until_settled(shelf)
    assert len(stock(shelf)) == len(set(stock(shelf))) == 5


def test_a_mark_that_is_gone_refuses_the_redrive(shelf: Path) -> None:
    connection = apsw.Connection(str(shelf / "settled-effects.db"))
    connection.execute("DELETE FROM settled_inbox WHERE event_id = 'o-1'")
    connection.close()
    told = settled(shelf, "quarantine", "redrive", "--all", "--reason", "r", "--yes", code=3)
    assert "o-1" in told.err
    assert {entry["state"] for entry in entries(shelf)} == {"held"}


def test_discarding_is_final_and_keeps_the_evidence(shelf: Path) -> None:
    (entry,) = entries(shelf, "--id", "o-4")
    done = settled(shelf, "quarantine", "discard", "--id", "o-4", "--reason", "cancelled", "--yes").json
    assert done["counts"] == {"discarded": 1, "not_held": 0}
    assert settled(shelf, "quarantine", "show", entry["number"]).json["state"] == "discarded"
    again = settled(shelf, "quarantine", "discard", entry["number"], "--reason", "cancelled", "--yes").json
    assert again["counts"] == {"discarded": 0, "not_held": 1}
    redriven = settled(shelf, "quarantine", "redrive", entry["number"], "--reason", "r", "--yes").json
    assert redriven["counts"]["discarded"] == 1


def test_what_is_parked_behind_a_head_goes_with_it(tmp_path: Path) -> None:
    park = ONE_RUN.replace("poison: {", "poison: {then: park, ")
    started(tmp_path, app_py=FAILING, contract_yaml=park, events_jsonl=orders(2, versions=3))
    settled(tmp_path, "publish", "events.jsonl", "--id", "{key}:{version}", "--producer", "p")
    run(tmp_path)
    held = {entry["record"]["id"]: entry for entry in entries(tmp_path)}
    assert {name for name, entry in held.items() if not entry["parked"]} == {"o-0:1", "o-1:1"}
    (tmp_path / "ok").touch()
    dropped = settled(tmp_path, "quarantine", "discard", "--id", "o-1:1", "--dry-run")
    assert "parked behind these and left" in dropped.err
    asked = settled(tmp_path, "quarantine", "redrive", "--id", "o-0:1", "--reason", "goods came", "--yes")
    assert "2 of them are parked behind" in asked.err
    assert sorted(asked.json["numbers"]) == sorted(held[f"o-0:{n}"]["number"] for n in (1, 2, 3))
    until_settled(tmp_path)
    assert stock(tmp_path) == [("o-0", 1), ("o-0", 2), ("o-0", 3)]


def test_the_rate_spreads_what_is_asked_for(shelf: Path) -> None:
    store = SqliteStore(f"sqlite:///{shelf}/settled-effects.db")
    waits: list[float] = []
    told: list[int] = []
    try:
        numbers = store.quarantine.select(Selection())
        counts = redrive(
            store.quarantine, numbers, reason="r", who="me", per_second=2, told=told.append, wait=waits.append
        )
    finally:
        store.close()
    assert counts["requested"] == 5
    assert (told, waits) == ([2, 4, 5], [1.0, 1.0])


def test_bytes_that_are_no_text_come_back_as_they_were(tmp_path: Path) -> None:
    started(tmp_path, app_py=FAILING.replace("record.key.decode()", "'x'"), contract_yaml=ONE_RUN)
    key, value = b"\x83\x00\xff", b"\x1b[2J" + bytes(range(256))
    url = f"sqlite:///{tmp_path}/settled-log.db"
    with App(tmp_path / "contract.yaml", engine=url, store=f"sqlite:///{tmp_path}/none.db") as app:
        app.publish(value, key=key, headers=[("h", None)], version=1)
    run(tmp_path)
    for env in ({}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}):
        record = settled(tmp_path, "quarantine", "show", 1, env=env).json["record"]
        assert base64.b64decode(record["value"]["base64"]) == value
        assert base64.b64decode(record["key"]["base64"]) == key
        assert record["headers"] == [["h", None]]
        table = settled(tmp_path, "quarantine", "show", 1, "-o", "table", env=env)
        assert b"\x1b" not in table.raw
        assert base64.b64encode(value).decode() in table.out
        assert "hex:8300ff" in settled(tmp_path, "quarantine", "ls", "-o", "table", env=env).out
