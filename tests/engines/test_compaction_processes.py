"""Whoever compacts may die, stall or have company: the log is good at every instant, and a later pass ends the work."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import windows
from settled.engines.sqlite import SqliteEngine, compaction, joining, retention
from settled.record import Record
from settled.sqlite import open_connection
from settled.testing.engine_tools import Member, eventually, make_topic, message, names, publish, topic_of

RECORDS, KEYS = 2000, 10

_COMPACTOR = """
import os, signal, sys
from settled import windows
from settled.engines.sqlite import SqliteEngine, joining
url, window, nth, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
joining.STEP = 4
left = [nth]
def hook(name):
    if name == window:
        left[0] -= 1
        if left[0] == 0:
            print("there", flush=True)
            os.kill(os.getpid(), number)
windows.install(hook)
print("ready", flush=True)
sys.stdin.readline()
print(sum(SqliteEngine(url).maintain(force=True).values()), flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(f"sqlite:///{path}")
    make_topic(engine, compact=True)
    publish(engine, [message(n, key=b"%d" % (n % KEYS)) for n in range(RECORDS)], batch_records=20)
    yield engine
    windows.install(None)
    engine.close()


def compactor(engine: SqliteEngine, window: str = "", nth: int = 0, number: int = 0) -> subprocess.Popen[str]:
    """A process that compacts once a line is written to it, and sends itself a signal in a window."""
    pipe = subprocess.PIPE
    arguments = [engine.url, window, str(nth), str(number)]
    process = subprocess.Popen([sys.executable, "-c", _COMPACTOR, *arguments], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def require_good(engine: SqliteEngine) -> list[Record]:
    """Nothing that had to stay is missing, and what is told is what is there; returns all that is."""
    found = engine.read(names.topic, 0, 0, records=10 * RECORDS)
    part = topic_of(engine).partitions[0]
    assert (part.records, part.bytes) == (len(found), sum(record.size for record in found))
    assert {record.offset for record in found} >= set(range(RECORDS - KEYS, RECORDS))
    assert [record.offset for record in found] == sorted({record.offset for record in found})
    assert all(record.id == f"e{record.offset}" for record in found)
    return found


def finish(engine: SqliteEngine) -> None:
    """The next pass, as soon as the dead one's claim is over, leaves exactly what has to stay."""

    def done() -> bool:
        engine.maintain(force=True)
        return len(require_good(engine)) == KEYS

    eventually(done, "the next pass ends it")


@pytest.mark.parametrize("window", ["compaction-uncommitted", "compaction-unrecorded"])
@pytest.mark.parametrize("nth", [1, 2, 13])
def test_a_death_in_a_window_leaves_a_good_log(engine: SqliteEngine, window: str, nth: int) -> None:
    process = compactor(engine, window, nth, signal.SIGKILL)
    go(process)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (-signal.SIGKILL, "there\n")
    left = len(require_good(engine))
    assert KEYS < left <= RECORDS
    assert (left < RECORDS) == (window == "compaction-unrecorded" or nth > 1)
    finish(engine)


def test_one_that_was_stopped_does_no_harm_when_it_goes_on(engine: SqliteEngine) -> None:
    """Its claim is over, another process has compacted all of it, and records came since."""
    process = compactor(engine, "compaction-unrecorded", 2, signal.SIGSTOP)
    go(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    finish(engine)
    publish(engine, [message(RECORDS + n, key=b"%d" % n) for n in range(KEYS)])
    before = engine.read(names.topic, 0, 0)
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert 0 < int(said) < RECORDS - KEYS
    assert engine.read(names.topic, 0, 0) == before
    assert engine.maintain(force=True) == {names.topic: KEYS}


def test_one_at_a_time_compacts_a_partition(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "CLAIM_S", 60.0)  # however slow this machine is
    inner: list[dict[str, int]] = []
    other = SqliteEngine(engine.url)

    def hook(window: str) -> None:
        if window == "compaction-unrecorded" and not inner:
            inner.append(other.maintain(force=True))

    windows.install(hook)
    assert engine.maintain(force=True) == {names.topic: RECORDS - KEYS}
    assert inner == [{}]
    other.close()
    assert len(require_good(engine)) == KEYS


def test_retention_may_take_what_is_about_to_be_replaced(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "STEP", 4)  # more than that was read by then
    left = [1]

    def hook(window: str) -> None:
        if window == "compaction-unrecorded" and left:
            left.clear()
            make_topic(engine, compact=True, retention_bytes=1)
            assert retention.maintain(engine._database, force=True)[names.topic] > 0

    windows.install(hook)
    assert engine.maintain(force=True)[names.topic] < RECORDS - KEYS
    windows.install(None)
    part = topic_of(engine).partitions[0]
    assert (part.begin, part.records, part.bytes, part.stored_bytes) == (RECORDS, 0, 0, 0)


def test_a_group_that_comes_during_a_pass_is_waited_for(engine: SqliteEngine) -> None:
    joined: list[Member] = []

    def hook(window: str) -> None:
        if window == "compaction-unrecorded" and not joined:
            joined.append(Member(engine, start=-1))

    windows.install(hook)
    removed = engine.maintain()[names.topic]
    windows.install(None)
    found = require_good(engine)
    assert len(found) == RECORDS - removed
    assert [record.offset for record in found][-500:] == list(range(RECORDS - 500, RECORDS))
    assert engine.maintain() == {}
    member = joined[0]
    member.owns(1)
    member.consumer.start(names.topic, 0, 0)
    assert member.receives(len(found)) == found
    member.consumer.commit({(names.topic, 0): RECORDS})
    assert engine.maintain() == {names.topic: len(found) - KEYS}
    member.consumer.close()


@pytest.mark.parametrize("claims", [True, False])
def test_several_at_once_do_what_one_would(engine: SqliteEngine, path: Path, claims: bool) -> None:
    """Also where claims do not hold: each transaction looks whether all is as it was read."""
    if not claims:
        connection = open_connection(path)
        connection.execute(
            "CREATE TRIGGER nobody AFTER UPDATE OF until_us ON log_compaction WHEN NEW.until_us > 0 BEGIN "
            "UPDATE log_compaction SET until_us = 0 WHERE part = NEW.part; END"
        )
        connection.close()
    processes = [compactor(engine) for _ in range(4)]
    for process in processes:
        go(process)
    publish(engine, [message(RECORDS + n, key=b"%d" % (n % KEYS)) for n in range(500)], batch_records=5)
    removed = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    found = engine.read(names.topic, 0, 0, records=10 * RECORDS)
    assert len(found) == RECORDS + 500 - sum(removed)
    assert {record.offset for record in found} >= set(range(RECORDS + 490, RECORDS + 500))
    eventually(lambda: engine.maintain(force=True) == {}, "nothing is left to remove")
    assert [record.offset for record in engine.read(names.topic, 0, 0)] == list(range(RECORDS + 490, RECORDS + 500))
