"""What compaction of the embedded log leaves is right and whole: against damage, retention, power cuts and a model."""

from __future__ import annotations

import logging
import threading
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.compacted import read_all, require_exact, rows
from settled import clock
from settled.engine import ProducerSpec
from settled.engines.sqlite import SqliteEngine, compaction, encoding, joining
from settled.errors import Damaged
from settled.record import Message
from settled.sqlite import open_connection
from settled.testing.engine_compaction import RECIPE, keyed
from settled.testing.engine_tools import Member, make_topic, message, names, publish, topic_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(f"sqlite:///{path}")
    yield engine
    engine.close()


def test_any_flipped_byte_of_a_compacted_batch_is_found(engine: SqliteEngine, path: Path) -> None:
    make_topic(engine, compact=True)
    publish(engine, keyed(RECIPE * 3), compression="none", batch_records=4)
    engine.maintain(force=True)
    good = read_all(engine)
    connection = open_connection(path)
    [(seq, kept, payload, chain, link)] = connection.execute(
        "SELECT seq, kept, payload, chain, link FROM log_batch WHERE kept > 0"
    ).fetchall()
    assert kept == len(good) == 4

    def require_found(column: str, value: object) -> None:
        connection.execute(f"UPDATE log_batch SET {column} = ? WHERE seq = ?", (value, seq))
        with pytest.raises(Damaged):
            read_all(engine)

    for column, whole in (("payload", payload), ("chain", chain), ("link", link)):
        for place in range(len(whole)):
            require_found(column, whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        connection.execute(f"UPDATE log_batch SET {column} = ? WHERE seq = ?", (whole, seq))
    for column in ("count", "bytes", "accepted_us", "checksum", "kept", "first_us"):
        [(whole,)] = connection.execute(f"SELECT {column} FROM log_batch WHERE seq = ?", (seq,)).fetchall()
        for value in (whole + 1, -whole, None) if column in ("kept", "first_us") else (whole + 1,):
            require_found(column, value)
        connection.execute(f"UPDATE log_batch SET {column} = ? WHERE seq = ?", (whole, seq))
    connection.close()
    assert read_all(engine) == good


def test_a_compacted_batch_of_another_past_is_not_served(engine: SqliteEngine, path: Path) -> None:
    """Whole and with a checksum of its own, but it follows other records than those before it."""
    make_topic(engine, compact=True)
    publish(engine, [message(n, key=b"first-%d" % n) for n in range(joining.FULL)], batch_records=joining.FULL)
    publish(engine, keyed(RECIPE, joining.FULL))
    engine.maintain(force=True)
    assert len(read_all(engine)) == joining.FULL + 4
    columns = "seq, base, count, bytes, accepted_us, checksum, chain, compression, kept, first_us, link, payload"
    connection = open_connection(path)
    [row] = connection.execute(f"SELECT {columns} FROM log_batch WHERE base = ?", (joining.FULL,)).fetchall()
    batch, payload = encoding.Stored(*row[:-1]), row[-1]
    assert batch.link is not None
    forged = msgspec.structs.replace(batch, link=batch.link[:-1] + bytes([batch.link[-1] ^ 1]))
    identity = uuid.UUID(topic_of(engine).identity).bytes
    check = encoding.checksum(identity, 0, forged, zlib.crc32(payload))
    connection.execute("UPDATE log_batch SET link = ?, checksum = ? WHERE seq = ?", (forged.link, check, forged.seq))
    connection.close()
    member = Member(engine)
    member.until(lambda: bool(member.stopped), "told")
    assert "do not follow" in str(member.stopped[0].error)
    assert len(member.records) == joining.FULL
    member.consumer.close()


def test_damage_ends_compaction_of_its_partition_alone(
    engine: SqliteEngine, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(engine, 2, compact=True)
    publish(engine, [message(n, key=b"%d" % (n % 8)) for n in range(400)], batch_records=20)
    before = {partition: read_all(engine, partition) for partition in (0, 1)}
    bad = before[1][len(before[1]) // 2].offset
    connection = open_connection(path)
    place = "part = 2 AND base = (SELECT max(base) FROM log_batch WHERE part = 2 AND base <= ?)"
    [(payload,)] = connection.execute(f"SELECT payload FROM log_batch WHERE {place}", (bad,)).fetchall()
    connection.execute(f"UPDATE log_batch SET payload = ? WHERE {place}", (payload[:-1], bad))
    caplog.set_level(logging.ERROR, "settled.engines.sqlite")
    assert engine.maintain(force=True)[names.topic] > 0
    assert f"{names.topic}/1" in caplog.text
    left = {record.key for record in before[0]}
    assert len(read_all(engine)) == len(left)
    connection.execute(f"UPDATE log_batch SET payload = ? WHERE {place}", (payload, bad))  # a copy is put back
    connection.close()
    newest = {record.key: record for record in before[1]}
    assert [record for record in read_all(engine, 1) if newest[record.key] == record] == sorted(
        newest.values(), key=lambda record: record.offset
    )
    engine.maintain(force=True)
    assert len(read_all(engine, 1)) == len(newest)
    require_exact(engine, path)


# What is beside it


def test_retention_holds_beside_compaction(engine: SqliteEngine, path: Path) -> None:
    make_topic(engine, compact=True, retention_bytes=1)
    publish(engine, keyed(RECIPE), batch_records=2)
    member = Member(engine)
    member.receives(7)
    member.consumer.commit({(names.topic, 0): 4})
    assert engine.maintain() == {names.topic: 4}  # by retention: the head, whole
    assert topic_of(engine).partitions[0].begin == 4
    make_topic(engine, compact=True)
    member.consumer.commit({(names.topic, 0): 7})
    publish(engine, keyed(b"bad", 7))
    assert engine.maintain(force=True) == {names.topic: 3}
    require_exact(engine, path)
    make_topic(engine, compact=True, retention_bytes=1)
    assert engine.maintain(force=True) == {names.topic: 3}
    part = topic_of(engine).partitions[0]
    assert (part.begin, part.end, part.records, part.bytes, part.stored_bytes) == (10, 10, 0, 0, 0)
    member.consumer.close()


def test_holes_are_kept_apart_from_what_a_power_cut_took(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SqliteEngine(f"sqlite:///{path}")
    make_topic(engine, compact=True)
    producer = engine.producer(ProducerSpec(durability="memory"))
    for one in keyed(RECIPE):
        producer.send(one).result(timeout=30)
    connection = open_connection(path)
    reserved = connection.execute("SELECT reserved FROM log_partition").fetchall()[0][0]
    assert reserved > 7
    engine.maintain(force=True)
    assert connection.execute("SELECT reserved FROM log_partition").fetchall()[0][0] == reserved
    connection.close()
    monkeypatch.setattr(clock, "boot_id", lambda: "another-boot")
    again = SqliteEngine(f"sqlite:///{path}")
    assert publish(again, keyed(b"a", 7))[0].offset == reserved
    assert again.maintain(force=True) == {names.topic: 1}  # across what is lost
    member = Member(again)
    member.receives(4)
    assert [record.offset for record in member.records] == [3, 4, 6, reserved]
    assert [one.gap_from for one in member.fetched if one.gap_from is not None] == [7]
    member.consumer.close()
    again.close()
    monkeypatch.undo()
    producer.close()
    engine.close()


def test_small_batches_are_joined(engine: SqliteEngine, path: Path) -> None:
    make_topic(engine, compact=True)
    publish(engine, [message(n, key=b"%d" % (n % 300), value=b"v" * 50) for n in range(3000)], batch_records=3)
    assert len(rows(path, "SELECT 1 FROM log_batch")) == 1000
    engine.maintain(force=True)
    assert len(rows(path, "SELECT 1 FROM log_batch")) <= 3
    assert [record.offset for record in read_all(engine)] == list(range(2700, 3000))
    require_exact(engine, path)


def test_long_keys_are_told_apart(engine: SqliteEngine) -> None:
    make_topic(engine, compact=True)
    keys = [b"%d" % n + b"k" * length for n in range(300) for length in (0, 30, 40)]
    publish(engine, [message(n, key=key) for n, key in enumerate([*keys, *keys])])
    assert engine.maintain(force=True) == {names.topic: len(keys)}
    assert [record.key for record in read_all(engine)] == keys


def test_a_pass_is_made_when_half_is_new(engine: SqliteEngine) -> None:
    make_topic(engine, compact=True)
    publish(engine, [message(n, key=b"%d" % (n % 10)) for n in range(100)], batch_records=10)
    assert engine.maintain() == {names.topic: 90}
    publish(engine, [message(n, key=b"%d" % (n % 10)) for n in range(100, 109)])
    assert engine.maintain() == {}
    publish(engine, [message(109, key=b"9")])
    assert engine.maintain() == {names.topic: 10}


# All of it, against a model

_STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"),
            st.lists(st.tuples(st.sampled_from([None, b"", b"a", b"b", b"k" * 40]), st.booleans()), max_size=12),
            st.integers(1, 5),
        ),
        st.tuples(st.just("compact"), st.just(0), st.just(0)),
        st.tuples(st.just("forget"), st.just(0), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS, keys=st.sampled_from([1, 2, 100_000]), step=st.sampled_from([2, 64]))
def test_whatever_is_published_and_compacted_the_newest_is_left(
    engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch, steps: Any, keys: int, step: int
) -> None:
    monkeypatch.setattr(compaction, "KEYS", keys)
    monkeypatch.setattr(joining, "STEP", step)
    names.fresh()
    model: list[tuple[int, bytes | None, bytes | None]] = []
    sent = 0
    make_topic(engine, compact=True)
    for what, given_rows, size in steps:
        if what == "publish":
            made = [
                Message(topic=names.topic, id=f"e{sent + place}", key=key, value=b"v" if full else None)
                for place, (key, full) in enumerate(given_rows)
            ]
            publish(engine, made, batch_records=size, durability="memory")
            model += [(sent + place, key, b"v" if full else None) for place, (key, full) in enumerate(given_rows)]
            sent += len(made)
            continue
        make_topic(engine, compact=True, tombstone_s=0.0 if what == "forget" else 3600.0)
        engine.maintain(force=True)
        newest = {key: offset for offset, key, _ in model}
        model = [
            row
            for row in model
            if row[1] is None or (newest[row[1]] == row[0] and not (what == "forget" and row[2] is None))
        ]
        assert [(found.offset, found.key, found.value) for found in read_all(engine)] == model
        assert [found.id for found in read_all(engine)] == [f"e{offset}" for offset, _, _ in model]
        require_exact(engine, path)
    for first in range(sent + 1):
        wanted = [row for row in model if row[0] >= first]
        assert [found.offset for found in engine.read(names.topic, 0, first, records=1000)] == [
            row[0] for row in wanted
        ]
        assert engine.held(names.topic, 0, first, sent) == len(wanted)


def test_publishing_goes_on_meanwhile(engine: SqliteEngine, path: Path) -> None:
    make_topic(engine, compact=True, pass_groups=True)
    other, stop = SqliteEngine(engine.url), threading.Event()
    removed: list[int] = []

    def compact() -> None:
        while not stop.is_set():
            removed.append(sum(other.maintain().values()))

    thread = threading.Thread(target=compact)
    thread.start()
    member = Member(engine)
    try:
        for start in range(0, 4000, 100):
            publish(engine, [message(n, key=b"%d" % (n % 7)) for n in range(start, start + 100)], batch_records=9)
            member.poll(0)
    finally:
        stop.set()
        thread.join(60)
    other.maintain(force=True)
    assert sum(removed) > 0
    assert [record.offset for record in read_all(engine)] == list(range(3993, 4000))
    member.until(lambda: member.fetched[-1].next_offset == 4000, "the end")
    offsets = [record.offset for record in member.records]
    assert offsets == sorted(set(offsets))
    assert offsets[-7:] == list(range(3993, 4000))
    assert {one.gap_from for one in member.fetched} == {None}
    require_exact(engine, path)
    member.consumer.close()
    other.close()
