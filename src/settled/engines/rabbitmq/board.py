"""The board of a group on a log: the stream `topic:group:board`, on which each member says what it has, and reads what
all say, in one order.

A note tells the whole state of its member, so the newest is enough. It tells of partitions that the member owns, under
which epochs and how far, and of those that it gave back. From a note that was read back its writer knows all that was
written before: who owned a partition last, and how it was left. The lock of a partition keeps others out meanwhile.
"""

from __future__ import annotations

from typing import Any

import msgspec

BOARD: dict[str, Any] = {  # what a board is declared with: a join reads all of it
    "x-queue-type": "stream",
    "x-max-length-bytes": 1_000_000,
    "x-stream-max-segment-size-bytes": 250_000,
}


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a partition: `clean`: its last owner gave it back in good order."""

    epoch: int
    frontier: int | None
    clean: bool


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a member says.

    member    this member and no other, whatever its name
    number    of the member's notes, rising
    joined    the offset of its first note, none in it
    born      how many partitions the topic had when the group began
    at_us     by the member's clock
    owned     by partition; `back`: given back with this note
    gone      it left
    """

    member: str
    name: str
    host: str
    pid: int
    number: int
    born: int
    at_us: int
    lease_s: float
    joined: int | None = None
    owned: dict[int, Mark] = {}
    back: dict[int, Mark] = {}
    gone: bool = False


class Board:
    """What the notes say together. `heard`: the newest of each member that has not left."""

    def __init__(self) -> None:
        self.heard: dict[str, Note] = {}
        self.joined: dict[str, int] = {}
        self.marks: dict[int, Mark] = {}
        self.born: int | None = None

    def take(self, note: Note, offset: int) -> None:
        if self.born is None:
            self.born = note.born
        self.joined.setdefault(note.member, offset if note.joined is None else note.joined)
        for number, mark in (*note.owned.items(), *note.back.items()):
            if mark.epoch >= self.epoch(number):
                self.marks[number] = mark
        if note.gone:
            self.heard.pop(note.member, None)
        else:
            self.heard[note.member] = note

    def epoch(self, number: int) -> int:
        mark = self.marks.get(number)
        return 0 if mark is None else mark.epoch

    def members(self) -> list[str]:
        """In the order in which they joined."""
        return sorted(self.heard, key=lambda member: (self.joined[member], member))

    def owner(self, number: int) -> str | None:
        """The member that says that it owns the partition; of several the one with the highest epoch."""
        found = [(note.owned[number].epoch, note.member) for note in self.heard.values() if number in note.owned]
        return max(found)[1] if found else None

    def forget(self, member: str) -> None:
        self.heard.pop(member, None)


def board_of(topic: str, group: str) -> str:
    return f"{topic}:{group}:board"


def note_of(body: bytes) -> Note | None:
    """None for what is no note."""
    try:
        return msgspec.json.decode(body, type=Note)
    except msgspec.MsgspecError:
        return None
