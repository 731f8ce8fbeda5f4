"""The redrives of one partition while it is owned under one epoch: what was asked for, what runs, what failed. They
go with the assignment: what a later one of this same member finds is asked of the store anew.

Of a key they run in the order of the log, each once the one before it has ended. The owner thread alone uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from settled.delivery.lanes import Lanes
from settled.outcome import Attempts, Ending
from settled.record import Record
from settled.store import QuarantineEntry


class Redrives:
    def __init__(self) -> None:
        self.failed: deque[Ending] = deque()  # back to quarantine
        self.behind: set[int] = set()  # numbers of those that may not run: an earlier record of their key did not end
        self._waiting: list[QuarantineEntry] = []  # in the order of the log
        self._known: dict[int, QuarantineEntry] = {}  # number -> entry, while it waits, runs or failed

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def add(self, entries: Iterable[QuarantineEntry]) -> None:
        for entry in entries:
            self._known[entry.number] = entry
            self._waiting.append(entry)
        self._waiting.sort(key=lambda entry: entry.record.offset)

    def take(self, lanes: Lanes) -> QuarantineEntry | None:
        """The next one whose key is free."""
        passed: set[bytes | None] = set()  # of these one has to wait: later ones of the key wait behind it
        for place, entry in enumerate(self._waiting):
            key = entry.record.key
            if key not in passed and not lanes.has_key(key):
                return self._waiting.pop(place)
            passed.add(key)
        return None

    def hold_back(self, record: Record) -> None:
        """It failed: those of its key that wait may not run."""
        self.behind |= {entry.number for entry in self._waiting if _follows(entry, record)}

    def ended(self, record: Record) -> None:
        for number, entry in list(self._known.items()):
            if entry.record.offset == record.offset:
                del self._known[number]

    def returned(self, record: Record) -> None:
        """It did not end and is asked for still: the next look at the store finds it, and those behind it."""
        self.ended(record)
        for entry in [entry for entry in self._waiting if _follows(entry, record)]:
            self._waiting.remove(entry)
            del self._known[entry.number]
            self.behind.discard(entry.number)

    def attempts(self, record: Record) -> Attempts | None:
        """Those before this run."""
        return next((entry.attempts for entry in self._known.values() if entry.record.offset == record.offset), None)


def _follows(entry: QuarantineEntry, record: Record) -> bool:
    return record.key is not None and entry.record.key == record.key and entry.record.offset > record.offset
