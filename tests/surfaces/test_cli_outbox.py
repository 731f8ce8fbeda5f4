"""`settled outbox`: the relay as a process, and what people see and do."""

import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from settled import connect, outbox
from settled.engine import TopicSpec
from waiting import until


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a log, a store, two good rows and one for a topic that is not there."""
    with closing(connect.engine(f"sqlite:///{tmp_path}/settled-log.db")) as engine:
        engine.ensure_topic(TopicSpec(name="orders"))
    with closing(connect.store(f"sqlite:///{tmp_path}/settled-effects.db")) as store:
        store.migrate()
    connection = apsw.Connection(str(tmp_path / "settled-effects.db"))
    with connection:
        outbox.publish(connection, b"a", topic="orders", key="k", id="e1")
        outbox.publish(connection, b"b", topic="orders", key=b"\xff", id="e2")
        outbox.publish(connection, b"c", topic="nowhere", key="k", id="bad")
    connection.close()
    return tmp_path


def settled(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "settled", "outbox", *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
    )


def document(place: Path, *arguments: str) -> dict:
    ran = settled(place, *arguments, "-o", "json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_backlog_is_told_relayed_and_what_was_refused_is_parked_and_retried(place: Path) -> None:
    before = document(place, "status")
    assert (before["pending"], before["relays"]) == (3, [])
    assert before["oldest_age_s"] >= 0
    table = settled(place, "status", "-o", "table").stdout
    assert "3 pending" in table
    assert "no relay runs" in table

    ran = settled(place, "relay", "--drain", "--attempts", "1")
    assert ran.returncode == 0
    assert "relayed 2, refused 1" in ran.stderr
    assert "parked after 1 attempts: event bad for nowhere" in ran.stderr
    with closing(connect.engine(f"sqlite:///{place}/settled-log.db")) as engine:
        assert [record.id for record in engine.read("orders", 0, 0)] == ["e1", "e2"]

        (row,) = document(place, "ls")["rows"]
        assert (row["id"], row["state"], row["attempts"], row["value_bytes"]) == ("bad", "parked", 1, 1)
        assert "no topic 'nowhere'" in row["error"]
        assert "nowhere" in settled(place, "ls", "-o", "table").stdout

        engine.ensure_topic(TopicSpec(name="nowhere"))
        assert document(place, "retry", "--all") == {
            "schema_version": 1,
            "kind": "outbox-retried",
            "retried": [row["number"]],
            "unchanged": [],
        }
        assert settled(place, "relay", "--drain").returncode == 0
        assert [record.id for record in engine.read("nowhere", 0, 0)] == ["bad"]
    assert document(place, "ls", "--state", "all")["rows"] == []


def test_rows_are_parked_by_hand_with_a_reason(place: Path) -> None:
    assert settled(place, "park", "1").returncode == 2
    assert document(place, "park", "1", "99", "--reason", "asked for")["unchanged"] == [99]
    (row,) = document(place, "ls", "--state", "parked")["rows"]
    assert (row["number"], row["error"], row["key"]) == (1, "asked for", {"text": "k"})


def test_a_parked_row_is_discarded_with_a_plan_a_reason_and_a_yes(place: Path) -> None:
    document(place, "park", "1", "--reason", "asked for")
    planned = document(place, "discard", "--all", "--dry-run")
    assert [row["id"] for row in planned["discard"]] == ["e1"]
    assert settled(place, "discard", "1").returncode == 2  # no reason
    unasked = settled(place, "discard", "1", "--reason", "a test")
    assert unasked.returncode == 3
    assert "event e1 for orders: asked for" in unasked.stderr
    assert document(place, "status")["parked"] == 1
    done = document(place, "discard", "1", "2", "--reason", "a test", "--yes")
    assert (done["discarded"], done["unchanged"]) == ([1], [2])
    (row,) = document(place, "ls", "--state", "discarded")["rows"]
    assert (row["id"], row["error"].endswith(": a test; before: asked for")) == ("e1", True)
    assert document(place, "retry", "1")["unchanged"] == [1]
    assert "relayed 1" in settled(place, "relay", "--drain").stderr  # e2; the third one's topic is not there
    assert document(place, "discard", "--all", "--reason", "none is left", "--yes")["discarded"] == []


def test_a_mapped_topic(place: Path) -> None:
    assert "relayed 3" in settled(place, "relay", "--drain", "--topic", "nowhere=orders").stderr


def test_a_running_relay_shows_up_and_stops_on_sigterm(place: Path) -> None:
    relay = subprocess.Popen(
        [sys.executable, "-m", "settled", "outbox", "relay", "--name", "mine"], cwd=place, stderr=subprocess.PIPE
    )
    try:
        (found,) = until(lambda: document(place, "status")["relays"])
        assert found["relay"].startswith("mine-")
        assert len(found["buckets"]) == 16
        until(lambda: document(place, "status")["failing"] == 1)
        relay.send_signal(signal.SIGTERM)
        relay.communicate(timeout=20)
        assert relay.returncode == 0
    finally:
        relay.kill()
        relay.communicate()
    assert document(place, "status")["relays"] == []


@pytest.mark.parametrize(
    "arguments",
    [("retry",), ("retry", "1", "--all"), ("relay", "--rate", "0"), ("relay", "--topic", "x"), ("ls", "--state", "x")],
)
def test_what_cannot_be_meant_is_refused(place: Path, arguments: tuple[str, ...]) -> None:
    assert settled(place, *arguments).returncode == 2


def test_without_a_store_it_says_where_it_looked(tmp_path: Path) -> None:
    ran = settled(tmp_path, "status")
    assert ran.returncode == 69
    assert "settled-effects.db" in ran.stderr
    assert list(tmp_path.iterdir()) == []
