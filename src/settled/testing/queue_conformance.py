"""What an engine that claims the queue form must show. Subclass `QueueConformance` and supply `engine_factory`, as for
`EngineConformance`. Each test has a queue and a group of its own. Members compete: what one claims is its alone until
it is settled, given back, or lost with its owner.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from settled import scheduling
from settled.engine import ConsumerGroup, Engine, ProducerSpec, TopicSpec
from settled.errors import ContractError, Fenced, InvalidMessage, TooLarge
from settled.record import Headers, Message
from settled.testing.engine_tools import DEADLINE_S, EngineFactory, eventually, message, names, publish, share_out
from settled.testing.queue_tools import QueueMember, QueueProcess, make_queue, ready, settled_whole

MIB = 1024 * 1024
FORMS = ("queue", "pubsub", "log", "notification")

_FORGETFUL = """
import importlib, sys
from settled.engine import ProducerSpec
from settled.record import Message
module, name, url, topic = sys.argv[1:]
producer = getattr(importlib.import_module(module), name)(url).producer(ProducerSpec(linger_s=3600.0))
for number in range(500):
    producer.send(Message(topic=topic, id=f"e{number}", value=b"v"))
"""


class QueueConformance:
    lease_s = 0.6  # the shortest that members can be given here

    @pytest.fixture(autouse=True)
    def own_names(self) -> Iterator[None]:
        names.fresh()
        yield
        names.plain()

    @pytest.fixture
    def engine(self, engine_factory: EngineFactory) -> Engine:
        return engine_factory()

    # Who owns a record.

    def test_members_share_the_work(self, engine: Engine, engine_factory: EngineFactory) -> None:
        make_queue(engine)
        members = [QueueMember(engine), QueueMember(engine_factory())]
        share_out(members, lambda: all(member.owned for member in members), "each has a slot")
        publish(engine, map(message, range(300)))
        eventually(lambda: self._all_settled(members, 300), "all are claimed")
        claimed = [each for member in members for each in member.ids]
        assert sorted(claimed) == sorted(f"e{n}" for n in range(300))  # each by one of them
        assert all(member.records for member in members)
        for member in members:
            member.leave(settled=True)
        assert settled_whole(engine)

    def test_claims_are_numbered_from_where_the_slot_begins(self, engine: Engine) -> None:
        make_queue(engine, 1)
        publish(engine, map(message, range(100)))
        member = QueueMember(engine)
        found = member.receives(100, records=7)
        numbers = [record.offset for record in found]
        assert numbers == sorted(set(numbers))
        assert all(one.records[-1].offset < one.next_offset for one in member.fetched)
        assert all(one.size == sum(record.size for record in one.records) for one in member.fetched)
        member.leave(settled=True)
        publish(engine, map(message, range(100, 120)))
        other = QueueMember(engine, start=-1)
        other.owns(1)
        other.consumer.raise_epoch(names.topic, 0, 2)  # as a worker does, whose store remembers the first
        other.consumer.start(names.topic, 0, numbers[-1] + 1)
        assert all(record.offset > numbers[-1] for record in other.receives(20))
        other.leave()

    def test_what_is_settled_does_not_come_again(self, engine: Engine) -> None:
        make_queue(engine, 1)
        publish(engine, map(message, range(20)))
        first = QueueMember(engine)
        found = first.receives(20)
        first.settle(found[:12])
        first.leave()
        second = QueueMember(engine)
        second.receives(8)
        second.poll(0.3)
        assert second.ids == [f"e{n}" for n in range(12, 20)]
        second.leave(settled=True)
        assert settled_whole(engine)

    def test_settling_passes_no_claim_that_is_open(self, engine: Engine) -> None:
        """A frontier says nothing of the claims above it, however many of them were handled."""
        make_queue(engine, 1)
        publish(engine, map(message, range(10)))
        first = QueueMember(engine)
        found = first.receives(10)
        first.consumer.commit({found[0].place: found[0].offset})
        first.leave()
        second = QueueMember(engine)
        assert sorted(record.id for record in second.receives(10)) == sorted(f"e{n}" for n in range(10))
        second.leave()

    def test_a_release_gives_claims_to_others(self, engine: Engine, engine_factory: EngineFactory) -> None:
        make_queue(engine)
        publish(engine, map(message, range(30)))
        first = QueueMember(engine)
        first.receives(30)
        second = QueueMember(engine_factory())
        for place in list(first.owned):
            first.consumer.release(*place)
        first.consumer.close()
        assert sorted(record.id for record in second.receives(30)) == sorted(f"e{n}" for n in range(30))
        second.leave()

    def test_a_killed_members_claims_go_to_others(self, engine: Engine) -> None:
        """Within its lease and a little; and they are told from those that nobody had: one may have killed it."""
        make_queue(engine)
        publish(engine, map(message, range(10)))
        with QueueProcess(engine, lease_s=self.lease_s) as process:
            assert len(process.claims(10)) == 10
            process.signal(signal.SIGKILL)
            member = QueueMember(engine, lease_s=self.lease_s)
            found = {record.id: record for record in member.receives(10)}
            assert sorted(found) == sorted(f"e{n}" for n in range(10))
            again = {(one.partition, number): deaths for one in member.fetched for number, deaths in one.again.items()}
            for record in found.values():
                assigned = member.owned[record.place]
                told = not assigned.clean and record.offset < assigned.end
                assert told or again.get((record.partition, record.offset), 0) > 0
        member.leave()

    def test_a_member_that_was_stopped_settles_nothing_of_anothers(self, engine: Engine) -> None:
        make_queue(engine)
        publish(engine, map(message, range(10)))
        with QueueProcess(engine, lease_s=self.lease_s) as process:
            process.claims(10)
            process.signal(signal.SIGSTOP)
            member = QueueMember(engine, lease_s=5.0)
            member.receives(10)
            process.signal(signal.SIGCONT)
            process.settle()
            eventually(lambda: bool(process.of("Lost")), "it is told that it lost its slots")
            member.leave()
            other = QueueMember(engine, lease_s=5.0)
            other.until(lambda: len({*other.ids, *process.claims(0)[10:]}) == 10, "all come again, to whoever lives")
            other.leave()

    def test_a_member_beyond_the_slots_waits_for_one(self, engine: Engine, engine_factory: EngineFactory) -> None:
        make_queue(engine, 1)
        publish(engine, map(message, range(5)))
        first = QueueMember(engine)
        first.receives(5)
        second = QueueMember(engine_factory())
        for _ in range(10):
            first.poll(0.02)
            second.poll(0.05)
        assert second.records == []
        first.leave()
        second.receives(5)
        second.leave()

    def test_what_is_not_this_members_is_not_started(self, engine: Engine) -> None:
        make_queue(engine, 2)
        member = QueueMember(engine)
        member.until(lambda: bool(member.owned), "it owns a slot")
        with pytest.raises(Fenced):
            member.consumer.start(names.topic, 2, 0)
        with pytest.raises(Fenced):
            member.consumer.raise_epoch(names.topic, 2, 5)
        member.leave()

    def test_an_epoch_can_be_raised(self, engine: Engine) -> None:
        """A store may remember a higher one than the engine."""
        make_queue(engine, 1)
        publish(engine, [message(1)])
        member = QueueMember(engine, start=-1)
        member.owns(1)
        assert member.consumer.raise_epoch(names.topic, 0, 70) >= 70
        member.consumer.start(names.topic, 0, 9)
        assert member.receives(1)[0].offset >= 0
        member.leave(settled=True)
        assert settled_whole(engine)

    # What is fetched, and how much of it.

    def test_nothing_comes_before_start_or_without_room(self, engine: Engine) -> None:
        make_queue(engine, 1)
        publish(engine, [message(1)])
        member = QueueMember(engine, start=-1)
        member.owns(1)
        member.poll(0.2)
        assert member.records == []
        member.consumer.start(names.topic, 0, 0)
        member.poll(0.2, records=0)
        assert member.records == []
        member.receives(1)
        member.leave()

    def test_targets_bound_what_is_fetched(self, engine: Engine) -> None:
        make_queue(engine)
        publish(engine, [message(n, value=b"x" * 10_000) for n in range(200)])
        member = QueueMember(engine)
        deadline_met = 0
        while len(member.records) < 200:
            known, before = len(member.fetched), len(member.records)
            member.poll(records=20, bytes=100_000)
            assert len(member.records) - before <= 20
            assert sum(one.size for one in member.fetched[known:]) <= 110_000
            deadline_met += len(member.records) == before
            assert deadline_met < 600, "records stopped coming"
        assert len(set(member.ids)) == 200
        member.leave()

    def test_what_a_member_does_not_take_others_may(self, engine: Engine, engine_factory: EngineFactory) -> None:
        """Prefetch 1: one that is busy with a record holds no second one."""
        make_queue(engine)
        publish(engine, map(message, range(6)))
        busy = QueueMember(engine)
        busy.until(lambda: len(busy.records) == 1, "one record", records=1)
        busy.give_back = False  # its slot, until it is through; others it gives
        other = QueueMember(engine_factory())

        def others() -> bool:
            busy.poll(0.0, records=0)
            for place in busy.asked:
                if place != busy.records[0].place and place in busy.owned:
                    del busy.owned[place]
                    busy.consumer.release(*place)
            return len(other.records) >= 5

        other.until(others, "the others")
        assert sorted([*busy.ids, *other.ids]) == [f"e{n}" for n in range(6)]
        busy.leave()
        other.leave()

    def test_a_record_above_the_target_comes_alone(self, engine: Engine) -> None:
        make_queue(engine, 1)
        sizes = [10, min(5 * MIB, engine.capabilities.max_message_bytes - 1000), 10]
        for number, size in enumerate(sizes):
            publish(engine, [message(number, value=b"x" * size)])
        member = QueueMember(engine)
        found = member.receives(3, bytes=MIB // 8)
        assert [len(one.value or b"") for one in found] == sizes
        assert all(len(one.records) == 1 for one in member.fetched if one.size > MIB)
        member.leave()

    @pytest.mark.parametrize("slots", [1, 2])
    def test_many_large_records_are_held_back(self, engine: Engine, slots: int) -> None:
        """More bytes than are asked for at a time, many times over: all come."""
        make_queue(engine, slots)
        publish(engine, [message(n, value=bytes([n]) * MIB) for n in range(40)])
        member = QueueMember(engine)
        while len(set(member.ids)) < 40:
            count = len(member.records)
            member.until(lambda: len(member.records) > count, "more of them", records=100, bytes=2 * MIB)  # noqa: B023
            assert sum(record.size for record in member.records[count:]) <= 3 * MIB
            member.settle()
        member.leave()
        assert settled_whole(engine)

    def test_pause_and_resume(self, engine: Engine) -> None:
        make_queue(engine, 1)
        member = QueueMember(engine)
        member.owns(1)
        member.consumer.pause([(names.topic, 0)])
        publish(engine, map(message, range(10)))
        member.poll(0.3)
        assert member.records == []
        member.consumer.resume([(names.topic, 0)])
        assert len(member.receives(10)) == 10
        member.leave()

    # Order.

    def test_order_is_kept_or_refused(self, engine: Engine) -> None:
        """With several slots: the records of a key are one member's at a time, or `ordered` is refused at once."""
        make_queue(engine)
        publish(engine, [message(n, key=b"k%d" % (n % 5)) for n in range(100)])
        try:
            first = QueueMember(engine, ordered=True)
        except ContractError:
            with pytest.raises(ContractError, match="order"):
                QueueMember(engine, ordered=True)
            return
        second = QueueMember(engine, ordered=True)
        members = [first, second]
        share_out(members, lambda: all(member.owned for member in members), "each has a slot", records=0)
        for _ in range(20):
            for member in members:
                member.poll(0.05, records=10)
        keys = [{record.key for record in member.records} for member in members]
        assert not keys[0] & keys[1]
        for member in members:
            for key in {record.key for record in member.records}:
                numbers = [int(record.id[1:]) for record in member.records if record.key == key]
                assert numbers == sorted(numbers)
            member.leave()

    def test_one_slot_keeps_the_order(self, engine: Engine) -> None:
        """Through the death of its owner too."""
        make_queue(engine, 1)
        publish(engine, [message(n, key=b"k") for n in range(50)])
        first = QueueMember(engine, ordered=True, lease_s=self.lease_s)
        found = first.receives(50, records=20)
        assert first.ids == [f"e{n}" for n in range(50)]
        first.settle(found[:10])
        first.leave()
        publish(engine, [message(n, key=b"k") for n in range(50, 60)])
        second = QueueMember(engine, ordered=True)
        second.receives(50, records=20)
        assert second.ids == [f"e{n}" for n in range(10, 60)]
        second.leave()

    # What a message asks.

    @pytest.mark.parametrize("asked", ["later", "urgent", "tenant"])
    def test_scheduling_is_obeyed_or_refused(self, engine: Engine, asked: str) -> None:
        make_queue(engine, 1)
        headers = {
            "later": scheduling.headers(not_before=datetime.now(UTC) + timedelta(hours=1)),
            "urgent": scheduling.headers(priority=9),
            "tenant": scheduling.headers(tenant="t1"),
        }[asked]
        if not engine.capabilities.scheduling:
            with pytest.raises(InvalidMessage):
                publish(engine, [message(1, headers=headers)])
            assert ready(engine) == 0
            return
        publish(engine, [message(0), message(1, headers=headers)])
        found = engine.topics([names.topic])[0].queue
        assert found is not None
        assert (found.ready, found.scheduled) == ((1, 1) if asked == "later" else (2, 0))
        member = QueueMember(engine)
        member.receives(1 if asked == "later" else 2)
        member.poll(0.2)
        assert member.ids == {"later": ["e0"], "urgent": ["e1", "e0"], "tenant": member.ids}[asked]
        assert asked != "tenant" or sorted(member.ids) == ["e0", "e1"]
        member.leave()

    # Publishing.

    def test_what_is_accepted_outlives_the_engine(self, engine_factory: EngineFactory) -> None:
        first = engine_factory()
        make_queue(first)
        publish(first, map(message, range(20)))
        first.close()
        first.close()
        second = engine_factory()
        assert ready(second) == 20
        member = QueueMember(second)
        assert sorted(record.id for record in member.receives(20)) == sorted(f"e{n}" for n in range(20))
        member.leave()

    def test_closing_the_engine_sends_what_is_buffered(self, engine_factory: EngineFactory) -> None:
        first = engine_factory()
        make_queue(first)
        pending = first.producer(ProducerSpec(linger_s=3600.0)).send(message(1))
        first.close()
        assert pending.result(timeout=0).id == "e1"
        assert ready(engine_factory()) == 1

    def test_a_program_that_ends_without_closing_loses_nothing(self, engine: Engine) -> None:
        make_queue(engine)
        place = type(engine).__module__, type(engine).__name__, engine.url
        subprocess.run([sys.executable, "-c", _FORGETFUL, *place, names.topic], check=True, timeout=DEADLINE_S)
        eventually(lambda: ready(engine) == 500, "all are there")

    def test_every_field_comes_back_as_it_was_sent(self, engine: Engine) -> None:
        make_queue(engine, 1)
        headers: Headers = (("trace", b"\x01"),)
        if engine.capabilities.null_headers and engine.capabilities.repeated_headers:
            headers = (("x", b"1"), ("a", None), ("b", b""), ("", b"x"), ("x", b"\x00\xff"), ("traceparent", b"00-1"))
        whole = Message(
            topic=names.topic,
            key=b"\x00\xff",
            value=bytes(range(256)),
            headers=headers,
            id="order-1/7",
            type="OrderPlaced",
            version=7,
            event_time_us=1_700_000_000_000_001,
            correlation_id="c",
            causation_id="",
        )
        bare = Message(topic=names.topic, id="i" * 256, type="t" * 256)
        empty = Message(topic=names.topic, id="ü" * 100, key=b"", value=b"", event_time_us=-(2**62))
        sent = [whole, bare, empty]
        publish(engine, sent)
        member = QueueMember(engine)
        found = {record.id: record for record in member.receives(3)}
        for one in sent:
            for field in Message.__struct_fields__:
                assert getattr(found[one.id], field) == getattr(one, field), field
        member.leave()

    def test_the_size_limit_names_both_sizes(self, engine: Engine) -> None:
        make_queue(engine, max_message_bytes=1000)
        producer = engine.producer(ProducerSpec())
        with pytest.raises(TooLarge, match=r"(?s)1[0-9]{3}.*1000"):
            producer.send(message(1, value=b"x" * 1001))
        producer.send(message(2, value=b"x" * 900))
        producer.close()
        assert ready(engine) == 1

    @pytest.mark.parametrize("fields", [{"id": "e\0"}, {"id": ""}, {"headers": (("h\0", b""),)}, {"key": "text"}])
    def test_what_no_engine_could_keep_is_refused(self, engine: Engine, fields: dict[str, object]) -> None:
        make_queue(engine)
        producer = engine.producer(ProducerSpec())
        with pytest.raises(InvalidMessage):
            producer.send(message(1, **fields))
        producer.close()
        assert ready(engine) == 0

    # Wrong calls.

    def test_unknown_topics_are_named(self, engine: Engine) -> None:
        producer = engine.producer(ProducerSpec())
        with pytest.raises(ContractError, match="nosuch"):
            producer.send(message(1, topic="nosuch"))
        producer.close()
        with pytest.raises(ContractError, match="nosuch"):
            engine.consumer(ConsumerGroup(group=names.group, topics=("nosuch",), ordered=False))

    @pytest.mark.parametrize("fields", [{"partitions": 0}, {"name": "a b"}, {"max_message_bytes": 10**12}])
    def test_a_queue_that_cannot_be(self, engine: Engine, fields: dict[str, object]) -> None:
        with pytest.raises(ContractError):
            engine.ensure_topic(TopicSpec(**{"name": names.topic, "form": "queue", **fields}))  # type: ignore[arg-type]

    def test_a_topic_has_one_form(self, engine: Engine) -> None:
        make_queue(engine)
        make_queue(engine)  # again, as it is
        for form in FORMS:
            if form != "queue":
                with pytest.raises(ContractError):
                    engine.ensure_topic(TopicSpec(name=names.topic, form=form, partitions=4))  # type: ignore[arg-type]
        assert engine.topics([names.topic])[0].spec.form == "queue"

    @pytest.mark.parametrize("form", FORMS)
    def test_forms_are_kept_or_refused(self, engine: Engine, form: str) -> None:
        spec = TopicSpec(name=names.topic, form=form)  # type: ignore[arg-type]
        if form in engine.capabilities.forms:
            assert engine.ensure_topic(spec).spec.form == form
        else:
            with pytest.raises(ContractError, match=form):
                engine.ensure_topic(spec)

    @pytest.mark.parametrize("lease_s", [0.0, -1.0])
    def test_a_lease_that_cannot_be(self, engine: Engine, lease_s: float) -> None:
        make_queue(engine)
        with pytest.raises(ContractError):
            QueueMember(engine, lease_s=lease_s)

    def _all_settled(self, members: list[QueueMember], count: int) -> bool:
        """Let them take a little in turn, and settle it."""
        for member in members:
            member.poll(0.01, records=10)
            member.settle()
        return sum(len(member.records) for member in members) >= count
