"""What an engine must show of topics and records: kept as they came, found again by offset and by time."""

from __future__ import annotations

import threading

import pytest

from settled.engine import Engine, TopicSpec
from settled.errors import ContractError, InvalidMessage, SettledError, TooLarge
from settled.record import Headers, Message
from settled.testing.engine_tools import (
    EngineFactory,
    eventually,
    make_topic,
    message,
    names,
    producing,
    publish,
    topic_of,
)

BAD_NAMES = ["", ".", "..", "../x", "a/b.c", "a%2Fb", "a b", "a?b#c", "ümlaut", "nul\0", "n" * 300]


class RecordCases:
    takes_on_retention = True  # a topic that is there takes on another retention; else that is refused

    def test_every_field_comes_back_as_it_was_sent(self, engine: Engine) -> None:
        make_topic(engine)
        sent = Message(
            topic=names.topic,
            key=b"\x00\xff",
            value=bytes(range(256)),
            headers=(("trace", b"\x01"),),
            id="order-1/7",
            type="OrderPlaced",
            version=7,
            event_time_us=1_700_000_000_000_001,
            correlation_id="c",
            causation_id="",
        )
        receipt = publish(engine, [sent])[0]
        found = engine.read(names.topic, 0, max(0, receipt.offset))[0]
        for field in Message.__struct_fields__:
            assert getattr(found, field) == getattr(sent, field), field
        assert (receipt.topic, receipt.partition, receipt.id, receipt.stored) == (names.topic, 0, "order-1/7", True)
        assert found.accepted_us > 0
        assert found.payload is None

    @pytest.mark.parametrize("key", [None, b"", b"k"])
    @pytest.mark.parametrize("value", [None, b"", b"v"])
    def test_none_and_empty_are_different(self, engine: Engine, key: bytes | None, value: bytes | None) -> None:
        make_topic(engine)
        publish(engine, [message(1, key=key, value=value)])
        found = engine.read(names.topic, 0, 0)[0]
        assert (found.key, found.value) == (key, value)

    def test_headers_with_none_are_kept_or_refused(self, engine: Engine) -> None:
        headers: Headers = (("a", None), ("b", b""), ("", b"x"), ("c", b"\x00\x01"))
        make_topic(engine)
        if engine.capabilities.of("log").null_headers:
            publish(engine, [message(1), message(2, headers=headers)])
            assert [found.headers for found in engine.read(names.topic, 0, 0)] == [(), headers]
        else:
            with pytest.raises(InvalidMessage):
                publish(engine, [message(1, headers=headers)])

    def test_repeated_headers_are_kept_or_refused(self, engine: Engine) -> None:
        headers: Headers = (("x", b"1"), ("y", b"2"), ("x", b"3"))
        make_topic(engine)
        if engine.capabilities.of("log").repeated_headers:
            publish(engine, [message(1, headers=headers)])
            found = engine.read(names.topic, 0, 0)[0]
            assert found.headers == headers
            assert found.header("x") == b"3"
        else:
            with pytest.raises(InvalidMessage):
                publish(engine, [message(1, headers=headers)])

    @pytest.mark.parametrize(
        "fields", [{"id": "e\0"}, {"id": ""}, {"headers": (("h\0", b""),)}, {"key": "text"}, {"version": 2**63}]
    )
    def test_what_no_engine_could_keep_is_refused(self, engine: Engine, fields: dict[str, object]) -> None:
        make_topic(engine)
        producer = engine.producer(producing())
        with pytest.raises(InvalidMessage):
            producer.send(message(1, **fields))
        producer.close()
        assert engine.read(names.topic, 0, 0) == []

    def test_offsets_of_a_partition_follow_one_another(self, engine: Engine) -> None:
        make_topic(engine, 3)
        receipts = publish(engine, map(message, range(500)), batch_records=7)
        by_partition: dict[int, list[int]] = {}
        for receipt in receipts:
            by_partition.setdefault(receipt.partition, []).append(receipt.offset)
        assert set(by_partition) == {0, 1, 2}
        for partition, told in by_partition.items():
            offsets = list(range(len(told)))
            assert told == [names.offset(offset) for offset in offsets]
            found = engine.read(names.topic, partition, 0, records=1000)
            assert [record.offset for record in found] == offsets
            assert [record.id for record in found] == [r.id for r in receipts if r.partition == partition]

    def test_reading_begins_anywhere(self, engine: Engine) -> None:
        make_topic(engine)
        publish(engine, map(message, range(20)), batch_records=8)
        assert [found.id for found in engine.read(names.topic, 0, 10, records=3)] == ["e10", "e11", "e12"]
        assert [found.id for found in engine.read(names.topic, 0, 19)] == ["e19"]
        assert engine.read(names.topic, 0, 20) == []

    def test_positions_by_time(self, engine: Engine) -> None:
        """A time beyond the end gives the end, never the beginning; an empty partition never fails."""
        make_topic(engine, 2)
        keyed = [message(n, key=b"k") for n in range(10)]
        partition = publish(engine, keyed[:1])[0].partition
        for one in keyed[1:]:
            publish(engine, [one])
        found = engine.read(names.topic, partition, 0)
        assert [record.accepted_us for record in found] == sorted(record.accepted_us for record in found)
        for record in found:
            first = next(one.offset for one in found if one.accepted_us >= record.accepted_us)
            assert engine.offset_at(names.topic, partition, record.accepted_us) == first
        assert engine.offset_at(names.topic, partition, 0) == 0
        assert engine.offset_at(names.topic, partition, found[-1].accepted_us + 1) == 10
        assert engine.offset_at(names.topic, 1 - partition, 0) == 0
        assert engine.offset_at(names.topic, 1 - partition, found[-1].accepted_us) == 0

    def test_unknown_places_are_named(self, engine: Engine) -> None:
        make_topic(engine)
        producer = engine.producer(producing())
        for call in (
            lambda: engine.read("nosuch", 0, 0),
            lambda: engine.read(names.topic, 1, 0),
            lambda: engine.offset_at("nosuch", 0, 0),
            lambda: engine.offset_at(names.topic, 9, 0),
            lambda: producer.send(message(1, topic="nosuch")),
        ):
            with pytest.raises(ContractError, match=r"nosuch|partition"):
                call()
        producer.close()

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_names_that_are_not_allowed(self, engine: Engine, name: str) -> None:
        with pytest.raises(ContractError):
            engine.ensure_topic(TopicSpec(name=name))
        assert name not in {info.spec.name for info in engine.topics()}

    def test_names_that_look_alike_are_two_topics_or_refused(self, engine: Engine) -> None:
        alike = [f"{names.topic}.b", f"{names.topic}_b"]
        engine.ensure_topic(TopicSpec(name=alike[0]))
        try:
            engine.ensure_topic(TopicSpec(name=alike[1]))
        except ContractError:
            assert alike[1] not in {info.spec.name for info in engine.topics()}
            return
        for name in alike:
            publish(engine, [message(1, topic=name, value=name.encode())])
        assert [engine.read(name, 0, 0)[0].value for name in alike] == [name.encode() for name in alike]

    def test_a_topic_is_made_once(self, engine: Engine, engine_factory: EngineFactory) -> None:
        made = engine.ensure_topic(TopicSpec(name=names.topic, partitions=3))
        if self.takes_on_retention:
            again = engine_factory().ensure_topic(TopicSpec(name=names.topic, partitions=3, retention_s=60.0))
            assert again.spec.retention_s == 60.0
        else:
            with pytest.raises(ContractError, match=r"retention_s.*60"):
                engine.ensure_topic(TopicSpec(name=names.topic, partitions=3, retention_s=60.0))
            again = engine_factory().ensure_topic(TopicSpec(name=names.topic, partitions=3))
            assert again.spec.retention_s is None
        assert made.identity == again.identity
        assert [part.partition for part in again.partitions] == [0, 1, 2]
        with pytest.raises(ContractError, match="partitions"):
            engine.ensure_topic(TopicSpec(name=names.topic, partitions=4))
        assert [info.spec.name for info in engine.topics()].count(names.topic) == 1

    @pytest.mark.parametrize("fields", [{"partitions": 0}, {"retention_s": 0.0}, {"max_message_bytes": 10**12}])
    def test_a_topic_that_cannot_be(self, engine: Engine, fields: dict[str, float]) -> None:
        with pytest.raises(ContractError):
            make_topic(engine, **fields)  # type: ignore[arg-type]

    def test_the_size_limit_names_both_sizes(self, engine: Engine) -> None:
        make_topic(engine, max_message_bytes=1000)
        producer = engine.producer(producing())
        with pytest.raises(TooLarge, match=r"(?s)1[0-9]{3}.*1000"):
            producer.send(message(1, value=b"x" * 1001))
        producer.send(message(2, value=b"x" * 900))
        producer.close()
        assert [found.id for found in engine.read(names.topic, 0, 0)] == ["e2"]

    def test_positions_are_one_snapshot(self, engine: Engine, engine_factory: EngineFactory) -> None:
        """Read while records are stored and removed: no difference ever goes below zero."""
        make_topic(engine, 4, retention_bytes=5_000)
        other, stop = engine_factory(), threading.Event()
        errors: list[SettledError] = []

        def work() -> None:
            number = 0
            while not stop.is_set():
                try:
                    publish(other, [message(number + n) for n in range(40)])
                    other.maintain()
                except SettledError as error:
                    errors.append(error)
                number += 40

        thread = threading.Thread(target=work)
        thread.start()
        try:
            seen: set[int] = set()
            eventually(lambda: self._snapshot(engine, seen), "twenty different snapshots")
        finally:
            stop.set()
            thread.join()
        assert not errors

    def _snapshot(self, engine: Engine, seen: set[int]) -> bool:
        parts = topic_of(engine).partitions
        for part in parts:
            assert 0 <= part.begin <= part.end
            assert part.records == part.end - part.begin
            if part.bytes is not None and part.stored_bytes is not None:
                assert (part.bytes > 0) == (part.records > 0) == (part.stored_bytes > 0)
        seen.add(sum(part.end for part in parts))
        return len(seen) >= 20
