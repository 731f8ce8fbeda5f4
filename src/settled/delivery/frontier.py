"""The frontier of one partition: the offset below which every received record is settled. No I/O.

It counts records that were received. An offset that never comes (compaction, a transaction marker) is a hole: it
neither holds the frontier back nor counts as lag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

Witness = tuple[int, bytes]  # offset and the fingerprint of the log's content below it


class Frontier:
    """Received offsets, which of them ended, and the frontier that follows. Offsets are kept as runs without holes, so
    that the usual step, a piece of the first run that ended, costs the same whatever its length."""

    def __init__(self, start: int, witness: Witness | None = None) -> None:
        self._runs: deque[tuple[int, int]] = deque()  # received, from the first that has not ended: (first, behind)
        self._ended: set[int] = set()  # ended, above the first open one
        self._next = start  # where the next received record may be
        self._witnesses: deque[Witness] = deque()
        self._witness = witness

    @property
    def position(self) -> int:
        """The frontier: all received records below are settled."""
        return self._runs[0][0] if self._runs else self._next

    @property
    def witness(self) -> Witness | None:
        """The newest fingerprint at or below the frontier."""
        return self._witness

    @property
    def next_offset(self) -> int:
        """Where fetching goes on."""
        return self._next

    @property
    def open(self) -> int:
        """How many received records have not ended."""
        return sum(behind - first for first, behind in self._runs) - len(self._ended)

    def received(self, offsets: Sequence[int], next_offset: int, fingerprint: bytes = b"") -> None:
        """Offsets rising and above all received before; the next record comes at `next_offset` or later. Anything else
        is refused, since the frontier would pass records that have not ended."""
        if next_offset < self._next or (offsets and offsets[0] < self._next):
            begin = offsets[0] if offsets else next_offset
            raise ValueError(f"records from {begin} on come after those up to {self._next}")
        for first, behind in _runs(offsets):
            if self._runs and self._runs[-1][1] == first:
                first, _ = self._runs.pop()
            self._runs.append((first, behind))
        self._next = next_offset
        if fingerprint:
            self._witnesses.append((next_offset, fingerprint))
        if not self._runs:
            self._settle_witness()

    def if_ended(self, offsets: Sequence[int]) -> tuple[int, Witness | None]:
        """The frontier and its witness as they would be, had these received offsets (rising) ended too."""
        if self._is_head(offsets):
            position = offsets[-1] + 1
            if position == self._runs[0][1]:
                position = self._runs[1][0] if len(self._runs) > 1 else self._next
        else:
            position = self._first_but(set(offsets))
        witness = self._witness
        for found in self._witnesses:
            if found[0] > position:
                break
            witness = found
        return position, witness

    def ended(self, offsets: Sequence[int]) -> None:
        """These received offsets (rising) ended, durably."""
        if self._is_head(offsets):
            self._pass(offsets[-1] + 1)
        else:
            self._ended.update(offsets)
            while self._runs and (first := self._runs[0][0]) in self._ended:
                self._ended.discard(first)
                self._pass(first + 1)
        self._settle_witness()

    def _pass(self, offset: int) -> None:
        """The first run begins at `offset` now, or is over."""
        _, behind = self._runs[0]
        if offset < behind:
            self._runs[0] = (offset, behind)
        else:
            self._runs.popleft()

    def _first_but(self, more: set[int]) -> int:
        """The first offset that has not ended and is not among `more`."""
        for first, behind in self._runs:
            for offset in range(first, behind):
                if offset not in self._ended and offset not in more:
                    return offset
        return self._next

    def _is_head(self, offsets: Sequence[int]) -> bool:
        """Whether the offsets (rising, all of them open) are exactly the first open ones, without a hole: the usual
        case, and cheap."""
        if self._ended or not offsets or not self._runs:
            return False
        first, behind = self._runs[0]
        return offsets[0] == first and offsets[-1] < behind and offsets[-1] - first + 1 == len(offsets)

    def _settle_witness(self) -> None:
        position = self.position
        while self._witnesses and self._witnesses[0][0] <= position:
            self._witness = self._witnesses.popleft()


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rising offsets as runs without holes: (first, behind the last)."""
    if not offsets:
        return
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        yield offsets[0], offsets[-1] + 1
        return
    first = last = offsets[0]
    for offset in offsets[1:]:
        if offset != last + 1:
            yield first, last + 1
            first = offset
        last = offset
    yield first, last + 1
