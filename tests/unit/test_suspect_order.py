"""Suspects keep the order of their key, also where one of them waited behind a failed record and others came later."""

from __future__ import annotations

from settled.delivery.assignment import Assignment
from settled.engine import Fetched
from settled.outcome import Attempts
from settled.record import Record

KEYS = (b"a", b"b", b"c")


def fetched(first: int, last: int) -> Fetched:
    records = [Record("t", 0, offset, KEYS[offset % 3], b"", (), f"e{offset}") for offset in range(first, last + 1)]
    return Fetched(topic="t", partition=0, records=records, next_offset=last + 1, size=1)


def suspicious() -> Assignment:
    """Offsets 0 to 5 received, 0 known to have failed: 3, of the same key, waits behind it; the others run."""
    found = Assignment("t", 0, 7, 0, None, ordered=True)
    found.suspects_left, found.suspects_end = 20, 9
    found.attempts[0] = Attempts(count=1, first_us=1, due_us=1)
    (failed,) = found.receive(fetched(0, 5))
    found.hold(failed, found.attempts[0], 0.0)
    assert [record.offset for record in found.take_suspects()] == [1, 2, 4, 5]
    found.receive(fetched(6, 8))
    found.ended([failed])  # its key is free: 3 is next of it
    return found


def test_a_suspect_that_waited_runs_before_later_ones_of_its_key() -> None:
    assert [record.offset for record in suspicious().take_suspects()] == [3, 6, 7, 8]


def test_suspects_that_are_cleared_keep_their_order() -> None:
    found = suspicious()
    found.suspects_ran(20)
    assert [record.offset for record in found.lanes.take(10)] == [3, 6, 7, 8]
