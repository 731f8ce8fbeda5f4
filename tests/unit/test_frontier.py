"""The frontier against a naive model: the first received offset that has not ended, whatever order they end in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from settled.delivery.frontier import Frontier

Fetches = list[tuple[list[int], int, bytes]]


@st.composite
def fetches(draw: st.DrawFn) -> tuple[int, Fetches]:
    """A start, and fetches with holes in them and, for some, a fingerprint."""
    start = place = draw(st.integers(0, 3000))
    found: Fetches = []
    for number in range(draw(st.integers(1, 5))):
        offsets = []
        for _ in range(draw(st.integers(0, 6))):
            place += draw(st.sampled_from([0, 0, 0, 1, 7]))
            offsets.append(place)
            place += 1
        place += draw(st.sampled_from([0, 0, 3]))
        found.append((offsets, place, b"w%d" % number if draw(st.booleans()) else b""))
    return start, found


def naive_position(open_offsets: set[int], next_offset: int) -> int:
    return min(open_offsets, default=next_offset)


def naive_witness(witnesses: list[tuple[int, bytes]], position: int) -> tuple[int, bytes] | None:
    below = [each for each in witnesses if each[0] <= position]
    return below[-1] if below else None


@settings(max_examples=300, deadline=None)
@given(fetches(), st.data())
def test_frontier_is_the_first_open_offset(plan: tuple[int, Fetches], data: st.DataObject) -> None:
    start, todo = plan
    frontier = Frontier(start)
    open_offsets: set[int] = set()
    next_offset, witnesses = start, []
    while todo or open_offsets:
        if todo and (not open_offsets or data.draw(st.booleans())):
            offsets, next_offset, fingerprint = todo.pop(0)
            frontier.received(offsets, next_offset, fingerprint)
            open_offsets |= set(offsets)
            if fingerprint:
                witnesses.append((next_offset, fingerprint))
        elif open_offsets:
            ending = sorted(data.draw(st.sets(st.sampled_from(sorted(open_offsets)), min_size=1)))
            predicted = frontier.if_ended(ending)
            frontier.ended(ending)
            open_offsets -= set(ending)
            assert predicted == (frontier.position, frontier.witness)
        assert frontier.position == naive_position(open_offsets, next_offset)
        assert frontier.witness == naive_witness(witnesses, frontier.position)
        assert frontier.open == len(open_offsets)
        assert frontier.next_offset == next_offset


def test_a_slow_head_holds_the_frontier() -> None:
    frontier = Frontier(2585)
    frontier.received(range(2585, 2590), 2590)
    frontier.ended([2586, 2587, 2588, 2589])
    assert frontier.position == 2585  # not 2590, nor 2586: a gap of one at the head is no hole
    frontier.ended([2585])
    assert frontier.position == 2590


def test_holes_neither_block_nor_count() -> None:
    frontier = Frontier(0)
    frontier.received([3, 9], 15)
    assert (frontier.position, frontier.open) == (3, 2)
    frontier.ended([9])
    frontier.ended([3])
    assert (frontier.position, frontier.open) == (15, 0)


def test_a_fetch_of_nothing_but_holes_moves_it() -> None:
    frontier = Frontier(0, (0, b"old"))
    frontier.received([], 40, b"new")
    assert (frontier.position, frontier.witness) == (40, (40, b"new"))


def test_a_witness_never_leads_the_frontier() -> None:
    frontier = Frontier(0, (0, b"old"))
    frontier.received([0, 1], 2, b"two")
    frontier.received([2], 3, b"three")
    assert frontier.if_ended([1]) == (0, (0, b"old"))
    assert frontier.if_ended([0, 1]) == (2, (2, b"two"))
    frontier.ended([1])
    assert frontier.witness == (0, b"old")
    frontier.ended([0])
    assert frontier.witness == (2, b"two")


def test_it_bears_many_ended_beyond_a_slow_head() -> None:
    frontier = Frontier(0)
    frontier.received(range(50_000), 50_000)
    frontier.ended(list(range(2, 50_000, 2)))
    assert frontier.position == 0
    assert frontier.if_ended([0]) == (1, None)
    frontier.ended(list(range(1, 50_000, 2)))
    frontier.ended([0])
    assert frontier.position == 50_000


@pytest.mark.parametrize(("offsets", "next_offset"), [([3], 4), ([5, 6], 7), ([], 5)])
def test_records_that_come_out_of_order_are_refused(offsets: list[int], next_offset: int) -> None:
    frontier = Frontier(5)
    frontier.received([9, 10], 11)
    with pytest.raises(ValueError, match="come after"):
        frontier.received(offsets, next_offset)
    assert frontier.position == 9
