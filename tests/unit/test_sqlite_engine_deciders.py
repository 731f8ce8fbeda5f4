"""The embedded engine's deciders: when a batch closes, which batches are fetched, who owns how much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from settled.engines.shares import shares
from settled.engines.sqlite.batching import Bounds
from settled.engines.sqlite.encoding import Stored
from settled.engines.sqlite.reading import choose

BOUNDS = Bounds(400, 600_000, 0.008)


def test_each_bound_closes_a_batch() -> None:
    assert not BOUNDS.full(399, 599_999)
    assert BOUNDS.full(400, 1)
    assert BOUNDS.full(1, 600_000)
    assert BOUNDS.due(10.0) == 10.008
    assert not BOUNDS.overflows(0, 10**9)  # a message above the bound goes alone
    assert not BOUNDS.overflows(599_000, 1000)
    assert BOUNDS.overflows(599_001, 1000)


def batch(seq: int, count: int, size: int) -> Stored:
    return Stored(seq, seq * 1000, count, size, 0, 0, b"", 0)


batches = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=8)


@given(st.lists(batches, max_size=6), st.integers(1, 120), st.integers(1, 12_000))
def test_choosing_keeps_to_the_targets(queues: list[list[tuple[int, int]]], records: int, size: int) -> None:
    stored = [[batch(n, *one) for n, one in enumerate(queue)] for queue in queues]
    chosen = choose(stored, records, size)
    flat = [one for queue in chosen for one in queue]
    assert [queue[: len(taken)] for queue, taken in zip(stored, chosen, strict=True)] == chosen  # in order, no gaps
    assert bool(flat) == any(stored)  # something comes if there is anything
    if len(flat) > 1:
        assert sum(one.count for one in flat) <= records
        assert sum(one.size for one in flat) <= size


def test_choosing_takes_turns() -> None:
    stored = [[batch(n, 10, 10) for n in range(5)] for _ in range(3)]
    assert [len(taken) for taken in choose(stored, 60, 1000)] == [2, 2, 2]


@given(st.dictionaries(st.integers(1, 5), st.integers(0, 20), max_size=4), st.integers(1, 15))
def test_shares_differ_by_one_at_most(topics: dict[int, int], count: int) -> None:
    members = [(f"m{n}", frozenset(topics)) for n in range(count)]
    found = shares(topics, members)
    totals = [sum(found[name, topic] for topic in topics) for name, _ in members]
    assert sum(totals) == sum(topics.values())
    assert max(totals) - min(totals) <= 1
    assert totals == sorted(totals, reverse=True)  # the eldest have more, whoever computes it


def test_only_those_who_ask_get_a_topic() -> None:
    members = [("a", frozenset({1, 2})), ("b", frozenset({2}))]
    assert shares({1: 3, 2: 3, 3: 7}, members) == {("a", 1): 3, ("a", 2): 0, ("b", 2): 3}
