"""The embedded log under several processes: creation races, waking, locks, forks, full disks, lost answers."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import windows
from settled.engine import ConsumerGroup, ProducerSpec, TopicSpec
from settled.engines.sqlite import SqliteEngine
from settled.engines.sqlite.wake import Waiter, Waker, wake_folder
from settled.errors import ContractError, Damaged, Refused, Unavailable
from settled.sqlite import open_connection
from settled.testing.engine_tools import TOPIC, Member, eventually, make_topic, message, publish


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(f"sqlite:///{path}", busy_s=0.3, look_s=60.0)
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def _no_hook_stays() -> Iterator[None]:
    yield
    windows.install(None)


_RACER = """
import sys
from settled.engine import ProducerSpec, TopicSpec
from settled.engines.sqlite import SqliteEngine
from settled.record import Message
url, number = sys.argv[1:]
sys.stdin.read(1)
engine = SqliteEngine(url)
engine.ensure_topic(TopicSpec(name="orders", partitions=3))
producer = engine.producer(ProducerSpec())
for n in range(20):
    producer.send(Message(topic="orders", key=b"%d" % n, id=f"{number}-{n}"))
engine.close()
"""


def test_fifteen_processes_start_on_a_missing_file(path: Path) -> None:
    pipe = subprocess.PIPE
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, f"sqlite:///{path}", str(n)], stdin=pipe, stdout=pipe, stderr=pipe
        )
        for n in range(15)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"g")
        racer.stdin.flush()
    ends = [racer.communicate(timeout=100) for racer in racers]
    assert [(racer.returncode, *end) for racer, end in zip(racers, ends, strict=True)] == [(0, b"", b"")] * 15
    engine = SqliteEngine(f"sqlite:///{path}")
    found = [one.id for number in range(3) for one in engine.read(TOPIC, number, 0, records=1000)]
    assert sorted(found) == sorted(f"{p}-{n}" for p in range(15) for n in range(20))
    assert len(engine.topics()) == 1
    engine.close()


_PUBLISHER = """
import sys, time
from settled.engine import ProducerSpec
from settled.engines.sqlite import SqliteEngine
from settled.record import Message
producer = SqliteEngine(sys.argv[1]).producer(ProducerSpec(linger_s=0.0))
print("ready", flush=True)
for line in sys.stdin:
    producer.send(Message(topic="orders", id=line.strip()))
    producer.flush()
