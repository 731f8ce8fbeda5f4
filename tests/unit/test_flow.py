"""In flight and group size: bounds hold whatever happens, one fetch is always allowed, averages do not drift."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from settled.delivery.flow import GroupSize, InFlight, Width

PLACES = [("t", 0), ("t", 1), ("u", 0)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), st.integers(1, 50), st.integers(0, 200_000), st.data()), max_size=40)
)
def test_in_flight_counts_what_is_open(
    steps: list[tuple[tuple[str, int], int, int, st.DataObject]],
) -> None:
    flow = InFlight(500, 1_000_000)
    counts = dict.fromkeys(PLACES, 0)
    for place, records, size, data in steps:
        room = flow.room()
        assert room == (0, 0) or (0 < room[0] <= 500 and 0 < room[1] <= 1_000_000)
        if flow.records >= 500 or flow.bytes >= 1_000_000:
            assert room == (0, 0)
        if room != (0, 0) and data.draw(st.booleans()):
            flow.add(place, records, size)
            counts[place] += records
        elif counts[place]:
            ending = data.draw(st.integers(1, counts[place]))
            before = flow.average(place)
            flow.remove(place, ending)
            counts[place] -= ending
            if counts[place]:
                assert flow.average(place) == pytest.approx(before)
        else:
            flow.drop(place)
        assert flow.records == sum(counts.values())
    for place, count in counts.items():
        if count:
            flow.remove(place, count)
        assert flow.average(place) == 0
    assert (flow.records, flow.bytes) == (0, 0)
    assert flow.room() == (500, 1_000_000)


def test_one_fetch_is_always_allowed_however_large() -> None:
    flow = InFlight(10, 1_000)
    flow.add(("t", 0), 1, 5_000_000)
    assert flow.room() == (0, 0)
    flow.remove(("t", 0), 1)
    assert flow.room() == (10, 1_000)


def test_a_partition_that_was_given_back_holds_nothing() -> None:
    flow = InFlight(10, 1_000)
    flow.add(("t", 0), 9, 900)
    flow.add(("t", 1), 1, 50)
    flow.drop(("t", 0))
    flow.drop(("t", 7))
    assert (flow.records, flow.bytes) == (1, 50)


def test_averages_do_not_drift_over_many_small_steps() -> None:
    flow = InFlight(10**9, 10**9)
    flow.add(("t", 0), 1, 100)
    for _ in range(20_000):
        flow.add(("t", 0), 3, 300)
        flow.remove(("t", 0), 3)
    assert flow.average(("t", 0)) == pytest.approx(100, rel=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 2000),
    st.floats(0.001, 1.0),
    st.lists(st.tuples(st.integers(0, 2000), st.floats(0.0, 10.0)), max_size=60),
)
def test_group_size_stays_within_its_bounds(most: int, target: float, seen: list[tuple[int, float]]) -> None:
    size = GroupSize(most, target)
    assert size.size == 1
    for records, seconds in seen:
        size.observe(min(records, size.size), seconds)
        assert 1 <= size.size <= most


@given(st.floats(1e-6, 1e-3))
def test_group_size_settles_near_the_target(cost: float) -> None:
    size = GroupSize(100_000, 0.02)
    for _ in range(60):
        size.observe(size.size, 0.0005 + size.size * cost)
    assert size.size == 100_000 or 0.009 <= 0.0005 + size.size * cost <= 0.021


def test_group_size_shrinks_at_once_when_records_turn_slow() -> None:
    size = GroupSize(400, 0.02)
    for _ in range(20):
        size.observe(size.size, 0.0001)
    assert size.size == 400
    size.observe(400, 4.0)
    assert size.size == 2


def test_a_half_empty_group_says_nothing_about_larger_ones() -> None:
    size = GroupSize(400, 0.02)
    for _ in range(3):
        size.observe(size.size, 0.0001)
    size.observe(2, 0.0001)
    assert size.size == 8


def test_a_group_that_lingers_has_a_fixed_size() -> None:
    size = GroupSize(17, 0.02, fixed=True)
    size.observe(17, 5.0)
    assert size.size == 17


def test_one_executor_works_while_the_process_computes() -> None:
    width = Width(4)
    for _ in range(10):
        width.observe(1.0, 0.8, 1.0)
    assert width.width == 1


def test_more_executors_work_while_they_wait_for_the_database() -> None:
    width = Width(4)
    for _ in range(10):
        width.observe(1.0, 0.05 * width.width, float(width.width))
    assert width.width == 4
    width.observe(1.0, 0.95, 4.0)
    assert width.width == 3


def test_idle_executors_say_nothing_about_more_of_them() -> None:
    width = Width(4)
    for _ in range(10):
        width.observe(1.0, 0.05, 0.3)
    assert width.width == 1


def test_a_width_that_the_contract_sets_stays() -> None:
    width = Width(3, adaptive=False)
    width.observe(1.0, 5.0, 3.0)
    assert width.width == 3
