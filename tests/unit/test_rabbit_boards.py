"""What a board says, and what waits in a lane: rules without a broker."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from settled.engines.rabbitmq.board import Board, Mark, Note, note_of
from settled.engines.rabbitmq.facts import Facts, Joined, facts_in
from settled.engines.rabbitmq.lane import Lane
from settled.record import Record


def note(member: str, number: int, **fields: object) -> Note:
    usual = {"name": member, "host": "h", "pid": 1, "born": 4, "at_us": 0, "lease_s": 10.0}
    return Note(member=member, number=number, **{**usual, **fields})  # type: ignore[arg-type]


def test_the_newest_note_of_a_member_is_all_that_counts() -> None:
    board = Board()
    board.take(note("a", 1), 0)
    board.take(note("b", 1), 1)
    board.take(note("a", 2, owned={0: Mark(1, None, False), 1: Mark(1, 5, False)}), 2)
    assert (board.owner(0), board.owner(1), board.owner(2)) == ("a", "a", None)
    board.take(note("a", 3, owned={0: Mark(1, 7, False)}, back={1: Mark(1, 9, True)}, joined=0), 3)
    assert (board.owner(0), board.owner(1)) == ("a", None)
    assert board.marks == {0: Mark(1, 7, False), 1: Mark(1, 9, True)}
    board.take(note("b", 2, owned={1: Mark(2, 9, False)}), 4)
    assert board.marks[1] == Mark(2, 9, False)
    board.take(note("a", 4, gone=True, back={0: Mark(1, 8, False)}), 5)
    assert board.members() == ["b"]
    assert board.marks[0] == Mark(1, 8, False)


def test_a_late_note_of_an_owner_before_changes_nothing() -> None:
    """It was on its way when the connection died."""
    board = Board()
    board.take(note("a", 1, owned={0: Mark(1, 3, False)}), 0)
    board.take(note("b", 1, owned={0: Mark(2, 3, False)}), 1)
    board.take(note("a", 2, back={0: Mark(1, 99, True)}), 2)
    assert board.marks[0] == Mark(2, 3, False)
    board.take(note("a", 3, owned={0: Mark(1, 99, False)}), 3)
    assert board.owner(0) == "b"


def test_members_stand_in_the_order_in_which_they_joined() -> None:
    """Also where their first notes are gone: each carries its own."""
    board = Board()
    for offset, (member, joined) in enumerate((("c", 3), ("a", 7), ("b", None)), 100):
        board.take(note(member, 5, joined=joined), offset)
    assert board.members() == ["c", "a", "b"]
    assert board.born == 4


def test_what_is_no_note_is_passed_over() -> None:
    good = msgspec.json.encode(note("a", 1, owned={3: Mark(2, None, False)}))
    assert note_of(good) == note("a", 1, owned={3: Mark(2, None, False)})
    for body in (b"", b"{}", b"[1]", good[:-2], b"\xff"):
        assert note_of(body) is None


def test_the_first_facts_hold_and_what_may_change_changes() -> None:
    first = Facts(identity="x", partitions=2, stream={}, retention_s=60.0)
    bodies = [
        first,
        Facts(identity="y", partitions=9, stream={}),  # made at the same time by another process
        Joined(group="g"),
        Facts(identity="x", partitions=4, stream={}, retention_s=60.0, max_message_bytes=10),
        Facts(identity="x", partitions=3, stream={}, retention_s=60.0),
        Joined(group="g"),
        Joined(group="h"),
    ]
    known = facts_in([*map(msgspec.json.encode, bodies), b"junk"])
    assert known is not None
    assert (known.facts.identity, known.facts.partitions, known.facts.retention_s) == ("x", 4, 60.0)
    assert known.facts.max_message_bytes is None
    assert known.groups == ("g", "h")
    assert facts_in([b"junk"]) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300)), max_size=30),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 500)), min_size=1),
    st.integers(0, 5),
)
def test_a_lane_gives_each_offset_once_in_order(
    steps: list[tuple[int, int]], polls: list[tuple[int, int]], start: int
) -> None:
    """Records with holes between them, taken in any helpings; the position is where the next one goes on."""
    lane = Lane("t", 0, 1)
    lane.begin = 2
    lane.start(start)
    offset, offsets = lane.expected, []
    for hole, size in steps:
        offset += hole
        lane.add(Record("t", 0, offset, None, b"x" * size, (), str(offset)), size, offset + 1)
        offsets.append(offset)
        offset += 1
    given_out: list[int] = []
    gaps: list[int] = []
    turn = 0
    while lane.waiting:
        records, size = polls[turn % len(polls)]
        turn += 1
        found = lane.take(records, size)
        assert found is not None
        assert len(found.records) <= records
        assert found.size <= size or len(found.records) == 1
        assert found.next_offset == lane.position
        given_out += [one.offset for one in found.records]
        gaps += [found.gap_from] if found.gap_from is not None else []
    assert given_out == offsets
    assert gaps == ([start] if start < 2 else [])
    assert lane.waiting_bytes == 0
    assert lane.take(1, 1) is None
