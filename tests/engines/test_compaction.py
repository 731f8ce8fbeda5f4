"""Compaction of the embedded log: what is left is right and whole, and is read without loss, by whomever and when."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journey.shop import Shop, insert, wait_settled, working
from settled import clock
from settled.engine import ProducerSpec
from settled.engines.sqlite import SqliteEngine, compaction, joining
from settled.errors import Damaged, HistoryLost
from settled.events import GapFound
from settled.operations.growing import review
from settled.operations.status import status
from settled.operations.topics import last_records
from settled.record import Message, Record
from settled.sqlite import open_connection
from settled.testing.engine_compaction import RECIPE, keyed
from settled.testing.engine_tools import Member, make_topic, message, names, publish, topic_of
from settled.tokens import Visible


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(f"sqlite:///{path}")
    yield engine
    engine.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path)
    yield found
    found.close()


def rows(path: Path, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    connection = open_connection(path)
    try:
        return list(connection.execute(sql, params))
    finally:
        connection.close()


def read_all(engine: SqliteEngine, partition: int = 0) -> list[Record]:
    return engine.read(names.topic, partition, 0, records=1_000_000)


def require_exact(engine: SqliteEngine, path: Path) -> None:
    """What is told of each partition is what is there."""
    for part in topic_of(engine).partitions:
        found = read_all(engine, part.partition)
        assert part.records == len(found)
        assert part.bytes == sum(record.size for record in found)
        [(stored,)] = rows(
            path,
            "SELECT coalesce(sum(length(payload)), 0) FROM log_batch b JOIN log_partition p ON p.id = b.part JOIN "
            "log_topic t ON t.id = p.topic WHERE t.name = ? AND p.number = ?",
            names.topic,
            part.partition,
        )
        assert part.stored_bytes == stored
        assert part.oldest_us == (found[0].accepted_us if found else part.oldest_us)


# B002


def recipe(shop: Shop, handler: Any = insert) -> Any:
    """Seven records of which only the first is settled, and what compaction leaves of them."""
    app = shop.app(handler, retention={"compact": True}, producer={"batch": {"records": 1}})
    app.publish(b"x", key="a", id="e0")
    app.drain()
    for number, key in enumerate("bacbad", 1):
        app.publish(b"x", key=key, id=f"e{number}")
    assert app.engine.maintain() == {}  # the group is active, and not past them
    assert app.engine.maintain(force=True) == {"t": 3}
    return app


def test_b002_a_group_passes_over_what_compaction_removed(shop: Shop) -> None:
    app = recipe(shop)
    [before] = status(app.engine, app.store, app.contract).consumers
    assert (before.lag_records, before.state) == (4, "behind")
    events: list[Any] = []
    app.events.listen(events.append)
    with working(app):
        wait_settled(shop, app, 7)
    assert shop.ids() == ["e0", "e3", "e4", "e5", "e6"]
    assert shop.frontier(app) == 7
    [after] = status(app.engine, app.store, app.contract).consumers
    assert (after.lag_records, after.state, after.gaps) == (0, "settled", [])
    assert not [event for event in events if isinstance(event, GapFound)]


def test_a_token_of_a_record_that_went_resolves(shop: Shop) -> None:
    app = shop.app(retention={"compact": True}, producer={"batch": {"records": 1}})
    token = app.publish(b"x", key="a", id="e0").token
    app.publish(b"x", key="a", id="e1")
    app.engine.maintain(force=True)
    with working(app):
        found = app.wait(token, 30)
    assert isinstance(found, Visible)
    assert shop.ids() == ["e1"]


def test_holes_at_the_end_are_passed_and_stored(shop: Shop) -> None:
    """The last record was a tombstone whose time is over: nothing is left that could move the frontier by itself."""
    app = shop.app(retention={"compact": True, "tombstones": "0s"}, producer={"batch": {"records": 1}})
    app.publish(b"x", key="a", id="e0")
    app.publish(None, key="a", id="e1")
    app.engine.maintain(force=True)
    app.drain()
    assert shop.frontier(app) == 2
    assert shop.ids() == []


# Who reads


def test_a_group_that_joins_later_sees_what_is_left_in_order(engine: SqliteEngine) -> None:
    make_topic(engine, compact=True)
    chance = random.Random(7)
    publish(engine, [message(n, key=b"%d" % chance.randrange(20)) for n in range(2000)], batch_records=50)
    engine.maintain(force=True)
    left = read_all(engine)
    assert len({record.key for record in left}) == len(left) == 20
    for start in (0, left[0].offset, left[3].offset + 1, 1999, 2000):
        member = Member(engine, group=f"late-{start}", start=start)
        wanted = [record for record in left if record.offset >= start]
        member.receives(len(wanted))
        member.until(
            lambda member=member, start=start: start == 2000 or member.fetched[-1].next_offset == 2000, "the end"
        )  # type: ignore[misc]
        assert member.records == wanted
        assert engine.read(names.topic, 0, start, records=5000) == wanted
        member.consumer.close()


def test_latest_begins_behind_the_holes(shop: Shop) -> None:
    app = shop.app(retention={"compact": True, "tombstones": "0s"}, transport={"start": "latest"})
    app.publish(b"x", key="a", id="e0")
    app.publish(None, key="a", id="e1")
    app.engine.maintain(force=True)
    with working(app):
        wait_settled(shop, app, 2)
        app.publish(b"x", key="b", id="e2")
        wait_settled(shop, app, 3)
    assert shop.ids() == ["e2"]


def test_the_newest_records_are_found_behind_holes(engine: SqliteEngine) -> None:
    """As `settled topic tail` and the review of a growing topic look for them."""
    make_topic(engine, compact=True, tombstone_s=0.0)
    publish(engine, keyed(b"abcdef"), batch_records=1)
    publish(engine, [message(n, key=b"x%d" % n, value=None) for n in range(6, 500)])
    engine.maintain(force=True)
    info = topic_of(engine)
    assert [record.offset for record in last_records(engine, info, 4)] == [2, 3, 4, 5]
    assert [record.offset for record in last_records(engine, info, 100)] == [0, 1, 2, 3, 4, 5]
    found = review(engine, info, 4, sample=5)
    assert (found.records, found.keys) == (6, 6)


def test_positions_by_time_are_those_of_records_that_are_left(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(engine, compact=True)
    now = clock.wall_us()
    monkeypatch.setattr(clock, "wall_us", lambda: now)
    for number, key in enumerate(RECIPE):
        now += 1_000_000
        publish(engine, [message(number, key=bytes([key]))])
    before = read_all(engine)
    engine.maintain(force=True)
    assert len(rows(engine._database.path, "SELECT 1 FROM log_batch")) == 1
    for record in before:
        first = next(one.offset for one in before if one.accepted_us >= record.accepted_us and one.offset > 2)
        assert engine.offset_at(names.topic, 0, record.accepted_us) == first
    assert engine.offset_at(names.topic, 0, now + 1) == 7
    assert topic_of(engine).partitions[0].oldest_us == before[3].accepted_us


def test_the_newest_of_a_key_may_be_where_groups_are_not_yet(engine: SqliteEngine) -> None:
    make_topic(engine, compact=True)
    publish(engine, keyed(b"ababab"), batch_records=1)
    member = Member(engine)
    member.receives(6)
    member.consumer.commit({(names.topic, 0): 4})
    assert engine.maintain() == {names.topic: 2}
    assert [record.offset for record in read_all(engine)] == [2, 3, 4, 5]
    newcomer = Member(engine, group="newcomer")  # it needs all that is left
    newcomer.receives(4)
    member.consumer.commit({(names.topic, 0): 6})
    assert engine.maintain() == {}
    newcomer.consumer.commit({(names.topic, 0): 6})
    assert engine.maintain() == {names.topic: 2}
    for each in (member, newcomer):
        each.consumer.close()


def test_witnesses_stay_good(engine: SqliteEngine) -> None:
    make_topic(engine, compact=True)
    publish(engine, [message(n, key=b"%d" % (n % 5)) for n in range(60)], batch_records=10)
    member = Member(engine)
    member.receives(60, records=10)
    marks = [(one.next_offset, one.witness) for one in member.fetched]
    member.consumer.commit({(names.topic, 0): 30})
    assert engine.maintain() == {names.topic: 25}
    member.consumer.commit({(names.topic, 0): 60})
    for offset, mark in marks:
        member.consumer.start(names.topic, 0, offset, witness=(offset, mark))
    with pytest.raises(HistoryLost):
        member.consumer.start(names.topic, 0, 30, witness=(30, b"x" * 16))
    member.consumer.start(names.topic, 0, 30, witness=marks[2])
    member.records.clear()
    assert [one.offset for one in member.receives(30)] == list(range(30, 60))
    assert engine.maintain() == {names.topic: 30}
    for offset, mark in marks:
        member.consumer.start(names.topic, 0, offset, witness=(offset, mark))
    with pytest.raises(HistoryLost):
        member.consumer.start(names.topic, 0, 60, witness=(60, b"x" * 16))
    member.consumer.close()


# Damage


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


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
            publish(engine, made, batch_records=size)
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
