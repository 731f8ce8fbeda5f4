"""What a reader on RabbitMQ counts as passed, from the numbers of its producers alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import BasicProperties

from settled.engines.rabbitmq import passage, sessions
from settled.engines.rabbitmq.passage import Passage
from settled.engines.rabbitmq.sessions import Numbers, Said, Sessions, said
from settled.errors import ContractError, HistoryLost
from settled.record import Record

OPENED_US = 1_000_000_000


def place(session: str, number: int, began_us: int = OPENED_US + 1) -> Said:
    return Said(session, number, began_us)


def test_numbers_rise_for_each_topic_and_are_new_for_each_producer() -> None:
    one, other, tables = Numbers(), Numbers(), [dict[str, Any]() for _ in range(5)]
    one.stamp("a", tables[0], 10.0)
    one.stamp("b", tables[1], 11.0)
    one.stamp("a", tables[2], 12.5)
    other.stamp("a", tables[3], 13.0)
    one.stamp("a", tables[4], 13.5)
    assert [table[sessions.NUMBER] for table in tables] == [1, 1, 2, 1, 3]
    assert [table[sessions.AGE] for table in tables] == [0, 0, 2500, 0, 3500]
    assert len({table[sessions.SESSION] for table in tables[:3]}) == 1
    assert tables[3][sessions.SESSION] != tables[0][sessions.SESSION]
    assert said(tables[2], 5_000_000) == Said(tables[0][sessions.SESSION], 2, 2_500_000)


@pytest.mark.parametrize(
    "table",
    [
        None,
        {},
        {"settled-session": "s", "settled-number": 1},
        {"settled-session": "", "settled-number": 1, "settled-age": 0},
        {"settled-session": b"s", "settled-number": 1, "settled-age": 0},
        {"settled-session": "s", "settled-number": 0, "settled-age": 0},
        {"settled-session": "s", "settled-number": True, "settled-age": 0},
        {"settled-session": "s", "settled-number": 1, "settled-age": -1},
        {"settled-session": "s" * 65, "settled-number": 1, "settled-age": 0},
    ],
)
def test_a_foreign_message_has_no_place(table: dict[str, Any] | None) -> None:
    assert said(table, 0) is None


def test_gaps_repeats_and_sessions_of_before() -> None:
    found = Sessions(OPENED_US)
    assert found.passed(place("s", 41)) == 0  # what it sent before was before the reader's time
    found.move("s", 42, 0)
    assert found.passed(place("s", 42)) == 0
    assert found.passed(place("s", 45)) == 3
    assert found.passed(place("s", 41)) is None
    found.whole = False
    assert found.passed(place("new", 8)) == 7
    assert found.passed(place("older", 8, OPENED_US - 1)) == 0


def test_what_was_forgotten_is_not_counted_twice() -> None:
    found = Sessions(OPENED_US, whole=False)
    for number in range(sessions.MOST + 1):
        found.move(f"s{number}", 10, OPENED_US + 500 + number)
    assert len(found.reached) == sessions.MOST
    assert found.passed(place("s0", 20)) == 0  # it may have been heard up to 19
    assert found.passed(place("another", 20, OPENED_US + 10_000)) == 19


def test_a_position_is_read_as_it_was_written() -> None:
    found = Sessions(OPENED_US, {"s": 7, "t": 1})
    text = found.written("orders", "here")
    read = sessions.read(text, "orders", "here")
    assert (read.since_us, read.reached, read.whole) == (OPENED_US, {"s": 7, "t": 1}, False)
    with pytest.raises(ContractError, match="orders"):
        sessions.read(text, "others", "here")
    with pytest.raises(HistoryLost):
        sessions.read(text, "orders", "elsewhere")
    for bad in ({"s": 0}, {f"s{n}": 1 for n in range(sessions.MOST + 1)}):
        with pytest.raises(ContractError):
            sessions.read(Sessions(0, bad).written("orders", "here"), "orders", "here")


class Sender:
    """Messages of some producers, as a broker hands them out."""

    def __init__(self, producers: int) -> None:
        self._numbers = [Numbers() for _ in range(producers)]
        self._sent = 0

    def next(self, producer: int) -> BasicProperties:
        self._sent += 1
        table: dict[str, Any] = {"settled": 1}
        self._numbers[producer].stamp("orders", table, 0.0)
        return BasicProperties(headers=table, message_id=f"e{self._sent}")


def fresh(behind: int) -> Passage:
    return Passage("orders", Sessions(0), behind, lambda: OPENED_US)


def drained(one: Passage) -> list[Record]:
    found: list[Record] = []
    with one.changed:
        while one:
            found += one.take(3, 10_000)
    return found


EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["comes", "comes", "comes", "is lost", "comes twice", "is polled"])),
    max_size=80,
)


@given(EVENTS, st.integers(1, 12))
def test_given_and_missed_are_all_that_was_sent_by_who_is_heard_last(
    events: list[tuple[int, str]], behind: int
) -> None:
    sender, one, found = Sender(3), fresh(behind), list[Record]()
    sent = 3
    for producer in range(3):
        one.come(sender.next(producer), b"v")
    for producer, what in events:
        if what == "is polled":
            found += drained(one)
            continue
        properties, sent = sender.next(producer), sent + 1
        for _ in range({"comes": 1, "is lost": 0, "comes twice": 2}[what]):
            one.come(properties, b"v")
    for producer in range(3):
        one.come(sender.next(producer), b"v")
    found += drained(one)
    assert len(found) + one.missed == sent + 3
    ids = [record.id for record in found]
    assert len(ids) == len(set(ids))
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert len(one._waiting) == one._records == one._bytes == 0


@given(EVENTS, st.integers(1, 12), st.data())
def test_a_position_and_what_came_since_are_all_that_was_sent(
    events: list[tuple[int, str]], behind: int, data: st.DataObject
) -> None:
    """Whatever the reader had fetched and not taken when it ended, and what passed while it was away."""
    sender, one = Sender(3), fresh(behind)
    counted = 0
    for producer in range(3):
        one.come(sender.next(producer), b"v")
        counted += len(drained(one))
    for producer, what in events:
        properties = sender.next(producer)
        if what != "is lost":
            one.come(properties, b"v")
        with one.changed:
            if what == "is polled" and one:
                counted += len(one.take(2, 10_000))
    counted += one.missed
    text = one.standing.written("orders", "here")
    for _ in range(data.draw(st.integers(0, 5))):
        sender.next(data.draw(st.integers(0, 2)))
    other = Passage("orders", sessions.read(text, "orders", "here"), 100, lambda: OPENED_US)
    for producer in range(3):
        other.come(sender.next(producer), b"v")
    counted += len(drained(other)) + other.missed
    assert counted == sender._sent


def test_what_waits_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage, "BYTES", 1000)
    sender, one = Sender(1), fresh(100)
    for _ in range(50):
        one.come(sender.next(0), b"x" * 100)
        assert one._bytes <= 1000 + 200
    assert drained(one) == []
    assert one.missed == 50


def test_an_interruption_is_told_once_and_before_what_follows() -> None:
    sender, one = Sender(1), fresh(100)
    one.come(sender.next(0), b"v")
    one.interrupt()
    one.interrupt()
    sender.next(0)
    one.come(sender.next(0), b"v")
    with one.changed:
        assert [record.id for record in one.take(10, 1000)] == ["e1"]
        assert one.interruptions == 0
        assert one.take(10, 1000) == []
        assert (one.interruptions, one.missed) == (1, 1)
        assert [record.id for record in one.take(10, 1000)] == ["e3"]


def test_foreign_messages_are_given_and_counted_as_far_as_they_come() -> None:
    one = fresh(3)
    for _ in range(3):
        one.come(BasicProperties(), b"v")
    assert len(drained(one)) == 3
    for _ in range(5):
        one.come(BasicProperties(), b"v")
    assert (drained(one), one.missed) == ([], 5)
