"""Redrives of one key run in the order of the log, whatever else is asked for beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from settled.delivery.assignment import Assignment
from settled.delivery.dispatch import Dispatch
from settled.delivery.flow import InFlight
from settled.delivery.group import Report
from settled.delivery.reckoning import Reckoning
from settled.delivery.subscription import Subscription
from settled.engine import ConsumerGroup
from settled.errors import Fenced, Unavailable
from settled.outcome import Attempts, Failure, FailureClass
from settled.record import Record
from settled.store import ConsumerSpec, QuarantineEntry

FAILURE = Failure(FailureClass.PERMANENT, "E", "", "", "")


def entry(number: int, key: bytes | None) -> QuarantineEntry:
    return QuarantineEntry(
        number=number,
        consumer="c",
        record=Record("t", 0, number, key, b"", (), f"e{number}"),
        failure=FAILURE,
        attempts=Attempts(1, 0, 0),
        owner="",
        state="requested",
        quarantined_us=0,
    )


def dispatch_of(found: Assignment) -> Dispatch:
    subscription = Subscription(group=ConsumerGroup(group="g", topics=("t",)), consumer=ConsumerSpec(consumer="c"))
    ownership = cast("Any", SimpleNamespace(assignments={found.place: found}))
    return Dispatch(ownership, [], cast("Any", None), subscription, InFlight(100, 100_000), batch=False)


def next_offset(dispatch: Dispatch) -> int | None:
    group = dispatch._redrive()
    return None if group is None else group.records[0].offset


def test_a_redrive_that_waits_for_its_key_is_not_overtaken_by_a_later_one() -> None:
    found = Assignment("t", 0, 1, 0, None, ordered=True)
    dispatch = dispatch_of(found)
    found.redrives.add([entry(8, b"a"), entry(9, b"b"), entry(15, b"a"), entry(16, None)])
    found.lanes.hold(b"a")
    assert next_offset(dispatch) == 9
    found.lanes.release([b"a"])
    assert next_offset(dispatch) == 8
    assert next_offset(dispatch) == 16
    assert next_offset(dispatch) is None  # 15 waits for 8
    found.lanes.release([b"a"])
    assert next_offset(dispatch) == 15


def test_one_that_is_asked_for_later_comes_before_those_behind_it() -> None:
    found = Assignment("t", 0, 1, 0, None, ordered=True)
    dispatch = dispatch_of(found)
    found.redrives.add([entry(15, b"a")])
    found.redrives.add([entry(8, b"a")])
    assert next_offset(dispatch) == 8


class Shelf:
    """A store that knows which redrives are asked for, and nothing else."""

    def __init__(self, *asked: QuarantineEntry) -> None:
        self.asked = asked

    def redrives(self, consumer: str, topic: str, partition: int) -> list[QuarantineEntry]:
        return list(self.asked)


def reckoning_of(dispatch: Dispatch, shelf: Shelf) -> Reckoning:
    subscription = Subscription(group=ConsumerGroup(group="g", topics=("t",)), consumer=ConsumerSpec(consumer="c"))
    rest = cast("Any", None)
    return Reckoning(
        dispatch._ownership, dispatch, rest, InFlight(100, 100_000), subscription, rest, cast("Any", shelf)
    )


def test_one_that_did_not_end_is_not_overtaken_before_it_is_found_again() -> None:
    found = Assignment("t", 0, 1, 0, None, ordered=True)
    dispatch = dispatch_of(found)
    reckoning = reckoning_of(dispatch, Shelf(entry(8, b"a"), entry(15, b"a")))
    reckoning.look_for_redrives()
    group = dispatch._redrive()
    assert group is not None
    found.groups_running += 1
    reckoning.reckon(Report(group, [], [], group.records, fault=Unavailable("away")))
    assert next_offset(dispatch) is None  # not 15
    reckoning.look_for_redrives()
    assert next_offset(dispatch) == 8
    assert next_offset(dispatch) is None


def test_what_was_queued_goes_with_a_partition_that_is_lost_and_comes_back() -> None:
    """The one that ran when the partition was lost is asked for still: it comes before those that waited behind it."""
    lost = Assignment("t", 0, 1, 0, None, ordered=True)
    dispatch = dispatch_of(lost)
    reckoning = reckoning_of(dispatch, Shelf(entry(8, b"a"), entry(15, b"a")))
    reckoning.look_for_redrives()
    group = dispatch._redrive()
    assert group is not None
    dispatch._ownership.assignments[lost.place] = Assignment("t", 0, 2, 0, None, ordered=True)
    assert next_offset(dispatch) is None  # not 15
    reckoning.look_for_redrives()
    assert next_offset(dispatch) == 8
    reckoning.reckon(Report(group, [], [], group.records, fault=Fenced("epoch 1 is over")))
    assert next_offset(dispatch) is None  # 8 runs
    reckoning.look_for_redrives()
    assert next_offset(dispatch) is None
