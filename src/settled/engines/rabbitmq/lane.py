"""A partition of a log in this member, from its lock to its loss or release, and what was handed out of it and not
fetched by the owner yet. Used under the hand-off's lock.
"""

from __future__ import annotations

from collections import deque

from settled.engine import Fetched, Partition
from settled.record import Record

BUDGET = 4 * 1024 * 1024  # expanded bytes that wait in one lane, about


class Item:
    """A record that waits, or a gap before `next`: the offsets from `gap_from` on were wanted, and are gone."""

    __slots__ = ("gap_from", "next", "record", "size", "tag")

    def __init__(self, record: Record | None, size: int, next: int, tag: int, gap_from: int | None = None) -> None:
        self.record, self.size, self.next, self.tag, self.gap_from = record, size, next, tag, gap_from


class Lane:
    """Another object after each loss or release.

    noted       the number of the member's note that said first that it is taken; -1: none did; 0: it was read back
    clean       its last owner gave it back in good order
    position    where the owner's next record is; none before `start`
    expected    where the broker's next record is
    frontier    as the owner said last, or the owner before
    revoking    the owner was asked to give it back
    taken_tag   the delivery tag of the last message that the owner fetched, of those on the channel that is open
    """

    def __init__(self, topic: str, number: int, epoch: int) -> None:
        self.topic, self.number, self.epoch = topic, number, epoch
        self.noted = -1
        self.clean = False
        self.begin = self.end = 0
        self.frontier: int | None = None
        self.position: int | None = None
        self.expected = 0
        self.held = self.revoking = self.leaving = self.stopped = False
        self.waiting: deque[Item] = deque()
        self.waiting_bytes = 0
        self.average = 0.0
        self.taken_tag = self.taken = 0
        self.looks = 0  # how often its bounds were seen
        self.behind_since = 0.0  # when it was first seen to end before the owner's position

    @property
    def place(self) -> Partition:
        return self.topic, self.number

    @property
    def paused(self) -> bool:
        """Whether the owner is to be given nothing of it."""
        return self.held or self.revoking or self.stopped

    def start(self, offset: int) -> None:
        """The owner begins, or begins again. What is gone already is told as a gap."""
        self.empty()
        self.stopped = self.held = False
        self.position = self.expected = offset
        if offset < self.begin:
            self.add_gap(self.begin)

    def empty(self) -> None:
        """What waits is fetched again from where the owner is, if it goes on; delivery tags hold no longer."""
        self.waiting.clear()
        self.waiting_bytes = self.taken_tag = self.taken = 0
        self.expected = self.position or 0

    def add(self, record: Record, size: int, tag: int) -> None:
        self.waiting.append(Item(record, size, record.offset + 1, tag))
        self.waiting_bytes += size
        self.expected = record.offset + 1
        self.average = size if not self.average else self.average + (size - self.average) / 16

    def add_gap(self, upto: int) -> None:
        self.waiting.append(Item(None, 0, upto, 0, self.expected))
        self.expected = upto

    def take(self, records: int, size: int) -> Fetched | None:
        """Up to so many records and bytes, one at least; a gap comes alone."""
        taken: list[Record] = []
        total, next_offset, gap_from = 0, 0, None
        while self.waiting and len(taken) < records:
            item = self.waiting[0]
            if taken and (item.record is None or total + item.size > size):
                break
            self.waiting.popleft()
            next_offset = item.next
            if item.record is None:
                gap_from = item.gap_from
                break
            taken.append(item.record)
            total += item.size
            self.taken_tag = item.tag
        if not next_offset:
            return None
        self.waiting_bytes -= total
        self.taken += len(taken)
        self.position = next_offset
        return Fetched(
            topic=self.topic,
            partition=self.number,
            records=taken,
            next_offset=next_offset,
            size=total,
            gap_from=gap_from,
        )
