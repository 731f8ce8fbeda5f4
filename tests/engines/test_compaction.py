"""Compaction of the embedded log, as readers see it: what is left is passed through without loss, gap or lag."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.compacted import read_all, rows
from journey.shop import Shop, insert, wait_settled, working
from settled import clock
from settled.engines.sqlite import SqliteEngine
from settled.errors import HistoryLost
from settled.events import GapFound
from settled.operations.growing import review
from settled.operations.status import status
from settled.operations.topics import last_records
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


def test_who_holds_compaction_back_is_told(engine: SqliteEngine) -> None:
    make_topic(engine, compact=True)
    spec = topic_of(engine).spec
    publish(engine, keyed(b"aabb"), batch_records=1)
    for group in ("diligent", "abandoned"):
        member = Member(engine, group=group)
        member.receives(4)
        if group == "diligent":
            member.consumer.commit({(names.topic, 0): 4})
        member.consumer.close()
    assert engine.maintain() == {}
    told = engine.examine(spec)[-1]
    assert (told.name, told.state) == ("compaction", "note")
    assert told.told == f"group 'abandoned' needs {names.topic}/0 from offset 0 on, of 4"
    assert "pass_groups" in told.remedy
    make_topic(engine, compact=True, pass_groups=True)
    assert engine.maintain() == {names.topic: 2}
    told = engine.examine(spec)[-1]
    assert (told.name, told.state, told.remedy) == ("compaction", "ok", "")


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
