"""Records that were claimed before under other numbers: those that may have killed a worker run apart, on record, with
what was ready before them."""

from __future__ import annotations

from delivery_records import record

from settled.delivery.assignment import Assignment
from settled.engine import Fetched
from settled.outcome import Attempts

SUSPECT = Attempts(count=1, first_us=0, due_us=0, suspect=True)
ALONE = Attempts(count=2, first_us=0, due_us=0, suspect=True, alone=True)
FAILED = Attempts(count=2, first_us=1, due_us=1)


def receiving(known: dict[int, Attempts], doubted: list[int], count: int = 10) -> tuple[Assignment, list[int]]:
    """An assignment that received so many records; and the offsets of those that are known to have failed."""
    found = Assignment("t", 0, 7, 0, None, ordered=False)
    found.renumbered = True
    found.recognised(known, doubted)
    records = [record(offset) for offset in range(count)]
    failed = found.receive(Fetched(topic="t", partition=0, records=records, next_offset=count, size=1))
    return found, [one.offset for one in failed]


def taken(found: Assignment) -> list[int]:
    return [one.offset for one in found.take_suspects()]


def test_doubted_records_run_first_and_the_others_after_them() -> None:
    found, failed = receiving({}, [3, 5])
    assert (failed, taken(found)) == ([], [0, 1, 2, 3, 4, 5])
    found.suspects_ran(6)
    found.ended([record(offset) for offset in range(6)])
    assert not found.suspicious
    assert not found.doubted
    assert [one.offset for one in found.lanes.take(10)] == [6, 7, 8, 9]


def test_those_that_were_on_record_alone_run_one_at_a_time() -> None:
    """Under new numbers their order does not tell which of them ran: so only one is on record."""
    found, _ = receiving({0: ALONE, 1: ALONE, 2: ALONE}, [0, 1, 2])
    assert [taken(found), taken(found), taken(found), taken(found)] == [[0], [1], [2], []]


def test_in_a_log_several_are_on_record_alone_together() -> None:
    found = Assignment("t", 0, 7, 0, None, ordered=False)
    found.attempts = {0: ALONE, 1: ALONE}
    records = [record(offset) for offset in range(5)]
    found.receive(Fetched(topic="t", partition=0, records=records, next_offset=5, size=1))
    assert taken(found) == [0, 1]


def test_a_failed_one_waits_for_its_time_and_stays_doubted() -> None:
    found, failed = receiving({1: FAILED}, [1])
    assert failed == [1]
    assert found.is_doubted(record(1))
    assert taken(found) == []


def test_one_that_this_process_lost_itself_is_suspected_of_nothing() -> None:
    found, failed = receiving({}, [])
    assert (failed, taken(found)) == ([], [])
    assert len(found.lanes) == 10


def test_a_suspect_on_record_stays_one_although_this_process_lives() -> None:
    found, _ = receiving({0: SUSPECT}, [])
    assert taken(found) == [0]
