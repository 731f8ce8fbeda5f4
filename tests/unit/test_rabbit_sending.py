"""When a message without a confirm goes again, and where messages go."""

from __future__ import annotations

import itertools

from settled.engines.rabbitmq.sending import PASSED, SILENT, Eldest, Route, placed
from settled.partition import partition_of
from settled.record import Message


def looks(eldest: Eldest, tag: int, most: int = 1000) -> int:
    """How many looks until it is stuck."""
    return next(count for count in range(most) if eldest.is_stuck(tag))


def test_the_eldest_is_stuck_sooner_when_later_ones_are_confirmed() -> None:
    eldest = Eldest()
    eldest.is_stuck(5)
    assert looks(eldest, 5) == SILENT
    eldest = Eldest()
    eldest.is_stuck(5)
    eldest.latest = 6
    assert looks(eldest, 5) == PASSED


def test_another_eldest_begins_anew() -> None:
    eldest = Eldest()
    for tag in range(1, 2 * SILENT):
        assert not eldest.is_stuck(tag)
    for _ in range(2 * SILENT):
        assert not eldest.is_stuck(0)


def test_messages_of_a_log_go_by_key_and_others_in_turn() -> None:
    turn = itertools.count()
    queue = Route("", "q", 1, 0.0)
    log = Route("", "", 1, 0.0, partitions=("t:log:0", "t:log:1", "t:log:2"))
    assert placed(Message(topic="t", id="e", key=b"k"), queue, turn) == (0, "q")
    assert [placed(Message(topic="t", id="e"), log, turn)[0] for _ in range(4)] == [0, 1, 2, 0]
    for key in (b"", b"a", b"\xff" * 9):
        partition = partition_of(key, 3)
        assert placed(Message(topic="t", id="e", key=key), log, turn) == (partition, f"t:log:{partition}")
