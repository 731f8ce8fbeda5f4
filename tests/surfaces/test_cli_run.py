"""settled init and run: what is written runs as it is; workers stop in good order, die, are started again."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest
from cli_runs import APP, CONTRACT, Running, orders, settled, started


def rows(folder: Path, sql: str) -> list[Any]:
    """From the effect database, read by other means than the command."""
    connection = apsw.Connection(str(folder / "settled-effects.db"))
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_what_init_writes_runs_as_its_readme_says(tmp_path: Path) -> None:
    settled(tmp_path, "init", "shop")
    folder = tmp_path / "shop"
    commands = re.search(r"```sh\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert commands
    lines = [shlex.split(line) for line in commands[1].splitlines()]
    assert [line[0] for line in lines] == ["settled"] * 4
    *_, ran, status = [settled(folder, *line[1:]) for line in lines]
    assert "9 applied, 1 duplicate" in ran.err
    (consumer,) = status.json["consumers"]
    assert (consumer["state"], consumer["lag_records"], consumer["outcomes"]) == ("settled", 0, {"applied": 9})
    assert rows(folder, "SELECT count(*), count(DISTINCT order_id || version) FROM reservation") == [(9, 9)]
    settled(tmp_path, "init", "shop", code=3)


@pytest.mark.parametrize(
    ("app", "spec", "word"),
    [
        (None, "missing.py", "no file"),
        (None, "no_such_module_here", "no module"),
        (None, "a..b", "module"),
        ("def broken(:\n", "app.py", "app.py:1: syntax error"),
        ("import no_such_thing_here\n", "app.py", "no_such_thing_here"),
        ("x = 1 / 0\n", "app.py", "app.py:1: ZeroDivisionError"),
        ("x = 1\n", "app.py", "holds no App"),
        ("x = 1\n", "app.py:x", "is no App"),
        (APP, "app.py:other", "app.py:app"),
        (APP + "\nsecond = App(topic='b')\ndel app; first = App(topic='a')\n", "app.py", "several apps"),
        (APP.replace("contract.yaml", "none.yaml"), "app.py", "none.yaml"),
        (APP.replace("@app.handler", ""), "app.py", "no handler"),
        (APP.replace("CREATE TABLE IF", "CREATE TABEL IF"), "app.py", "app.py:8: SQLError"),
    ],
)
def test_mistakes_in_the_app_are_told_as_what_they_are(tmp_path: Path, app: str | None, spec: str, word: str) -> None:
    started(tmp_path, **({} if app is None else {"app_py": app}))
    assert word in settled(tmp_path, "run", spec, "--mode", "drain", code=2).err


def test_an_app_by_other_names(tmp_path: Path) -> None:
    started(tmp_path, events_jsonl=orders(2), named_py=APP.replace("app ", "shop ").replace("@app", "@shop"))
    settled(tmp_path, "publish", "events.jsonl", "--contract", "named:shop")
    assert "2 applied" in settled(tmp_path, "run", "named", "--mode", "drain").err
    assert "nothing" in settled(tmp_path, "run", "named.py:shop", "--mode", "drain").err


def test_a_contract_that_cannot_hold_is_refused_before_the_first_record(tmp_path: Path) -> None:
    lease = CONTRACT.replace("lease: 5s", "lease: 1s, effect_tail: 2s")
    started(tmp_path, contract_yaml=lease, events_jsonl=orders(1))
    settled(tmp_path, "publish", "events.jsonl")
    told = settled(tmp_path, "run", "app.py", "--mode", "drain", code=2).err
    assert "rule " in told
    assert "hint:" in told
    settled(tmp_path, "contract", "check", "contract.yaml", code=1)
    settled(tmp_path, "run", "app.py", "--mode", "drain", "--workers", 2, code=2)
    owner = CONTRACT.replace("poison: {owner: orders-oncall}", "")  # an error for people, not for a worker
    started(tmp_path, contract_yaml=owner)
    settled(tmp_path, "contract", "check", "contract.yaml", code=1)
    assert "1 applied" in settled(tmp_path, "run", "app.py", "--mode", "drain").err


def test_workers_drain_and_end(tmp_path: Path) -> None:
    started(tmp_path, events_jsonl=orders(300, versions=2))
    settled(tmp_path, "publish", "events.jsonl")
    settled(tmp_path, "run", "app.py", "--workers", 2, "--mode", "drain")
    assert rows(tmp_path, "SELECT count(*), count(DISTINCT order_id || '/' || version) FROM stock") == [(600, 600)]


def test_a_dead_worker_is_started_again_and_all_stop_in_good_order(tmp_path: Path) -> None:
    started(tmp_path, events_jsonl=orders(50))
    running = Running(tmp_path, "run", "app.py", "--workers", 2)
    try:
        running.wait_for(lambda line: "worker-1: running" in line or "worker-2: running" in line)
        settled(tmp_path, "publish", "events.jsonl")
        workers = settled(tmp_path, "status").json["consumers"][0]["workers"]
        os.kill(workers[0]["pid"], signal.SIGKILL)
        running.wait_for(lambda line: "SIGKILL" in line and "started again" in line)
        running.wait_for(lambda line: running.said.count(f"{workers[0]['member']}: starting\n") > 1)
        assert running.end(signal.SIGTERM) == 0
    finally:
        running.close()
    assert sum("settled here" in line for line in running.said) == 2  # both said goodbye
    settled(tmp_path, "run", "app.py", "--mode", "drain")
    assert rows(tmp_path, "SELECT count(*), count(DISTINCT order_id) FROM stock") == [(50, 50)]


def test_workers_stop_when_their_parent_is_gone(tmp_path: Path) -> None:
    started(tmp_path)
    running = Running(tmp_path, "run", "app.py", "--workers", 2)
    try:
        running.wait_for(lambda line: ": starting" in line)
        running.end(signal.SIGKILL)  # returns when the children have closed their side of standard error, too
    finally:
        running.close()
    assert any("stopped" in line or "settled here" in line for line in running.said)


def test_one_member_more_than_partitions_says_that_it_is_idle(tmp_path: Path) -> None:
    started(tmp_path, contract_yaml=CONTRACT.replace("partitions: 3", "partitions: 1"), events_jsonl=orders(1))
    settled(tmp_path, "publish", "events.jsonl")
    first, second = (Running(tmp_path, "run", "app.py", "--member", name) for name in ("one", "two"))
    try:
        told = [
            each.wait_for(lambda line: ": idle: no partition" in line or ": running" in line)
            for each in (first, second)
        ]
        assert len([line for line in told if "idle" in line]) == 1
        (group,) = settled(tmp_path, "group", "ls").json["groups"]
        assert (group["members"], group["idle_members"]) == (2, 1)
        assert [each.end(signal.SIGTERM) for each in (first, second)] == [0, 0]
    finally:
        first.close()
        second.close()


def test_a_failing_handler_is_told_once_for_each_kind(tmp_path: Path) -> None:
    failing = APP.replace('    tx.execute("INSERT', "    raise ValueError('no such goods')\n    tx.execute(\"INSERT")
    quick = CONTRACT.replace("poison: {", "poison: {attempts: 1, ")
    started(tmp_path, app_py=failing, contract_yaml=quick, events_jsonl=orders(3))
    settled(tmp_path, "publish", "events.jsonl")
    told = settled(tmp_path, "run", "app.py", "--mode", "drain").err
    assert told.count("ValueError: no such goods") == 1
    assert "3 quarantined" in told


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_stops_at_once_and_loses_nothing(tmp_path: Path, workers: int) -> None:
    slow = APP.replace("@app.handler", "import threading, pathlib\n\n\n@app.handler").replace(
        '    tx.execute("INSERT',
        "    if not pathlib.Path('ok').exists():\n        print('held', file=__import__('sys').stderr, flush=True)\n"
        "        threading.Event().wait(300)\n"
        '    tx.execute("INSERT',
    )
    patient = CONTRACT.replace("lease: 5s", "lease: 5s, grace: 200s")
    started(tmp_path, app_py=slow, contract_yaml=patient, events_jsonl=orders(3))
    settled(tmp_path, "publish", "events.jsonl")
    running = Running(tmp_path, "run", "app.py", "--workers", workers)
    try:
        running.wait_for(lambda line: "held" in line)
        running.process.send_signal(signal.SIGTERM)
        running.wait_for(lambda line: "stopping" in line)
        assert running.end(signal.SIGTERM) == 0
    finally:
        running.close()
    (tmp_path / "ok").touch()
    assert "3 applied" in settled(tmp_path, "run", "app.py", "--mode", "drain").err
