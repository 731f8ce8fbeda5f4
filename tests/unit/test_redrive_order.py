"""Redrives of one key run in the order of the log, whatever else is asked for beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from settled.delivery.assignment import Assignment
from settled.delivery.dispatch import Dispatch
from settled.delivery.flow import InFlight
from settled.delivery.subscription import Subscription
from settled.engine import ConsumerGroup
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
    dispatch.redrives.extend([entry(8, b"a"), entry(9, b"b"), entry(15, b"a"), entry(16, None)])
    found.lanes.hold(b"a")
    assert next_offset(dispatch) == 9
    found.lanes.release([b"a"])
    assert next_offset(dispatch) == 8
    assert next_offset(dispatch) == 16
    assert next_offset(dispatch) is None  # 15 waits for 8
    found.lanes.release([b"a"])
    assert next_offset(dispatch) == 15
