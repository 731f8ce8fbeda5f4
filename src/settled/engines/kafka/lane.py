"""An assigned partition in this member, and what was fetched of it and not handed out yet. Used under the hand-off's
lock.
"""

from __future__ import annotations

import time
from collections import deque

from settled.engine import Fetched, Partition
from settled.engines.kafka.marks import Mark
from settled.record import Record


class Chunk:
    """Records of one fetch, in order. `sizes` are their expanded bytes, `next_offset` is where the log goes on."""

    __slots__ = ("gap_from", "next_offset", "records", "size", "sizes")

    def __init__(
        self, records: list[Record], sizes: list[int], next_offset: int, *, gap_from: int | None = None
    ) -> None:
        self.records, self.sizes, self.next_offset, self.gap_from = records, sizes, next_offset, gap_from
        self.size = sum(sizes)

    def split(self, records: int, size: int) -> Chunk | None:
        """Take so much off the front, one record at least; none when it has no more than that."""
        count = total = 0
        for each in self.sizes:
            if count and (count >= records or total + each > size):
                break
            count += 1
            total += each
        if count >= len(self.records):
            return None
        front = Chunk(self.records[:count], self.sizes[:count], self.records[count - 1].offset + 1)
        self.records, self.sizes = self.records[count:], self.sizes[count:]
        self.size -= front.size
        return front


class Lane:
    """One partition, from the group's assignment to its end.

    told        the owner was given `Assigned`, or it waits among the news
    position    where the owner's next record is; none before `start`
    expected    where the broker's next record is
    open        the client fetches from `expected` on
    committed   the offset and note last committed here, or found committed
    """

    __slots__ = (
        "announce_at",
        "begin",
        "chunks",
        "committed",
        "end",
        "epoch",
        "expected",
        "lost",
        "mark",
        "open",
        "paused",
        "place",
        "position",
        "returned",
        "revoking",
        "stopped",
        "told",
        "unconfirmed",
    )

    def __init__(self, place: Partition) -> None:
        self.place = place
        self.announce_at = 0.0
        self.returned = self.revoking = self.lost = False
        self.reset()

    def reset(self) -> None:
        """As it was when the group assigned it: nothing of it is fetched before it is announced and started again."""
        self.told = self.paused = self.stopped = self.open = self.unconfirmed = False
        self.position: int | None = None
        self.expected = 0
        self.begin = self.end = 0
        self.epoch = 0
        self.mark = Mark()
        self.committed: tuple[int, Mark] | None = None
        self.chunks: deque[Chunk] = deque()

    @property
    def wanted(self) -> bool:
        """Whether it should be fetched."""
        return self.position is not None and not (self.paused or self.revoking or self.stopped or self.lost)

    @property
    def due(self) -> bool:
        """Whether it should be announced now."""
        return not (self.told or self.revoking or self.lost) and time.monotonic() >= self.announce_at

    def begin_at(self, offset: int) -> None:
        """The owner starts it. What is gone already is told as a gap."""
        self.stopped = self.paused = self.open = False
        self.chunks.clear()
        self.position = self.expected = max(offset, self.begin)
        if offset < self.begin:
            self.chunks.append(Chunk([], [], self.begin, gap_from=offset))

    def shut(self) -> None:
        """What waits here is fetched again once it may flow again."""
        if self.position is not None:
            self.chunks = deque(chunk for chunk in self.chunks if chunk.gap_from is not None)
            self.expected = self.position

    def add(self, chunk: Chunk) -> None:
        self.expected = chunk.next_offset
        self.chunks.append(chunk)

    def reach(self, offset: int) -> None:
        """The broker has nothing more below `offset`: what was not received is a hole."""
        if offset > self.expected:
            self.add(Chunk([], [], offset))

    def take(self, records: int, size: int) -> Fetched | None:
        """Up to so much of what waits here, one record at least; none when nothing does."""
        if not self.chunks:
            return None
        taken: list[Chunk] = []
        count = total = 0
        while self.chunks:
            chunk = self.chunks[0]
            if taken and (
                chunk.gap_from is not None or (chunk.records and (count >= records or total + chunk.sizes[0] > size))
            ):
                break
            front = chunk.split(records - count, size - total)
            taken.append(front or self.chunks.popleft())
            count += len(taken[-1].records)
            total += taken[-1].size
            if front is not None or chunk.gap_from is not None:
                break
        self.position = taken[-1].next_offset
        found = taken[0].records if len(taken) == 1 else [one for chunk in taken for one in chunk.records]
        topic, partition = self.place
        return Fetched(
            topic=topic,
            partition=partition,
            records=found,
            next_offset=self.position,
            size=total,
            gap_from=taken[0].gap_from,
        )
