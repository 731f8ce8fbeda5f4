"""When a batch closes: at whichever of three bounds is met first. Pure: no clock, no lock, no I/O."""

from __future__ import annotations

import msgspec


class Bounds(msgspec.Struct, frozen=True):
    """records and size bound a batch, linger_s how long its first message waits."""

    records: int
    size: int
    linger_s: float

    def full(self, records: int, size: int) -> bool:
        """Whether a batch of so many messages and bytes is closed now."""
        return records >= self.records or size >= self.size

    def overflows(self, size: int, more: int) -> bool:
        """Whether a batch of `size` bytes closes before a message of `more` bytes is added to it."""
        return size > 0 and size + more > self.size

    def due(self, opened: float) -> float:
        """When a batch opened at `opened` closes at the latest, by the same clock."""
        return opened + self.linger_s
