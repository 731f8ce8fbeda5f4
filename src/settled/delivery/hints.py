"""The newest hint of each key, until somebody has time for it. No I/O, no threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from settled.record import Record


class Hints:
    """Hints that wait, one a key, in the order in which their keys came; bounded by count and by expanded bytes, beyond
    which the oldest are dropped. Which version of a key was given out last is remembered for as many keys."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.bytes = 0
        self.dropped = 0  # hints that no other took the place of
        self._waiting: dict[bytes | None, Record] = {}
        self._given: dict[bytes | None, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, records: Iterable[Record]) -> None:
        """A hint takes the place of an older one of its key, and its turn; one that is older than what is known of its
        key is forgotten."""
        for record in records:
            waiting = self._waiting.get(record.key)
            if _is_news(record, waiting.version if waiting is not None else self._given.get(record.key), waiting):
                self.bytes += record.size - (waiting.size if waiting is not None else 0)
                self._waiting[record.key] = record
                self._bound()

    def take(self, most: int) -> list[Record]:
        """The next hints, at most so many: they wait no more."""
        keys = [key for key, _ in zip(self._waiting, range(most), strict=False)]
        taken = [self._waiting.pop(key) for key in keys]
        for record in taken:
            self.bytes -= record.size
            if record.version is not None:
                self._given.pop(record.key, None)
                self._given[record.key] = record.version
        while len(self._given) > self.most:
            del self._given[next(iter(self._given))]
        return taken

    def forget(self, records: Iterable[Record]) -> None:
        """Nothing came of these: hints of their versions are news again."""
        for record in records:
            self._given.pop(record.key, None)

    def give_back(self, records: Sequence[Record]) -> None:
        """These were taken and could not be tried: they are next again, unless newer ones wait."""
        self.forget(records)
        later, self._waiting = self._waiting, {record.key: record for record in records}
        for record in later.values():
            self._waiting[record.key] = record
        self.bytes = sum(record.size for record in self._waiting.values())
        self._bound()

    def _bound(self) -> None:
        while len(self._waiting) > self.most or (self.bytes > self.most_bytes and len(self._waiting) > 1):
            self.bytes -= self._waiting.pop(next(iter(self._waiting))).size
            self.dropped += 1


def _is_news(record: Record, known: int | None, waiting: Record | None) -> bool:
    """Whether it says more than what is known of its key. What waits is replaced also by its equal."""
    if record.version is None or known is None:
        return True
    return record.version >= known if waiting is not None else record.version > known
