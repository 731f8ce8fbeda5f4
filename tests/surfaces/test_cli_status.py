"""settled status, group, contract, doctor, store and log: what they say is so, and their exit codes."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest
from cli_runs import CONTRACT, Running, orders, settled, started

from settled.engines.sqlite import SqliteEngine
from settled.operations.lag import lags
from settled.operations.status import status
from settled.stores.sqlite import SqliteStore

PORT = 5432


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """30 orders published, none settled."""
    started(tmp_path, events_jsonl=orders(30))
    settled(tmp_path, "publish", "events.jsonl")
    return tmp_path


def consumer(folder: Path, *arguments: object) -> Any:
    (found,) = settled(folder, "status", *arguments).json["consumers"]
    return found


def test_a_group_that_never_started_is_a_state_of_its_own(shop: Path) -> None:
    assert settled(shop, "status").json["consumers"] == []
    found = consumer(shop, "--contract", "contract.yaml")
    assert (found["state"], found["lag_records"]) == ("never-started", 30)
    assert {part["frontier"] for part in found["partitions"]} == {None}
    assert found["oldest_age_s"] >= 0
    assert not (shop / "settled-effects.db").exists()


def test_settled_is_nothing_left_and_behind_is_counted(shop: Path) -> None:
    settled(shop, "run", "app.py", "--mode", "drain")
    found = consumer(shop)
    assert (found["state"], found["lag_records"], found["oldest_age_s"]) == ("settled", 0, None)
    assert {part["bytes_about"] for part in found["partitions"]} == {0}
    settled(shop, "publish", "events.jsonl", "--producer", "again")
    found = consumer(shop, "--contract", "app.py")
    assert (found["state"], found["lag_records"], found["outcomes"]) == ("behind", 30, {"applied": 30})
    assert sum(part["end"] - part["frontier"] for part in found["partitions"]) == 30
    described = settled(shop, "group", "describe", "stock-v1").json["consumers"]
    assert [part["records"] for part in described[0]["partitions"]] == [part["records"] for part in found["partitions"]]
    settled(shop, "group", "describe", "none", code=2)
    assert "stock-v1: behind, 30 records behind" in settled(shop, "status", "-o", "table").out


def test_ready_is_a_probe(shop: Path) -> None:
    """0 while a worker works, 75 with the reason before and after."""
    assert "no group has ever joined" in settled(shop, "status", "--ready", code=75).err
    running = Running(shop, "run", "app.py", "--member", "one")
    try:
        running.wait_for(lambda said: ": running" in said)
        settled(shop, "status", "--ready")
    finally:
        assert running.end(signal.SIGTERM) == 0
    assert "no member is running" in settled(shop, "status", "--ready", code=75).err


def test_a_lost_log_is_told(shop: Path) -> None:
    settled(shop, "run", "app.py", "--mode", "drain")
    log = shop / "settled-log.db"
    for name in ("settled-log.db", "settled-log.db-tip"):
        (shop / name).rename(shop / f"{name}.newer")
    for side in ("-wal", "-shm"):
        log.with_name(log.name + side).unlink(missing_ok=True)
    settled(shop, "publish", "events.jsonl")
    assert consumer(shop)["state"] == "other-log"
    settled(shop, "run", "app.py", "--mode", "drain", code=3)
    log.unlink()
    settled(shop, "doctor", code=1)
    assert "tip" in settled(shop, "status", code=3).err
    assert "tip" in settled(shop, "topic", "ls", code=3).err
    settled(shop, "log", "accept-loss", "--dry-run")
    settled(shop, "log", "accept-loss", "--yes", code=2)
    settled(shop, "log", "accept-loss", "--reason", "the disk died", code=3)
    done = settled(shop, "log", "accept-loss", "--reason", "the disk died", "--yes").json
    assert (done["generation"], done["losses"]) == (1, [])


def test_a_restored_copy_is_refused_until_the_loss_is_accepted(shop: Path) -> None:
    settled(shop, "run", "app.py", "--mode", "drain")
    shutil.copy(shop / "settled-log.db", shop / "copy.db")
    settled(shop, "publish", "events.jsonl", "--producer", "second")
    settled(shop, "run", "app.py", "--mode", "drain")
    before = consumer(shop)
    for side in ("-wal", "-shm"):
        (shop / f"settled-log.db{side}").unlink(missing_ok=True)
    shutil.copy(shop / "copy.db", shop / "settled-log.db")
    assert "went back in time" in settled(shop, "publish", "events.jsonl", "--producer", "third", code=3).err
    checks = {check["name"]: check["state"] for check in settled(shop, "doctor", code=1).json["checks"]}
    assert checks["log content"] == "bad"
    done = settled(shop, "log", "accept-loss", "--reason", "restored a copy", "--yes").json
    assert all(loss["next"] > part["end"] for loss, part in zip(done["losses"], before["partitions"], strict=True))
    found = consumer(shop)
    assert (found["state"], found["lag_records"]) == ("settled", 0)  # the hole is no lag
    settled(shop, "publish", "events.jsonl", "--producer", "fourth")
    assert consumer(shop)["lag_records"] == 30


def test_lag_is_never_negative_while_records_settle(shop: Path) -> None:
    engine, store = (
        SqliteEngine(f"sqlite:///{shop}/settled-log.db"),
        SqliteStore(f"sqlite:///{shop}/settled-effects.db"),
    )
    try:
        store.migrate()
        settled(shop, "run", "app.py", "--mode", "drain")
        (found,) = status(engine, store).consumers
        (info,) = engine.topics()
        held = {position.partition: position for _, position in store.positions()}
        settled(shop, "publish", "events.jsonl", "--producer", "again")
        settled(shop, "run", "app.py", "--mode", "drain")  # the frontier moves on between the two readings
        for part in lags(engine, engine.topics()[0], held):
            assert part.records >= 0
            assert part.state in {"settled", "behind"}
        assert found.lag_records == 0
        assert [part.end for part in found.partitions] == [part.end for part in info.partitions]
    finally:
        engine.close()
        store.close()


def test_contract_check_names_line_and_remedy(tmp_path: Path) -> None:
    text = "name: orders\ndelivery:\n  lease: 1s\n  effect_tail: 2s\nobjectives: {oldest_age: 30s}\n"
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    found = settled(tmp_path, "contract", "check", "c.yaml", code=1).json
    assert found["errors"] >= 1
    by_field = {finding["field"]: finding for finding in found["findings"]}
    assert (by_field["delivery.lease"]["severity"], by_field["delivery.lease"]["line"]) == ("error", 3)
    assert by_field["objectives.oldest_age"]["rule"] == "declared-not-enforced"
    assert "c.yaml:3 delivery.lease" in settled(tmp_path, "contract", "check", "c.yaml", "-o", "table", code=1).out


@pytest.mark.parametrize(
    ("text", "word"),
    [("name: a\nunknwon: 1\n", "c.yaml:2"), ("name: [\n", "c.yaml"), ("", "empty"), ("name: ../x\n", "c.yaml:1")],
)
def test_a_contract_that_cannot_be_read_is_2(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    assert word in settled(tmp_path, "contract", "check", "c.yaml", code=2).err


def test_contract_show_is_a_contract(tmp_path: Path) -> None:
    started(tmp_path)
    shown = settled(tmp_path, "contract", "show", "app.py").out
    assert "lease: 5s\n" in shown
    (tmp_path / "shown.yaml").write_text(shown, encoding="utf-8")
    assert settled(tmp_path, "contract", "show", "shown.yaml").out == shown
    assert settled(tmp_path, "contract", "show", "app.py", "-o", "json").json["contract"]["delivery"]["lease"] == 5.0


def test_the_doctor_says_where_settings_came_from(shop: Path) -> None:
    env = {"SETTLED_STORE": "sqlite:///other.db"}
    found = settled(shop, "doctor", env=env).json
    assert found["healthy"] is True
    told = {check["name"]: check["told"] for check in found["checks"]}
    assert told["log"] == "sqlite:///settled-log.db (from the default)"
    assert told["effects"] == "sqlite:///other.db (from the variable SETTLED_STORE)"
    assert "synchronous=2" in told["log durability"]
    assert "history whole" in told["log history"]
    assert told["log file system"]


def test_a_damaged_or_newer_store_is_bad(shop: Path) -> None:
    settled(shop, "store", "migrate")
    path = shop / "settled-effects.db"
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE settled_meta SET value = '999' WHERE name = 'version'")
    connection.close()
    checks = {check["name"]: check for check in settled(shop, "doctor", code=1).json["checks"]}
    assert checks["effects content"]["state"] == "bad"
    assert "999" in checks["effects content"]["told"]
    assert "999" in settled(shop, "run", "app.py", "--mode", "drain", code=3).err
    path.write_bytes(b"not a database at all, but long enough" * 100)
    settled(shop, "doctor", code=1)


def test_no_password_is_ever_shown(shop: Path) -> None:
    url = f"postgresql://me:hunter2@127.0.0.1:1/{PORT}?sslpassword=hunter2"
    for arguments in (("doctor",), ("status",), ("quarantine", "ls"), ("run", "app.py", "--mode", "drain")):
        ran = settled(shop, *arguments, "--store", url, code=69)
        assert "hunter2" not in ran.out + ran.err


def test_migrate_and_its_sql(tmp_path: Path) -> None:
    sql = settled(tmp_path, "store", "migrate", "--print-sql").out
    assert list(tmp_path.iterdir()) == []
    connection = apsw.Connection(str(tmp_path / "settled-effects.db"))
    connection.execute(sql)
    connection.close()
    started(tmp_path, events_jsonl=orders(1), contract_yaml=CONTRACT)
    settled(tmp_path, "publish", "events.jsonl")
    settled(tmp_path, "run", "app.py", "--mode", "drain")
    settled(tmp_path, "store", "migrate")
    assert settled(tmp_path, "quarantine", "ls").json["entries"] == []


def test_one_json_document_and_lines_say_the_same(shop: Path) -> None:
    settled(shop, "run", "app.py", "--mode", "drain")
    for arguments, rows in (
        (("topic", "ls"), "topics"),
        (("group", "ls"), "groups"),
        (("topic", "tail", "orders"), ""),
    ):
        document = settled(shop, *arguments, "-o", "json").json
        lines = settled(shop, *arguments, "-o", "jsonl").lines
        items = document[rows or "records"]
        assert [{key: line[key] for key in items[0]} for line in lines] == items
        assert json.dumps(document).isascii()
