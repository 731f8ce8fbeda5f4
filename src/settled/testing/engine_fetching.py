"""What an engine must show of fetching: bounds, pauses, gaps, damage, and a history that is not what it was."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from settled.engine import Engine
from settled.errors import Damaged, Fenced, HistoryLost
from settled.testing.engine_tools import (
    EngineFactory,
    Member,
    eventually,
    make_topic,
    message,
    names,
    publish,
    topic_of,
)

MIB = 1024 * 1024


class FetchCases:
    retention: ClassVar[dict[str, Any]] = {"retention_s": 0.001}  # of topics whose records `remove` takes away
    fetches_ahead_s = 0.0  # so long until records of all partitions wait in the member, whether or not it is polled
    removes_exactly = True  # `remove` takes away what it is told to, and nothing else
    flows_while_giving_back = True  # other partitions bring new records while a revoked one is not released yet

    def damage(self, engine: Engine, topic: str, partition: int, offset: int) -> None:
        """Change a byte of the stored record at `offset`, behind the engine's back. The subclass knows how."""
        raise NotImplementedError

    def remove(self, engine: Engine, topic: str, partition: int, before: int) -> None:
        """Remove the records below `before` as retention would. The subclass of an engine whose retention is the
        brokers' has its own way."""
        removed: dict[str, int] = {"count": 0}

        def ask() -> bool:
            removed["count"] += engine.maintain(force=True).get(topic, 0)
            return removed["count"] == before

        eventually(ask, "all are older than the retention")

    def test_fetching_begins_anywhere(self, engine: Engine) -> None:
        make_topic(engine)
        publish(engine, map(message, range(20)), batch_records=8)
        member = Member(engine, start=10)
        assert [one.id for one in member.receives(10)] == [f"e{n}" for n in range(10, 20)]
        assert member.fetched[-1].next_offset == 20
        assert sum(one.size for one in member.fetched) == sum(one.size for one in member.records)
        assert all(one.gap_from is None for one in member.fetched)
        member.consumer.close()

    def test_nothing_comes_before_start_or_without_room(self, engine: Engine) -> None:
        make_topic(engine)
        publish(engine, [message(1)])
        member = Member(engine, start=-1)
        member.owns(1)
        member.poll()
        assert member.fetched == []
        member.consumer.start(names.topic, 0, 0)
        member.poll(records=0)
        assert member.fetched == []
        member.receives(1)
        member.consumer.close()

    def test_what_is_not_this_members_is_not_started(self, engine: Engine) -> None:
        """It may have been lost since it was announced: an owner gives it up, as when it is fenced."""
        make_topic(engine, 2)
        member = Member(engine)
        member.owns(2)
        with pytest.raises(Fenced):
            member.consumer.start(names.topic, 2, 0)
        member.consumer.close()

    def test_targets_bound_what_is_fetched(self, engine: Engine) -> None:
        make_topic(engine, 8)
        publish(engine, [message(n, value=b"x" * 10_000) for n in range(400)], batch_records=8)
        member = Member(engine)
        member.owns(8)
        while len(member.records) < 400:
            known, before = len(member.fetched), len(member.records)
            member.poll(records=20, bytes=100_000)
            assert len(member.records) - before <= 20
            assert sum(one.size for one in member.fetched[known:]) <= 110_000
        assert len({one.id for one in member.records}) == 400
        member.consumer.close()

    def test_partitions_take_turns(self, engine: Engine) -> None:
        make_topic(engine, 4)
        publish(engine, [message(n) for n in range(400)], batch_records=10)
        member = Member(engine)
        member.owns(4)
        member.poll(self.fetches_ahead_s, records=0)
        member.fetched.clear()
        member.records.clear()
        member.until(lambda: len(member.records) >= 100, "a quarter", records=10)
        counts = [sum(len(one.records) for one in member.fetched if one.partition == n) for n in range(4)]
        assert min(counts) >= 10
        member.consumer.close()

    def test_a_record_above_the_target_comes_alone(self, engine: Engine) -> None:
        make_topic(engine, max_message_bytes=min(6 * MIB, engine.capabilities.of("log").max_message_bytes))
        sizes = [10, min(5 * MIB, engine.capabilities.of("log").max_message_bytes - 1000), 10]
        for number, size in enumerate(sizes):
            publish(engine, [message(number, value=b"x" * size)])
        member = Member(engine)
        found = member.receives(3, bytes=MIB // 8)
        assert [len(one.value or b"") for one in found] == sizes
        assert [len(one.records) for one in member.fetched] == [1, 1, 1]
        member.consumer.close()

    def test_pause_and_resume(self, engine: Engine) -> None:
        make_topic(engine, 2)
        member = Member(engine)
        member.owns(2)
        member.consumer.pause([(names.topic, 1)])
        sent = publish(engine, map(message, range(40)))
        here = sum(receipt.partition == 0 for receipt in sent)
        assert 0 < here < 40
        member.receives(here)
        member.poll()
        assert {one.partition for one in member.records} == {0}
        member.consumer.resume([(names.topic, 1)])
        assert len(member.receives(40)) == 40
        member.consumer.close()

    def test_a_pause_ends_with_the_assignment(self, engine: Engine) -> None:
        make_topic(engine, 1)
        member = Member(engine)
        member.owns(1)
        member.consumer.pause([(names.topic, 0)])
        member.consumer.release(names.topic, 0)
        publish(engine, [message(1)])
        member.receives(1)  # assigned again, and flowing
        member.consumer.close()

    def test_a_revoked_partition_brings_no_more(self, engine: Engine) -> None:
        make_topic(engine, 2)
        first = Member(engine)
        first.owns(2)
        first.give_back = False
        second = Member(engine)
        first.until(lambda: len(first.asked) == 1, "asked to give one back")
        sent = publish(engine, map(message, range(40)))
        kept = {0, 1} - {first.asked[0][1]}
        here = sum(receipt.partition in kept for receipt in sent)
        if self.flows_while_giving_back:
            first.receives(here)
        first.poll(0.5)
        assert {one.partition for one in first.records} <= kept
        first.consumer.release(*first.asked[0])
        first.receives(here)
        assert {one.partition for one in first.records} == kept
        second.receives(40 - len(first.records))
        first.consumer.close()
        second.consumer.close()

    def test_a_gap_is_told(self, engine: Engine, engine_factory: EngineFactory) -> None:
        make_topic(engine, **self.retention)
        self._publish_and_remove(engine, 60)
        publish(engine, map(message, range(60, 65)))
        member = Member(engine_factory(), start=10)
        assert [one.id for one in member.receives(5)] == [f"e{n}" for n in range(60, 65)]
        assert [one.gap_from for one in member.fetched if one.gap_from is not None] == [10]
        assert member.fetched[0].gap_from == 10
        assert member.records[0].offset == 60
        member.consumer.close()

    def test_a_gap_up_to_the_end_is_told_too(self, engine: Engine) -> None:
        make_topic(engine, **self.retention)
        self._publish_and_remove(engine, 60)
        assert engine.offset_at(names.topic, 0, 0) == 60
        member = Member(engine, start=10)
        member.until(lambda: bool(member.fetched), "told of the gap")
        told = member.fetched[0]
        assert (told.gap_from, told.next_offset, told.records) == (10, 60, [])
        publish(engine, [message(60)])
        assert member.receives(1)[0].offset == 60  # offsets go on, also when nothing was held
        assert member.fetched[-1].gap_from is None
        member.consumer.close()

    def test_retention_stops_at_an_active_frontier(self, engine: Engine) -> None:
        if not engine.capabilities.of("log").maintains:
            make_topic(engine)
            assert engine.maintain() == engine.maintain(force=True) == {}
            return
        make_topic(engine, retention_bytes=1)
        publish(engine, map(message, range(30)), batch_records=10)
        member = Member(engine)
        member.receives(30)
        assert engine.maintain() == {}
        member.consumer.commit({(names.topic, 0): 25})
        assert engine.maintain() == {names.topic: 20}
        assert topic_of(engine).partitions[0].begin == 20
        assert engine.maintain(force=True) == {names.topic: 10}
        part = topic_of(engine).partitions[0]
        assert (part.begin, part.end, part.records, part.bytes, part.stored_bytes) == (30, 30, 0, 0, 0)
        member.consumer.close()

    def test_retention_keeps_what_is_young_and_fits(self, engine: Engine) -> None:
        make_topic(engine, retention_s=3600.0, retention_bytes=10 * MIB)
        publish(engine, map(message, range(30)))
        assert engine.maintain() == {}
        assert len(engine.read(names.topic, 0, 0)) == 30

    def test_a_position_beyond_the_end_is_history_lost(self, engine: Engine) -> None:
        make_topic(engine)
        publish(engine, map(message, range(5)))
        member = Member(engine, start=-1)
        member.owns(1)
        with pytest.raises(HistoryLost, match="5"):
            member.consumer.start(names.topic, 0, 6)
        member.consumer.start(names.topic, 0, 5)
        member.consumer.close()

    def test_a_witness_tells_another_history(self, engine: Engine) -> None:
        make_topic(engine)
        publish(engine, map(message, range(30)), batch_records=10)
        first = Member(engine)
        first.receives(30, records=10)
        marks = [(one.next_offset, one.witness) for one in first.fetched]
        first.consumer.close()
        if not engine.capabilities.of("log").witness:
            assert {mark for _, mark in marks} == {b""}
            return
        assert len({mark for _, mark in marks}) == 3
        second = Member(engine, start=-1)
        second.owns(1)
        for offset, mark in marks:
            second.consumer.start(names.topic, 0, offset, witness=(offset, mark))
            second.consumer.start(names.topic, 0, 30, witness=(offset, mark))
        for offset, mark in ((10, marks[1][1]), (30, b"x" * 16), (15, marks[0][1])):
            with pytest.raises(HistoryLost):
                second.consumer.start(names.topic, 0, max(offset, 20), witness=(offset, mark))
        second.consumer.start(names.topic, 0, 20, witness=marks[1])
        assert [one.offset for one in second.receives(10)] == list(range(20, 30))
        second.consumer.close()

    def test_a_witness_outlives_what_it_saw(self, engine: Engine) -> None:
        if not engine.capabilities.of("log").witness:
            pytest.skip("no witnesses here")
        make_topic(engine, retention_bytes=1)
        publish(engine, map(message, range(30)), batch_records=10)
        member = Member(engine)
        member.receives(30, records=10)
        marks = [(one.next_offset, one.witness) for one in member.fetched]
        member.consumer.commit({(names.topic, 0): 20})
        assert engine.maintain() == {names.topic: 20}
        member.consumer.start(names.topic, 0, 20, witness=marks[1])  # its own batch is gone, the next one follows on it
        with pytest.raises(HistoryLost):
            member.consumer.start(names.topic, 0, 20, witness=(20, b"y" * 16))
        member.consumer.start(names.topic, 0, 10, witness=(10, b"gone and unknown"))  # cannot be told any more
        member.consumer.close()

    def test_damage_stops_its_partition_only(self, engine: Engine) -> None:
        make_topic(engine, 2)
        sent = publish(engine, map(message, range(60)), batch_records=6)
        bad = next(receipt for receipt in sent[30:] if receipt.partition == 1)
        self.damage(engine, names.topic, 1, bad.offset)
        member = Member(engine)
        whole = sum(receipt.partition == 0 for receipt in sent)
        member.until(lambda: bool(member.stopped), "told of the damage")
        member.until(lambda: sum(one.partition == 0 for one in member.records) == whole, "the other goes on")
        stopped = member.stopped[0]
        assert isinstance(stopped.error, Damaged)
        assert f"{names.topic}/1" in str(stopped.error)
        good = [one.offset for one in member.records if one.partition == 1]
        assert good == list(range(len(good)))
        assert 0 < len(good) <= bad.offset
        publish(engine, [message(n) for n in range(60, 100)])
        member.until(lambda: sum(one.partition == 0 for one in member.records) > whole, "new records of the other")
        member.poll()
        assert [one.offset for one in member.records if one.partition == 1] == good
        assert len(member.stopped) == 1
        with pytest.raises(Damaged, match=str(len(good))):
            engine.read(names.topic, 1, len(good))
        member.consumer.close()

    def _publish_and_remove(self, engine: Engine, count: int) -> None:
        if not self.removes_exactly:
            pytest.skip("retention here removes whole files, and not at a test's word")
        publish(engine, map(message, range(count)), batch_records=10)
        self.remove(engine, names.topic, 0, count)
