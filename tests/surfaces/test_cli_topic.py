"""settled topic: positions and records, without loss whatever the bytes and the terminal."""

from __future__ import annotations

import base64
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli_runs import environment, orders, settled, started

from settled import App
from settled.partition import partition_of

KEY, BYTES, ESCAPE = b"\x83\x00\xff", bytes(range(256)), b"\x1b[2J"


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A topic with keys and values that are not text."""
    url = f"sqlite:///{tmp_path}/settled-log.db"
    with App(topic="t4", transport={"partitions": 2}, engine=url, store=f"sqlite:///{tmp_path}/e.db") as app:
        app.publish(BYTES, key=KEY, headers=[("h", None), ("h", b"\xff")], id="one")
        app.publish(ESCAPE, key="grün", id="two\x1b[2J")
        app.publish(None, key=None, id="three")
    return tmp_path


@pytest.mark.parametrize("env", [{}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}])
def test_nothing_is_lost_and_no_escape_reaches_a_terminal(odd: Path, env: dict[str, str]) -> None:
    table = settled(odd, "topic", "tail", "t4", "-o", "table", env=env)
    assert b"\x1b" not in table.raw
    assert "key=hex:8300ff" in table.out
    assert "base64:" + base64.b64encode(BYTES).decode() in table.out
    assert "hex:1b5b324a" in table.out
    assert "h: (none)" in table.out
    records = {record["id"]: record for record in settled(odd, "topic", "tail", "t4", env=env).json["records"]}
    assert base64.b64decode(records["one"]["key"]["base64"]) == KEY
    assert base64.b64decode(records["one"]["value"]["base64"]) == BYTES
    assert records["one"]["headers"] == [["h", None], ["h", {"base64": "/w=="}]]
    assert records["two\x1b[2J"]["value"] == {"text": "\x1b[2J"}
    assert records["three"]["key"] is None
    assert records["three"]["value"] is None


def test_describe_and_grow(odd: Path) -> None:
    described = settled(odd, "topic", "describe", "t4").json
    assert (described["partitions"], described["records"]) == (2, 3)
    assert sum(part["end"] for part in described["positions"]) == 3
    settled(odd, "topic", "grow", "t4", "--partitions", 4, "--review", code=3)  # nobody there to confirm it
    settled(odd, "topic", "grow", "t4", "--partitions", 4, "--dry-run")
    assert settled(odd, "topic", "describe", "t4").json["partitions"] == 2
    assert settled(odd, "topic", "grow", "t4", "--partitions", 4, "--review", "--yes").json["grown"] is True
    assert settled(odd, "topic", "describe", "t4").json["partitions"] == 4
    settled(odd, "topic", "grow", "t4", "--partitions", 3, "--yes", code=2)


def test_a_topic_with_keys_grows_only_after_its_review(tmp_path: Path) -> None:
    """B035: keys would move, and with them the order of their records."""
    url = f"sqlite:///{tmp_path}/settled-log.db"
    with App(topic="t4", transport={"partitions": 2}, engine=url, store=f"sqlite:///{tmp_path}/e.db") as app:
        for number in range(100):
            app.publish(b"v", key=f"key-{number}", id=f"e{number}")
    refused = settled(tmp_path, "topic", "grow", "t4", "--partitions", 4, "--yes", code=3)
    moving = sum(partition_of(b"key-%d" % n, 2) != partition_of(b"key-%d" % n, 4) for n in range(100))
    assert 0 < moving < 100
    assert f"{moving}% of 100 recent ones would move" in refused.err
    assert settled(tmp_path, "topic", "describe", "t4").json["partitions"] == 2
    looked = settled(tmp_path, "topic", "grow", "t4", "--partitions", 4, "--review", "--dry-run")
    found = looked.json["review"]
    assert (found["records"], found["keyed"], found["keys"], found["moving"]) == (100, 100, 100, moving)
    assert "drain" in looked.err
    settled(tmp_path, "topic", "grow", "t4", "--partitions", 4, "--review", "--yes")
    assert settled(tmp_path, "topic", "describe", "t4").json["partitions"] == 4


def test_a_topic_without_keys_grows_without_a_review(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/settled-log.db"
    with App(topic="t4", transport={"partitions": 2}, engine=url, store=f"sqlite:///{tmp_path}/e.db") as app:
        app.publish(b"v", key=None, id="one")
    settled(tmp_path, "topic", "grow", "t4", "--partitions", 4, "--yes")
    assert settled(tmp_path, "topic", "describe", "t4").json["partitions"] == 4


def test_a_queue_grows_without_a_review_and_its_contract_says_how(tmp_path: Path) -> None:
    queue = "name: jobs\ntransport: {topic: jobs, form: queue, partitions: 4}\n"
    (tmp_path / "four.yaml").write_text(queue)
    (tmp_path / "six.yaml").write_text(queue.replace("4", "6"))
    (tmp_path / "events.jsonl").write_text("".join(f'{{"id": "e{n}", "key": "k{n}"}}\n' for n in range(50)))
    settled(tmp_path, "publish", "events.jsonl", "--contract", "four.yaml", "--key-column", "key")
    refused = settled(tmp_path, "publish", "events.jsonl", "--contract", "six.yaml", code=2)
    assert "settled topic grow jobs --partitions 6" in refused.err
    grown = settled(tmp_path, "topic", "grow", "jobs", "--partitions", 6, "--yes")
    assert "would move" not in grown.err
    assert settled(tmp_path, "topic", "describe", "jobs").json["partitions"] == 6
    fewer = settled(tmp_path, "publish", "events.jsonl", "--contract", "four.yaml", code=2)
    assert "can only grow" in fewer.err


def test_a_topic_is_compared_with_its_contract(odd: Path) -> None:
    (odd / "same.yaml").write_text("name: t4\ntransport: {partitions: 2}\n")
    (odd / "other.yaml").write_text("name: t4\ntransport: {partitions: 6, record_limit: 1kB}\nretention: {age: 1h}\n")
    assert settled(odd, "topic", "describe", "t4", "--contract", "same.yaml").json["differences"] == []
    found = settled(odd, "topic", "describe", "t4", "--contract", "other.yaml", code=1).json["differences"]
    assert {each["field"] for each in found} == {"transport.partitions", "transport.record_limit", "retention.age"}
    assert next(each for each in found if each["field"] == "transport.partitions")["found"] == "2"
    told = settled(odd, "doctor", "--contract", "other.yaml", code=1).json["checks"]
    assert [each["state"] for each in told if each["name"] == "topic t4"] == ["bad", "bad", "bad"]


def test_from_a_time_and_from_an_offset(odd: Path) -> None:
    def ids(*arguments: object) -> set[str]:
        return {record["id"] for record in settled(odd, "topic", "tail", "t4", *arguments).json["records"]}

    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert ids("--from-time", later) == set()  # beyond the end: nothing, not everything
    assert len(ids("--from-time", "1970-01-01T00:00:00Z")) == 3
    accepted = settled(odd, "topic", "tail", "t4", "-n", 1).json["records"][0]["accepted"]
    assert len(ids("--from-time", accepted)) >= 1
    everything = ids("-p", 0, "--offset", 0) | ids("-p", 1, "--offset", 0)
    assert len(everything) == 3
    assert ids("-p", 0, "--offset", 999) == set()
    assert ids("-n", 0) == set()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("tail", "none"), "topics there: t4"),
        (("tail", "t4", "--offset", "1"), "--partition"),
        (("tail", "t4", "-p", "9"), "no partition 9"),
        (("tail", "t4", "--from-time", "2030-01-31T12:00:00"), "zone"),
        (("tail", "t4", "--from-time", "yesterday"), "not a time"),
        (("tail", "t4", "--follow", "-o", "json"), "jsonl"),
        (("describe", "none"), "topics there: t4"),
        (("grow", "none", "--partitions", "3", "--yes"), "topics there: t4"),
    ],
)
def test_what_cannot_be_is_refused(odd: Path, arguments: tuple[str, ...], word: str) -> None:
    assert word in settled(odd, "topic", *arguments, code=2).err


def test_following_a_topic(tmp_path: Path) -> None:
    started(tmp_path, events_jsonl=orders(2), more_jsonl=orders(3))
    settled(tmp_path, "publish", "events.jsonl")
    process = subprocess.Popen(
        [sys.executable, "-m", "settled", "topic", "tail", "orders", "-f", "-o", "jsonl"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process, process.stdout:
        first = [process.stdout.readline() for _ in range(2)]
        settled(tmp_path, "publish", "more.jsonl")
        following = [process.stdout.readline() for _ in range(3)]
        process.terminate()
    assert all(b'"record"' in line for line in first + following)
    assert len({*first, *following}) == 5
