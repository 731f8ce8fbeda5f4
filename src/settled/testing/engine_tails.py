"""What an engine must show of readers without a group: from now on, counted what passed, nothing written anywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from settled.engine import Engine, Form, Producer, Tail
from settled.errors import ContractError, HistoryLost, Unsupported
from settled.record import Record
from settled.testing.engine_fetching import FetchCases
from settled.testing.engine_tools import (
    DEADLINE_S,
    EngineFactory,
    Member,
    eventually,
    make_topic,
    message,
    names,
    producing,
    publish,
    topic_of,
)


class TailCases:
    """Of any form that has tails; `form` says of which. Subclass it alone for the forms of an engine without logs."""

    form: Form = "log"
    groups = True  # the form has them

    def _make(self, engine: Engine, partitions: int = 1, **fields: Any) -> None:
        """The test's topic, to which messages can be published."""
        make_topic(engine, partitions, form=self.form, **fields)

    @pytest.fixture
    def tailing(self, engine: Engine) -> Engine:
        """The engine, where it claims tails."""
        if not engine.capabilities.of(self.form).tails:
            pytest.skip("no tails here")
        return engine

    def test_a_tail_is_refused_where_it_is_not_claimed(self, engine: Engine) -> None:
        self._make(engine)
        if engine.capabilities.of(self.form).tails:
            engine.tail(names.topic).close()
            return
        with pytest.raises(Unsupported):
            engine.tail(names.topic)

    def test_a_tail_begins_at_the_end(self, tailing: Engine, engine_factory: EngineFactory) -> None:
        self._make(tailing, 3)
        publish(tailing, map(message, range(50)))
        tail = tailing.tail(names.topic)
        other = engine_factory()
        publish(other, map(message, range(50, 90)))
        found = received(tail, 40)
        assert sorted(one.id for one in found) == [f"e{n}" for n in range(50, 90)]
        for number in range(3):
            offsets = [one.offset for one in found if one.partition == number]
            assert offsets == sorted(offsets)
        assert tail.missed == 0
        assert tail.poll(0.05, records=100, bytes=1_000_000) == []
        tail.close()
        tail.close()
        with pytest.raises(ContractError):
            tail.poll(0.0, records=1, bytes=1)

    def test_a_tail_leaves_nothing_behind(self, tailing: Engine) -> None:
        self._make(tailing)
        tail = tailing.tail(names.topic)
        publish(tailing, map(message, range(20)))
        received(tail, 20)
        assert groups_of(tailing, names.topic) == []
        tail.close()
        assert groups_of(tailing, names.topic) == []

    def test_two_tails_share_nothing(self, tailing: Engine) -> None:
        self._make(tailing)
        tails = [tailing.tail(names.topic) for _ in range(2)]
        publish(tailing, map(message, range(20)))
        for tail in tails:
            assert [one.id for one in received(tail, 20)] == [f"e{n}" for n in range(20)]
        for tail in tails:
            tail.close()

    def test_a_tail_and_a_group_share_nothing(self, tailing: Engine) -> None:
        if not self.groups:
            pytest.skip("the form has no groups")
        self._make(tailing)
        member = Member(tailing)
        member.owns(1)
        tail = tailing.tail(names.topic)
        publish(tailing, map(message, range(20)))
        assert [one.id for one in received(tail, 20)] == [f"e{n}" for n in range(20)]
        member.receives(20)
        member.consumer.close()
        tail.close()

    def test_what_passed_a_tail_that_was_away_is_counted(self, tailing: Engine) -> None:
        """At once, or once its producer is heard again: then it says that there may be more."""
        self._make(tailing, 3)
        producer = tailing.producer(producing())
        first = tailing.tail(names.topic)
        send(producer, range(30))
        received(first, 30)
        assert first.interruptions == 0
        position = first.position
        first.close()
        send(producer, range(30, 75))
        second = tailing.tail(names.topic, after=position)
        counts = tailing.capabilities.of(self.form).counts_passed
        assert (second.interruptions, second.missed) == ((0, 45) if counts else (1, 0))
        send(producer, range(75, 80))
        assert sorted(one.id for one in received(second, 5)) == [f"e{n}" for n in range(75, 80)]
        assert second.missed == 45
        position = second.position
        second.close()
        third = tailing.tail(names.topic, after=position)
        send(producer, [80])
        received(third, 1)
        assert third.missed == 0
        third.close()

    def test_a_position_is_moved_within_what_was_returned_last(self, tailing: Engine) -> None:
        self._make(tailing)
        producer = tailing.producer(producing())
        first = tailing.tail(names.topic)
        send(producer, range(9))
        found: list[Record] = []
        position = ""

        def last_one() -> bool:
            nonlocal position
            position = first.position
            came = first.poll(0.05, records=5, bytes=10_000_000)
            found.extend(came)
            position = first.moved(position, came[:-1])
            return len(found) >= 9

        eventually(last_one, "all 9")
        assert first.moved(first.position, []) == first.position
        first.close()
        second = tailing.tail(names.topic, after=position)
        send(producer, [9])
        received(second, 1)
        assert second.missed == 1
        second.close()

    def test_a_slow_tail_passes_over_what_is_too_much(self, tailing: Engine) -> None:
        self._make(tailing, 2)
        tail = tailing.tail(names.topic, behind=100)
        publish(tailing, map(message, range(90)))
        assert len(received(tail, 90)) == 90
        publish(tailing, map(message, range(90, 400)))
        assert tail.poll(1.0, records=0, bytes=0) == []  # busy for a while
        assert tail.poll(DEADLINE_S, records=1000, bytes=10_000_000) == []
        assert 100 < tail.missed <= 310
        found: list[Record] = []

        def all_told() -> bool:
            found.extend(tail.poll(0.05, records=1000, bytes=10_000_000))
            return len(found) + tail.missed >= 310

        eventually(all_told, "what came meanwhile")
        missed = tail.missed
        assert len(found) + missed == 310
        assert missed == 310 or not tailing.capabilities.of(self.form).counts_passed
        publish(tailing, map(message, range(400, 410)))
        assert sorted(one.id for one in received(tail, 10)) == [f"e{n}" for n in range(400, 410)]
        assert tail.missed == missed
        tail.close()

    def test_the_targets_bound_what_a_tail_is_given(self, tailing: Engine) -> None:
        self._make(tailing)
        tail = tailing.tail(names.topic)
        publish(tailing, [message(n, value=b"x" * 1000) for n in range(60)], batch_records=5)
        found: list[Record] = []

        def all_of_it() -> bool:
            came = tail.poll(0.05, records=10, bytes=1_000_000)
            assert len(came) <= 10
            found.extend(came)
            return len(found) >= 60

        eventually(all_of_it, "all 60")
        assert [one.offset for one in found] == list(range(60))
        assert tail.poll(0.0, records=0, bytes=0) == []
        tail.close()

    def test_a_tail_refuses_what_is_no_position_of_its_topic(self, tailing: Engine) -> None:
        self._make(tailing)
        tail = tailing.tail(names.topic)
        publish(tailing, map(message, range(3)))
        received(tail, 3)
        position, here = tail.position, names.topic
        tail.close()
        with pytest.raises(ContractError):
            tailing.tail("nosuch")
        for text in ("", "x", position[1:], position + "AA", "ŝ"):
            with pytest.raises(ContractError):
                tailing.tail(here, after=text)
        names.fresh()
        self._make(tailing)
        with pytest.raises(ContractError, match=here):
            tailing.tail(names.topic, after=position)

    def test_wakeup_ends_a_tails_poll_at_once(self, tailing: Engine) -> None:
        self._make(tailing)
        tail = tailing.tail(names.topic)
        tail.wakeup()  # before: kept for the next poll
        began = time.monotonic()
        assert tail.poll(DEADLINE_S, records=1, bytes=1) == []
        timer = threading.Timer(0.1, tail.wakeup)
        timer.start()
        assert tail.poll(DEADLINE_S, records=1, bytes=1) == []
        assert time.monotonic() - began < DEADLINE_S / 2
        timer.join()
        tail.close()

    def test_a_waiting_tail_costs_nothing(self, tailing: Engine) -> None:
        self._make(tailing, 4)
        tail = tailing.tail(names.topic)
        tail.poll(0.5, records=1000, bytes=1_000_000)
        used = time.process_time()
        tail.poll(1.5, records=1000, bytes=1_000_000)
        assert time.process_time() - used < 0.15
        tail.close()

    def test_closing_the_engine_closes_its_tails(self, tailing: Engine) -> None:
        self._make(tailing)
        tail = tailing.tail(names.topic)
        tailing.close()
        with pytest.raises(ContractError):
            tail.poll(0.0, records=1, bytes=1)

    def test_a_tail_that_is_closed_while_it_waits_ends(self, tailing: Engine) -> None:
        self._make(tailing)
        tail = tailing.tail(names.topic)
        timer = threading.Timer(0.3, tail.close)
        timer.start()
        began = time.monotonic()
        with pytest.raises(ContractError):
            tail.poll(DEADLINE_S, records=1, bytes=1)
        assert time.monotonic() - began < DEADLINE_S / 2
        timer.join()
        tail.wakeup()