"""


def test_a_record_of_another_process_wakes_a_waiting_consumer(engine: SqliteEngine) -> None:
    """The consumer looks by itself only once a minute, so what it notices in time came through its FIFO."""
    make_topic(engine, 1)
    member = Member(engine)
    member.owns(1)
    command = [sys.executable, "-c", _PUBLISHER, engine.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        assert publisher.stdout.readline() == "ready\n"
        waits = []
        for number in range(5):
            known = len(member.records)
            publisher.stdin.write(f"e{number}\n")
            publisher.stdin.flush()
            began = time.monotonic()
            member.until(lambda known=known: len(member.records) > known, "woken")  # type: ignore[misc]
            waits.append(time.monotonic() - began)
        assert min(waits) < 0.5
        assert max(waits) < 10
        publisher.stdin.close()
    member.consumer.close()


def test_fifos_of_the_dead_are_removed(path: Path) -> None:
    folder = wake_folder(path)
    alive, dead = Waiter(folder, "records"), Waiter(folder, "records")
    waker = Waker(folder)
    waker.wake("records")
    assert alive.wait(0)
    assert dead.wait(0)
    os.close(dead._pipe)  # as a killed process leaves it: a FIFO without a reader
    (folder / "records-1-never").touch(mode=0o600)
    (folder / "records-1-never").unlink()
    os.mkfifo(folder / "records-1-unread")
    alive.drain()
    assert not alive.wait(0)
    waker.wake("members")
    assert not alive.wait(0)
    waker.wake("records")
    assert alive.wait(0)
    assert [one.name for one in folder.iterdir()] == [alive.name]
    fcntl.fcntl(alive._pipe, fcntl.F_SETPIPE_SZ, 4096)
    for _ in range(5_000):  # a FIFO that nobody empties fills up and disturbs nobody
        waker.wake("records")
    alive.drain()
    assert not alive.wait(0)
    alive.close()
    waker.close()
    waker.wake("records")


def test_a_lock_held_too_long_is_unavailable_and_then_over(engine: SqliteEngine, path: Path) -> None:
    make_topic(engine, 1)
    holder = open_connection(path)
    holder.execute("BEGIN IMMEDIATE")
    producer = engine.producer(ProducerSpec())
    pending = producer.send(message(1))
    with pytest.raises(Unavailable, match="locked") as refused:
        producer.flush()
    assert refused.value.exit_code == 69
    assert "1 messages are not confirmed" in str(refused.value)
    with pytest.raises(Unavailable):
        pending.result()
    with pytest.raises(Unavailable):
        engine.consumer(ConsumerGroup(group="g", topics=(TOPIC,)))
    holder.execute("ROLLBACK")
    holder.close()
    assert producer.send(message(2)).result(timeout=30).offset == 0
    producer.close()


def test_a_short_lock_is_waited_for(path: Path) -> None:
    engine = SqliteEngine(f"sqlite:///{path}")
    make_topic(engine, 1)
    holder = open_connection(path)
    holder.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.5, lambda: holder.execute("ROLLBACK"))
    release.start()
    assert publish(engine, [message(1)])[0].offset == 0
    release.join()
    holder.close()
    engine.close()


def test_a_lost_answer_is_settled_by_looking(engine: SqliteEngine) -> None:
    """The commit happened, its answer never came: the batch is not stored again, and the offsets are right."""
    make_topic(engine, 2)
    losses = iter([True, False, False])

    def lose(window: str) -> None:
        if window == "append-committed" and next(losses):
            raise Unavailable("the answer was lost")

    windows.install(lose)
    receipts = publish(engine, map(message, range(10)))
    windows.install(None)
    for receipt in receipts:
        assert engine.read(TOPIC, receipt.partition, receipt.offset, records=1)[0].id == receipt.id
    assert sum(part.end for part in engine.topics()[0].partitions) == 10


def test_an_append_that_failed_is_tried_once_more(engine: SqliteEngine) -> None:
    make_topic(engine, 1)
    tries: list[str] = []

    def fail_once(window: str) -> None:
        if window == "append-written":
            tries.append(window)
            if len(tries) == 1:
                raise Unavailable("nothing was stored")

    windows.install(fail_once)
    assert publish(engine, [message(1)])[0].offset == 0
    assert len(tries) == 2
    assert engine.topics()[0].partitions[0].end == 1


def test_a_named_producer_stops_at_a_failure_until_it_was_told(engine: SqliteEngine) -> None:
    """Otherwise a later sequence would be stored, and the failed ones would then look like repeats."""
    make_topic(engine, 1)
    producer = engine.producer(ProducerSpec(identity="loader", batch_records=2, linger_s=3600.0))

    def fail(window: str) -> None:
        if window == "append-written":
            raise Unavailable("no")

    windows.install(fail)
    for pending in [producer.send(message(n), sequence=n) for n in range(2)]:
        with pytest.raises(Unavailable):
            pending.result(timeout=30)
    windows.install(None)
    with pytest.raises(Unavailable, match="2 unconfirmed"):
        producer.send(message(2), sequence=2)
    with pytest.raises(Unavailable, match="2 messages"):
        producer.flush()
    assert producer.resume_point() is None
    again = [producer.send(message(n), sequence=n) for n in range(4)]
    producer.close()
    assert [one.result().offset for one in again] == [0, 1, 2, 3]


def test_an_unknown_commit_of_a_named_producer_is_not_doubled(engine: SqliteEngine) -> None:
    """The answer is lost and looking is not possible either: the resume point tells later."""
    make_topic(engine, 1)
    producer = engine.producer(ProducerSpec(identity="loader", linger_s=3600.0))
    producer.send(message(0), sequence=0)

    def lose(window: str) -> None:
        if window == "append-committed":
            engine._database._unusable = Unavailable("cannot look")
            raise Unavailable("the answer was lost")

    windows.install(lose)
    with pytest.raises(Unavailable):
        producer.flush()
    windows.install(None)
    engine._database._unusable = None
    with pytest.raises(Unavailable):
        producer.flush()
    assert producer.resume_point() == 0
    again = producer.send(message(0), sequence=0)
    assert again.result(timeout=30).stored is False
    producer.close()
    assert engine.topics()[0].partitions[0].end == 1


def test_a_fork_is_refused(engine: SqliteEngine) -> None:
    make_topic(engine, 1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            engine.topics()
            os.write(write, b"served")
        except Refused:
            os.write(write, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"refused"
    os.close(read)
    os.close(write)
    assert publish(engine, [message(1)])[0].offset == 0


_FULL = """
import resource, sys
from settled.engine import ProducerSpec, TopicSpec
from settled.engines.sqlite import SqliteEngine
from settled.errors import Unavailable
from settled.record import Message
engine = SqliteEngine(sys.argv[1])
engine.ensure_topic(TopicSpec(name="orders"))
producer = engine.producer(ProducerSpec(compression="none"))
def send(number):
    producer.send(Message(topic="orders", id=f"e{number}", value=b"x" * 50_000))
    producer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
stored = 0
try:
    while stored < 1000:
        send(stored)
        stored += 1
