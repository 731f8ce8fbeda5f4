"""The frontier of one partition: the offset below which every received record is settled. No I/O.

It counts records that were received. An offset that never comes (compaction, a transaction marker) is a hole: it
neither holds the frontier back nor counts as lag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

Witness = tuple[int, bytes]  # offset and the fingerprint of the log's content below it


class Frontier:
    """Received offsets, which of them ended, and the frontier that follows."""

    def __init__(self, start: int, witness: Witness | None = None) -> None:
        self._open: deque[int] = deque()  # received, in order, from the first that has not ended
        self._ended: set[int] = set()  # ended, above the first open one
        self._next = start  # where the next received record may be
        self._witnesses: deque[Witness] = deque()
        self._witness = witness

    @property
    def position(self) -> int:
        """The frontier: all received records below are settled."""
        return self._open[0] if self._open else self._next

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
        return len(self._open) - len(self._ended)

    def received(self, offsets: Iterable[int], next_offset: int, fingerprint: bytes = b"") -> None:
        """Offsets rising and above all received before; the next record comes at `next_offset` or later. Anything else
        is refused, since the frontier would pass records that have not ended."""
        offsets = list(offsets)
        if next_offset < self._next or (offsets and offsets[0] < self._next):
            raise ValueError(f"records from {offsets[:1] or next_offset} on come after those up to {self._next}")
        self._open.extend(offsets)
        self._next = next_offset
        if fingerprint:
            self._witnesses.append((next_offset, fingerprint))
        if not self._open:
            self._settle_witness()

    def if_ended(self, offsets: list[int]) -> tuple[int, Witness | None]:
        """The frontier and its witness as they would be, had these received offsets ended too."""
        if self._is_head(offsets):
            count = len(offsets)
            position = self._open[count] if count < len(self._open) else self._next
        else:
            ended = self._ended.union(offsets)
            position = next((offset for offset in self._open if offset not in ended), self._next)
        witness = self._witness
        for found in self._witnesses:
            if found[0] > position:
                break
            witness = found
        return position, witness

    def ended(self, offsets: list[int]) -> None:
        """These received offsets ended, durably."""
        if self._is_head(offsets):
            for _ in offsets:
                self._open.popleft()
        else:
            self._ended.update(offsets)
            while self._open and self._open[0] in self._ended:
                self._ended.discard(self._open.popleft())
        self._settle_witness()

    def _is_head(self, offsets: list[int]) -> bool:
        """Whether the offsets (rising, all of them open) are exactly the first open ones: the usual case, and cheap."""
        count = len(offsets)
        return (
            not self._ended
            and 0 < count <= len(self._open)
            and self._open[0] == offsets[0]
            and self._open[count - 1] == offsets[-1]
        )

    def _settle_witness(self) -> None:
        position = self.position
        while self._witnesses and self._witnesses[0][0] <= position:
            self._witness = self._witnesses.popleft()