class LogTailCases(TailCases, FetchCases):
    """Of a log, whose offsets count what passes."""

    def test_a_tail_takes_up_partitions_that_come_later(self, tailing: Engine) -> None:
        self._make(tailing, 1)
        tail = tailing.tail(names.topic)
        position = tail.position
        tailing.grow_topic(names.topic, 3)
        sent = publish(tailing, map(message, range(60)))
        assert {one.partition for one in sent} == {0, 1, 2}
        assert len(received(tail, 60)) == 60
        late = tailing.tail(names.topic, after=position)
        assert late.missed == 60
        for each in (tail, late):
            each.close()

    def test_a_tail_position_of_another_history_is_refused(self, tailing: Engine) -> None:
        from settled import tail_form

        self._make(tailing, 2)
        identity = topic_of(tailing).identity
        for held in ([1, 0], [0, 0, 0]):
            with pytest.raises(HistoryLost):
                tailing.tail(names.topic, after=tail_form.write(names.topic, identity, held))
        with pytest.raises(HistoryLost):
            tailing.tail(names.topic, after=tail_form.write(names.topic, "another", [0, 0]))

    def test_what_retention_takes_from_a_tail_is_counted(self, tailing: Engine) -> None:
        self._make(tailing, **self.retention)
        tail = tailing.tail(names.topic)
        self._publish_and_remove(tailing, 60)
        publish(tailing, map(message, range(60, 65)))
        found: list[Record] = []

        def accounted() -> bool:
            found.extend(tail.poll(0.05, records=1000, bytes=10_000_000))
            return len(found) + tail.missed >= 65

        eventually(accounted, "all 65")
        assert [one.id for one in found[-5:]] == [f"e{n}" for n in range(60, 65)]
        assert (len(found), tail.missed) in {(5, 60), (65, 0)}  # what was fetched ahead is given out
        tail.close()


def send(producer: Producer, numbers: Iterable[int]) -> None:
    """Send the messages of these numbers, back when all are accepted."""
    for number in numbers:
        producer.send(message(number))
    producer.flush(DEADLINE_S)


def received(tail: Tail, count: int) -> list[Record]:
    """What a tail brings until there are so many."""
    found: list[Record] = []

    def enough() -> bool:
        found.extend(tail.poll(0.05, records=1000, bytes=10_000_000))
        return len(found) >= count

    eventually(enough, f"{count} records from a tail")
    return found


def groups_of(engine: Engine, topic: str) -> list[str]:
    """Groups that have, or had, something of a topic. A cluster may hold groups of other tests."""
    return [
        one.group
        for one in engine.groups()
        if topic in {name for name, _ in (*one.committed, *one.epochs, *(p for m in one.members for p in m.partitions))}
    ]
