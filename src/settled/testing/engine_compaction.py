"""What an engine must show of topics that are compacted by key: the newest of each key stays where it was, what went is
neither a gap nor lag, and no group misses what it had not passed unless the topic says so.
"""

from __future__ import annotations

import pytest

from settled.engine import Counting, Engine, TopicSpec
from settled.errors import ContractError, Unsupported
from settled.operations.lag import lags
from settled.record import Message
from settled.store import Position
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

RECIPE = b"abacbad"  # the keys of offsets 0 to 6; of each key the last one stays


def keyed(keys: bytes, first: int = 0) -> list[Message]:
    """A message for each byte, which is its key."""
    return [message(first + place, key=bytes([key])) for place, key in enumerate(keys)]


class CompactionCases:
    @pytest.fixture
    def compacting(self, engine: Engine) -> Engine:
        """The engine, where it claims compaction and it is known when it compacts."""
        if not engine.capabilities.of("log").compaction:
            pytest.skip("no compaction here")
        if not engine.capabilities.of("log").maintains:
            pytest.skip("the brokers compact when they see fit")
        return engine

    def test_a_topic_is_compacted_or_refused(self, engine: Engine, engine_factory: EngineFactory) -> None:
        spec = TopicSpec(name=names.topic, compact=True, tombstone_s=120.0)
        if not engine.capabilities.of("log").compaction:
            with pytest.raises(Unsupported):
                engine.ensure_topic(spec)
            assert not engine.topics([names.topic])
            return
        made = engine.ensure_topic(spec)
        assert (made.spec.compact, made.spec.tombstone_s) == (True, 120.0)
        told = engine_factory().topics([names.topic])[0].spec
        assert (told.compact, told.tombstone_s) == (True, 120.0)
        again = engine.ensure_topic(TopicSpec(name=names.topic, compact=True, tombstone_s=60.0, retention_s=3600.0))
        assert again.identity == made.identity

        def taken_on() -> bool:
            spec = engine.topics([names.topic])[0].spec
            return (spec.compact, spec.tombstone_s, spec.retention_s) == (True, 60.0, 3600.0)

        eventually(taken_on, "every broker knows what it took on")
        left = engine.ensure_topic(TopicSpec(name=names.topic)).spec
        assert left.compact is not engine.capabilities.of("log").maintains  # where brokers compact, only people end it
        with pytest.raises(ContractError, match="tombstone_s"):
            engine.ensure_topic(TopicSpec(name=names.topic, compact=True, tombstone_s=-1.0))

    def test_the_newest_of_each_key_stays_where_it_was(self, compacting: Engine) -> None:
        make_topic(compacting, compact=True)
        publish(compacting, keyed(RECIPE), batch_records=2)
        before = compacting.read(names.topic, 0, 0)
        assert compacting.maintain(force=True) == {names.topic: 3}
        assert compacting.read(names.topic, 0, 0) == before[3:]
        assert compacting.maintain(force=True) == {}
        part = topic_of(compacting).partitions[0]
        assert (part.end, part.records) == (7, 4)
        assert publish(compacting, keyed(b"x", 7))[0].offset == 7

    def test_no_key_is_no_key_and_an_empty_one_is(self, compacting: Engine) -> None:
        make_topic(compacting, compact=True)
        keys = [None, b"", None, b"k", b"", None, b"k"]
        publish(compacting, [message(number, key=key) for number, key in enumerate(keys)])
        assert compacting.maintain(force=True) == {names.topic: 2}
        assert [found.offset for found in compacting.read(names.topic, 0, 0)] == [0, 2, 4, 5, 6]

    def test_compaction_waits_for_an_active_group(self, compacting: Engine) -> None:
        make_topic(compacting, compact=True)
        publish(compacting, keyed(b"aaaabbbb"), batch_records=2)
        member = Member(compacting)
        member.receives(8)
        assert compacting.maintain() == {}
        member.consumer.commit({(names.topic, 0): 5})
        assert compacting.maintain() == {names.topic: 3}
        assert [found.offset for found in compacting.read(names.topic, 0, 0)] == [3, 4, 5, 6, 7]
        member.consumer.commit({(names.topic, 0): 8})
        assert compacting.maintain() == {names.topic: 3}
        assert [found.offset for found in compacting.read(names.topic, 0, 0)] == [3, 7]
        member.consumer.close()

    def test_compaction_passes_groups_where_the_topic_says_so(self, compacting: Engine) -> None:
        make_topic(compacting, compact=True, pass_groups=True)
        publish(compacting, keyed(RECIPE))
        member = Member(compacting, start=-1)
        member.owns(1)
        assert compacting.maintain() == {names.topic: 3}
        member.consumer.start(names.topic, 0, 1)
        assert [found.offset for found in member.receives(4)] == [3, 4, 5, 6]
        assert {found.gap_from for found in member.fetched} == {None}
        member.consumer.close()

    def test_a_tombstone_stays_for_its_time_and_takes_its_key_along(self, compacting: Engine) -> None:
        make_topic(compacting, compact=True, tombstone_s=3600.0)
        publish(compacting, [message(1, key=b"a"), message(2, key=b"a", value=None), message(3, key=b"b")])
        assert compacting.maintain(force=True) == {names.topic: 1}
        assert [(found.key, found.value) for found in compacting.read(names.topic, 0, 0)] == [
            (b"a", None),
            (b"b", b"v3"),
        ]
        make_topic(compacting, compact=True, tombstone_s=0.0)
        assert compacting.maintain(force=True) == {names.topic: 1}
        assert [found.key for found in compacting.read(names.topic, 0, 0)] == [b"b"]

    def test_what_went_is_neither_gap_nor_lag(self, compacting: Engine) -> None:
        make_topic(compacting, compact=True, tombstone_s=0.0)
        publish(compacting, [*keyed(RECIPE), message(7, key=b"z", value=None)], batch_records=3)
        compacting.maintain(force=True)
        member = Member(compacting, start=1)
        member.until(lambda: bool(member.fetched) and member.fetched[-1].next_offset == 8, "all offsets are passed")
        assert [found.offset for found in member.records] == [3, 4, 5, 6]
        assert {found.gap_from for found in member.fetched} == {None}
        member.consumer.close()
        assert isinstance(compacting, Counting)
        info = topic_of(compacting)
        for frontier, left in enumerate((4, 4, 4, 4, 3, 2, 1, 0, 0)):
            at = Position(topic=names.topic, partition=0, epoch=1, frontier=frontier, identity=info.identity)
            (lag,) = lags(compacting, info, {0: at})
            assert (lag.records, lag.state) == (left, "behind" if left else "settled"), frontier
            assert compacting.held(names.topic, 0, frontier, 8) == left
