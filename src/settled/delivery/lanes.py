"""Lanes: the records of one key in one partition run in order, one at a time; other keys pass by. No I/O.

A key is busy while one of its records runs or is held after a failure; its later records wait behind it. Records
without a key (or all records, where the contract orders nothing) have no lane. Where nothing is busy, a group is
taken from the front as it is; its keys are noted one by one only if somebody asks for a key before all of it has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from settled.record import Record


class Lanes:
    """The records of one partition that were received and have not ended."""

    def __init__(self, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self._ready: deque[Record] = deque()
        self._waiting: dict[bytes | None, deque[Record] | None] = {}  # a key is in here while it is busy
        self._out: Sequence[Record] | None = None  # taken while nothing was busy: their keys are busy and not noted yet
        self._apart: deque[Record] = deque()
        self.slow: set[bytes] = set()  # keys whose records run alone, so that they delay nobody else

    def __len__(self) -> int:
        """Records that could be taken now, an upper bound: some may turn out to have a busy key."""
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """Records behind a busy key."""
        return sum(map(len, filter(None, self._waiting.values())))

    def add(self, records: Iterable[Record]) -> None:
        """Newly received records, offsets rising."""
        self._ready.extend(records)

    def put_first(self, records: Sequence[Record]) -> None:
        """Records that come before all that is ready, offsets rising."""
        self._ready.extendleft(reversed(records))

    def withdraw_below(self, offset: int) -> list[Record]:
        """Take the ready records below the offset out again; their keys are free."""
        below = [record for record in self._ready if record.offset < offset]
        if below:
            self._ready = deque(record for record in self._ready if record.offset >= offset)
        return below

    def take(self, most: int) -> list[Record]:
        """Up to `most` records that may run together in one group, in order; their keys are busy from now on."""
        self._note()
        if not self._ordered or not (self._waiting or self.slow):  # nothing is busy: take from the front
            ready = self._ready
            taken = [ready.popleft() for _ in range(min(most, len(ready)))]
            self._out = taken if self._ordered and taken else None
            return taken
        taken, own = self._take_free(most)
        own.discard(None)
        self._waiting.update(dict.fromkeys(own))
        return taken

    def _note(self) -> None:
        """Note the keys of what was taken from the front."""
        if self._out is not None:
            keys, self._out = {record.key for record in self._out}, None
            keys.discard(None)
            self._waiting.update(dict.fromkeys(keys))

    def _take_free(self, most: int) -> tuple[list[Record], set[bytes | None]]:
        """The first records whose keys are free, and those keys; the others passed on the way wait."""
        taken: list[Record] = []
        own: set[bytes | None] = set()
        ready, waiting = self._ready, self._waiting
        while ready and len(taken) < most:
            record = ready.popleft()
            key = record.key
            if key is not None and key not in own:
                if key in waiting:
                    self._behind(key).append(record)
                    continue
                if key in self.slow:
                    waiting[key] = None
                    self._apart.append(record)
                    continue
                own.add(key)
            taken.append(record)
        return taken, own

    def _behind(self, key: bytes) -> deque[Record]:
        """What waits for a busy key; the queue is made when the first record comes."""
        waited = self._waiting[key]
        if waited is None:
            waited = self._waiting[key] = deque()
        return waited

    def take_apart(self) -> Record | None:
        """The next record of a slow key, to be run alone; its key is busy already."""
        return self._apart.popleft() if self._apart else None

    def wait_behind(self, record: Record) -> bool:
        """Put the record behind all that waits for its key, if the key is busy; false if it is free."""
        self._note()
        if not self._ordered or record.key is None or record.key not in self._waiting:
            return False
        self._behind(record.key).append(record)
        return True

    def has_key(self, key: bytes | None) -> bool:
        """Whether the key is busy."""
        self._note()
        return key is not None and key in self._waiting

    def ended(self, records: Sequence[Record]) -> None:
        """These records ended, and no other record of their keys runs or is held: the keys are free."""
        if records is self._out:  # nobody has asked for one of them
            self._out = None
        else:
            self.release({record.key for record in records})

    def release(self, keys: Iterable[bytes | None]) -> None:
        """These keys are no longer busy; what waited behind them is ready, ahead of all that came later."""
        self._note()
        pop = self._waiting.pop
        for key in keys:
            waited = pop(key, None)
            if waited:
                self._ready.extendleft(reversed(waited))

    def hold(self, key: bytes | None) -> None:
        """The key stays (or becomes) busy without a running record: one of its records waits for a retry."""
        self._note()
        if self._ordered and key is not None and key not in self._waiting:
            self._waiting[key] = None

    def give_back(self, records: Sequence[Record], *, held: AbstractSet[bytes | None]) -> None:
        """Taken records that did not run are next of their key: ready again, or waiting where the key is `held`."""
        self._note()
        keys: dict[bytes, None] = {}  # in the records' order
        for record in reversed(records):
            key = record.key
            if self._ordered and key is not None and key in self._waiting:
                self._behind(key).appendleft(record)
                if key not in held:
                    keys[key] = None
            else:
                self._ready.appendleft(record)
        self.release(keys)