except Unavailable as error:
    print(error.hint)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert 0 < stored < 1000, stored
assert len(engine.read("orders", 0, 0, records=2000)) == stored
for number in range(stored, stored + 30):
    send(number)
found = engine.read("orders", 0, 0, records=2000)
assert [one.id for one in found] == [f"e{n}" for n in range(stored + 30)]
engine.close()
"""


def test_a_full_disk_is_unavailable_and_passes_without_restart(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL, f"sqlite:///{path}"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "disk" in done.stdout
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_any_flipped_byte_of_a_batch_is_found(engine: SqliteEngine, path: Path) -> None:
    make_topic(engine, 1)
    publish(engine, map(message, range(10)), compression="none", linger_s=60.0)
    connection = open_connection(path)
    (payload,) = connection.execute("SELECT payload FROM log_batch").fetchall()[0]
    assert isinstance(payload, bytes)
    for place in range(0, len(payload), 7):
        changed = payload[:place] + bytes([payload[place] ^ 0x10]) + payload[place + 1 :]
        connection.execute("UPDATE log_batch SET payload = ?", (changed,))
        with pytest.raises(Damaged, match="offsets 0 to 9"):
            engine.read(TOPIC, 0, 0)
    connection.execute("UPDATE log_batch SET payload = ?", (payload,))
    for column in ("accepted_us", "bytes"):
        connection.execute(f"UPDATE log_batch SET {column} = {column} + 1")
        with pytest.raises(Damaged, match="checksum"):
            engine.read(TOPIC, 0, 0)
        connection.execute(f"UPDATE log_batch SET {column} = {column} - 1")
    assert len(engine.read(TOPIC, 0, 0)) == 10
    connection.close()


@pytest.mark.parametrize("gone", ["base = 10", "base = 20", "base >= 10"])
def test_a_batch_that_vanished_is_not_skipped(engine: SqliteEngine, path: Path, gone: str) -> None:
    make_topic(engine, 1)
    publish(engine, map(message, range(30)), batch_records=10, linger_s=60.0)
    connection = open_connection(path)
    connection.execute(f"DELETE FROM log_batch WHERE {gone}")
    connection.close()
    member = Member(engine)
    member.until(lambda: bool(member.stopped), "told")
    assert isinstance(member.stopped[0].error, Damaged)
    assert "missing" in str(member.stopped[0].error)
    assert [one.offset for one in member.records] == list(range(20 if gone == "base = 20" else 10))
    member.consumer.close()


def test_a_batch_of_another_place_is_not_served(engine: SqliteEngine, path: Path) -> None:
    """Whole and with its own checksum, but copied over another one."""
    make_topic(engine, 1)
    publish(engine, map(message, range(20)), batch_records=10, linger_s=60.0)
    connection = open_connection(path)
    connection.execute(
        "UPDATE log_batch SET (checksum, payload, bytes, accepted_us) = "
        "(SELECT checksum, payload, bytes, accepted_us FROM log_batch WHERE base = 0) WHERE base = 10"
    )
    connection.close()
    with pytest.raises(Damaged, match="offsets 10 to 19"):
        engine.read(TOPIC, 0, 10)


def test_addresses_are_checked(tmp_path: Path) -> None:
    for url in ("sqlite://log.db", "postgres:///x", "sqlite:///", f"sqlite:///{tmp_path}/log.db?mode=ro"):
        with pytest.raises(ContractError):
            SqliteEngine(url)
    with pytest.raises(ContractError, match="no folder"):
        SqliteEngine(f"sqlite:///{tmp_path}/missing/log.db")
    (tmp_path / "text.db").write_text("this is not a database, however long one looks at it" * 100)
    with pytest.raises(Damaged, match="not a SQLite database"):
        SqliteEngine(f"sqlite:///{tmp_path}/text.db")


def test_a_crowd_loses_and_doubles_nothing(path: Path) -> None:
    """Publishers, members and maintenance in one file at once; each record comes to one member, once."""
    engine = SqliteEngine(f"sqlite:///{path}")
    engine.ensure_topic(TopicSpec(name=TOPIC, partitions=4, retention_s=3600.0))
    racers = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                _RACER.replace("range(20)", "range(500)").replace("partitions=3", "partitions=4, retention_s=3600.0"),
                engine.url,
                str(n),
            ],
            stdin=subprocess.PIPE,
        )
        for n in range(3)
    ]
    members = [Member(engine) for _ in range(2)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"g")
        racer.stdin.close()

    def received() -> bool:
        for member in members:
            member.poll(0.01)
        engine.maintain()
        return len({one.id for member in members for one in member.records}) == 1500

    eventually(received, "all 1,500 records")
    assert [racer.wait(timeout=30) for racer in racers] == [0, 0, 0]
    engine.close()
