"""Hints: the newest of each key, in order of keys, bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from settled.delivery.hints import Hints
from settled.record import Record

MANY = 10**9


def hint(key: int, version: int | None, value: bytes | None = None, offset: int = 0) -> Record:
    return Record(
        topic="t",
        partition=0,
        offset=offset,
        key=b"k%d" % key,
        value=value,
        headers=(),
        id=f"{key}-{version}-{offset}",
        type=None,
        version=version,
        event_time_us=None,
        correlation_id=None,
        causation_id=None,
        accepted_us=0,
    )


def told(records: list[Record]) -> list[tuple[bytes | None, int | None]]:
    return [(record.key, record.version) for record in records]


def test_a_slow_reader_gets_one_hint_a_key_and_the_newest() -> None:
    hints = Hints(100, MANY)
    hints.add(hint(n % 10, n) for n in range(1000))
    assert told(hints.take(1000)) == [(b"k%d" % key, 990 + key) for key in range(10)]
    assert (len(hints), hints.bytes, hints.dropped) == (0, 0, 0)


def test_an_older_hint_after_a_newer_one_is_forgotten() -> None:
    hints = Hints(100, MANY)
    hints.add([hint(1, 5), hint(1, 3)])
    assert told(hints.take(10)) == [(b"k1", 5)]
    hints.add([hint(1, 4), hint(1, 5)])
    assert hints.take(10) == []
    hints.add([hint(1, 6)])
    assert told(hints.take(10)) == [(b"k1", 6)]


def test_hints_without_a_version_are_always_news() -> None:
    hints = Hints(100, MANY)
    hints.add([hint(1, None, offset=1), hint(1, None, offset=2)])
    assert [record.offset for record in hints.take(10)] == [2]
    hints.add([hint(1, None, offset=3)])
    assert [record.offset for record in hints.take(10)] == [3]


def test_beyond_the_bound_the_oldest_are_dropped_and_counted() -> None:
    hints = Hints(3, MANY)
    hints.add(hint(n, 1) for n in range(5))
    assert hints.dropped == 2
    assert told(hints.take(10)) == [(b"k%d" % n, 1) for n in (2, 3, 4)]
    hints.add([hint(9, 1, b"x" * 100)])
    small = hints.bytes
    hints = Hints(100, 3 * small)
    hints.add(hint(n, 1, b"x" * 100) for n in range(10))
    assert (len(hints), hints.dropped) == (3, 7)
    assert hints.bytes <= 3 * small
    hints.add([hint(50, 1, b"x" * 10_000)])  # larger than all: it comes alone
    assert told(hints.take(10)) == [(b"k50", 1)]


def test_what_is_given_back_is_next_unless_newer_ones_wait() -> None:
    hints = Hints(100, MANY)
    hints.add([hint(1, 1), hint(2, 1), hint(3, 1)])
    taken = hints.take(2)
    hints.add([hint(2, 2)])
    hints.give_back(taken)
    assert told(hints.take(10)) == [(b"k1", 1), (b"k2", 2), (b"k3", 1)]
    assert hints.bytes == 0


def test_a_hint_that_failed_is_news_when_it_is_told_again() -> None:
    hints = Hints(100, MANY)
    hints.add([hint(1, 7)])
    hints.forget(hints.take(1))
    hints.add([hint(1, 7)])
    assert told(hints.take(1)) == [(b"k1", 7)]


Step = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5), st.integers(0, 9)),
    st.tuples(st.just("take"), st.integers(1, 3), st.just(0)),
)


@given(st.lists(Step), st.integers(1, 6))
def test_versions_rise_for_every_key_and_nothing_is_lost_unseen(steps: list[tuple[str, int, int]], most: int) -> None:
    hints = Hints(most, MANY)
    given_out: dict[bytes | None, int] = {}
    newest: dict[bytes | None, int] = {}
    for what, number, version in steps:
        if what == "add":
            record = hint(number, version)
            hints.add([record])
            newest[record.key] = max(version, newest.get(record.key, -1))
        else:
            for record in hints.take(number):
                assert record.version is not None
                if most >= 6:  # as many keys are remembered as there are
                    assert record.version > given_out.get(record.key, -1)
                given_out[record.key] = max(record.version, given_out.get(record.key, -1))
        assert len(hints) <= most
        assert len(hints._given) <= most
    for record in hints.take(100):
        assert record.version is not None
        given_out[record.key] = max(record.version, given_out.get(record.key, -1))
    if not hints.dropped:
        assert given_out == newest
