"""settled publish: mapping, bad lines, and a restart that doubles nothing."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import environment, orders, settled, started

from settled.engines.sqlite import SqliteEngine
from settled.record import Record


def held(folder: Path, topic: str = "orders") -> list[Record]:
    """All records of the topic, read by other means than the command."""
    engine = SqliteEngine(f"sqlite:///{folder}/settled-log.db")
    try:
        (info,) = [info for info in engine.topics() if info.spec.name == topic]
        return [
            record
            for part in info.partitions
            for record in engine.read(topic, part.partition, part.begin, records=part.records or 1)
        ]
    finally:
        engine.close()


def test_json_lines_with_every_kind_of_column(tmp_path: Path) -> None:
    row = {
        "order_id": "o-1",
        "version": 7,
        "at": "2030-01-31T12:00:00+01:00",
        "kind": "Placed",
        "src": None,
        "n": 0.1,
        "event": "e-1",
    }
    started(tmp_path, events_jsonl=json.dumps(row) + "\n")
    ran = settled(
        *(tmp_path, "publish", "events.jsonl", "--id-column", "event", "--time-column", "at", "--type-column", "kind"),
        *("--header", "source=src", "--header", "source=kind", "--value", "rest"),
    )
    assert (ran.json["published"], ran.json["refused"]) == (1, 0)
    (record,) = held(tmp_path)
    assert (record.key, record.version, record.type, record.id) == (b"o-1", 7, "Placed", "e-1")
    assert record.headers == (("source", None), ("source", b"Placed"))
    assert record.event_time is not None
    assert record.event_time.isoformat() == "2030-01-31T11:00:00+00:00"
    assert record.value == b'{"n":0.1}'


def test_the_whole_line_is_published_as_it_stands(tmp_path: Path) -> None:
    text = '{"order_id": "o-1",  "version": 1, "exact": 12345678901234567890123, "same": 1.50}'
    started(tmp_path, events_jsonl=text + "\n")
    settled(tmp_path, "publish", "events.jsonl")
    assert [record.value for record in held(tmp_path)] == [text.encode()]


def test_csv_gz_with_a_template_for_ids(tmp_path: Path) -> None:
    started(tmp_path)
    rows = 'order_id,version,note\no-1,1,"two\nlines"\no-1,2,\n'
    (tmp_path / "events.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + rows.encode()))
    ran = settled(tmp_path, "publish", "events.csv.gz", "--id", "{file}:{key}:{version}", "--value", "note")
    assert ran.json["published"] == 2
    assert {(record.id, record.value) for record in held(tmp_path)} == {
        ("events.csv.gz:o-1:1", b"two\nlines"),
        ("events.csv.gz:o-1:2", b""),
    }


def test_bad_lines_are_named_and_the_good_ones_published(tmp_path: Path) -> None:
    lines = [
        b'{"order_id": "o-1", "version": 1}',
        b"not json",
        b"[1, 2]",
        b'{"version": 1}',
        b'{"order_id": "o-2", "version": "two"}',
        b'{"order_id": "\xff", "version": 1}',
        b'{"order_id": "a\\u0000b", "version": 1}',
        b"",
        b'{"order_id": "o-3", "version": 1}',
    ]
    started(tmp_path)
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines))
    ran = settled(tmp_path, "publish", "events.jsonl", "--id", "{key}", code=1)
    assert (ran.json["published"], ran.json["refused"]) == (2, 6)
    named = [line for line in ran.err.splitlines() if line.startswith("line ")]
    assert [line.partition(":")[0] for line in named] == [f"line {n}" for n in range(2, 8)]
    assert "'order_id' is missing" in named[2]
    assert "NUL" in named[5]
    assert {record.key for record in held(tmp_path)} == {b"o-1", b"o-3"}


def test_bad_lines_are_collected_when_asked(tmp_path: Path) -> None:
    started(tmp_path, events_jsonl='{"order_id":"o-1","version":1}\nnope\n')
    settled(tmp_path, "publish", "events.jsonl", "--skip-bad", "bad.jsonl")
    (bad,) = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert (bad["line"], bad["raw"]) == (2, "nope")
    again = settled(tmp_path, "publish", "events.jsonl", "--skip-bad", "again.jsonl")
    assert (again.json["published"], again.json["published_before"], again.json["refused"]) == (0, 1, 1)
    assert (tmp_path / "again.jsonl").read_text() == (tmp_path / "bad.jsonl").read_text()


def test_a_record_above_the_limit_is_a_bad_line(tmp_path: Path) -> None:
    contract = "name: orders\ntransport: {partitions: 1, key: id, record_limit: 1kB}\n"
    rows = json.dumps({"id": "big", "pad": "x" * 2000}) + '\n{"id": "small"}\n'
    started(tmp_path, contract_yaml=contract, events_jsonl=rows)
    for _ in range(2):  # also when the line is before the point of resuming
        ran = settled(tmp_path, "publish", "events.jsonl", code=1)
        assert "line 1: " in ran.err
        assert "limit of 1000" in ran.err
    assert [record.key for record in held(tmp_path)] == [b"small"]


@pytest.mark.parametrize(
    ("zone", "code", "published"), [((), 1, 0), (("--time-zone", "UTC"), 0, 1), (("--time-zone", "Mars"), 2, None)]
)
def test_a_time_without_zone_needs_one(tmp_path: Path, zone: tuple[str, ...], code: int, published: int | None) -> None:
    started(tmp_path, events_jsonl='{"order_id":"o-1","version":1,"at":"2030-01-31T12:00:00"}\n')
    ran = settled(tmp_path, "publish", "events.jsonl", "--time-column", "at", *zone, code=code)
    if published is not None:
        assert ran.json["published"] == published


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("missing.jsonl",), "missing.jsonl"),
        (("events.txt",), "format"),
        (("events.jsonl", "--id", "always"), "one id"),
        (("events.jsonl", "--id", "{key.__class__.__name__}", "--id-column", "a"), "--id-column"),
        (("events.jsonl", "--header", "x"), "NAME=COLUMN"),
        (("events.jsonl", "--contract", "none.yaml"), "none.yaml"),
        (("events.jsonl", "--engine", "mysql://x"), "mysql"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    started(tmp_path, events_jsonl=orders(1), events_txt="")
    ran = settled(tmp_path, "publish", *arguments, code=2)
    assert word in ran.err
    assert ran.out == ""


def test_from_a_pipe(tmp_path: Path) -> None:
    started(tmp_path)
    ran = settled(tmp_path, "publish", "-", stdin=orders(3).encode())
    assert (ran.json["published"], ran.json["producer"]) == (3, None)
    named = [settled(tmp_path, "publish", "--producer", "feed", stdin=orders(3).encode()).json for _ in range(2)]
    assert [one["published"] for one in named] == [3, 0]
    assert len(held(tmp_path)) == 6


def test_a_killed_run_goes_on_without_doubling(tmp_path: Path) -> None:
    started(tmp_path, events_jsonl=orders(30_000))
    command = [sys.executable, "-m", "settled", "publish", "events.jsonl", "-q"]
    killed = 0
    for _ in range(20):
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wal = tmp_path / "settled-log.db-wal"
        before = wal.stat().st_size if wal.exists() else 0
        while process.poll() is None and (wal.stat().st_size if wal.exists() else 0) <= before + 200_000:
            os.sched_yield()
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        if process.wait() == 0 or killed == 3:
            break
    assert killed
    ran = settled(tmp_path, "publish", "events.jsonl")
    assert ran.json["published_before"] > 0
    assert ran.json["published"] + ran.json["published_before"] == 30_000
    keys = [record.key for record in held(tmp_path)]
    assert len(keys) == len(set(keys)) == 30_000
