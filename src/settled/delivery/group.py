"""Group: records handed to an executor, to be run and settled in one transaction; Report: what became of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat

import msgspec

from settled.engine import Partition
from settled.errors import SettledError
from settled.outcome import Attempts, Ending, Failure, Outcome
from settled.record import Record
from settled.store import Progress

LaneKey = tuple[str, int, bytes | None]  # topic, partition, key


class Part(msgspec.Struct):
    """What a group does to one partition: the frontier as it stands, and as it will if every record ends."""

    now: Progress
    then: Progress


class Group:
    """Records handed to an executor. The executor claims them one by one; the owner may withdraw the unclaimed."""

    def __init__(
        self,
        records: Sequence[Record],
        parts: dict[Partition, Part],
        *,
        endings: Sequence[Ending] = (),
        charges: Sequence[tuple[Record, Attempts]] = (),
        suspects: bool = False,
        alone: bool = False,
        redrive: bool = False,
        parked: AbstractSet[LaneKey] = frozenset(),
    ) -> None:
        self.parts, self.endings, self.charges = parts, list(endings), list(charges)
        self.suspects, self.alone = suspects, alone  # start on record first; one after the other, not together
        self.redrive, self.parked = redrive, parked
        self.apart = False  # a record of a key that is known to be slow
        self.started = self.heard = time.monotonic()  # when it was made; when its executor last showed that it goes on
        self.short: set[Partition] = set()  # partitions of withdrawn records
        self.by_place: dict[Partition, list[Record]] | None = None  # the records by partition, where that is known
        self._all = list(records)
        self._claimed = 0  # how many of them, from the front
        self.current: Record | None = None  # the record that runs, or has just run
        self._closed = False
        self._lock = threading.Lock()

    @property
    def records(self) -> list[Record]:
        """All that the executor may have claimed: what was handed over less what was withdrawn."""
        return self._all

    @property
    def size(self) -> int:
        return len(self._all)

    def placed(self) -> dict[Partition, list[Record]]:
        """The same by partition, as they were taken from its lanes where that is still so."""
        if self.by_place is not None and not self.short:
            return self.by_place
        placed: dict[Partition, list[Record]] = {}
        for record in self._all:
            placed.setdefault((record.topic, record.partition), []).append(record)
        return placed

    def claim(self, most: int) -> list[Record]:
        with self._lock:
            self.heard = time.monotonic()
            claimed = self._all[self._claimed : self._claimed + most]
            self._claimed += len(claimed)
            return claimed

    def rewind(self) -> None:
        """None of it is claimed: it is run from the start again."""
        with self._lock:
            self._claimed = 0

    def close(self) -> list[Record]:
        """All that was not withdrawn, and from now on nothing is withdrawn."""
        with self._lock:
            self._closed = True
            return self._all

    def withdraw(self) -> list[Record]:
        """Take back what the executor has not claimed yet. Any thread."""
        with self._lock:
            if self._closed:
                return []
            withdrawn = self._all[self._claimed :]
            if withdrawn:
                self._all = self._all[: self._claimed]
                self.short |= {(record.topic, record.partition) for record in withdrawn}
            return withdrawn


class Report(msgspec.Struct):
    """What became of a group. Every claimed record is in exactly one of endings, failures and returned.

    applied    all records of the group ended as APPLIED, durably: the usual case, in which no ending is made of each
    ended      endings that are durable, of other groups
    failures   ran and failed; nothing of them is stored yet
    returned   did not run, or ran and was undone without a fault of its own
    fault      Unavailable or Fenced: nothing was written, all records are in `returned`
    progress   what was written of the frontiers
    written    the group's endings and charges are durable
    isolate    nobody could be blamed: run the returned records alone
    worked     the part of `seconds` that grows with the records: without what a commit costs by itself
    """

    group: Group
    ended: list[Ending]
    failures: list[tuple[Record, Failure]]
    returned: list[Record]
    fault: SettledError | None = None
    applied: bool = False
    progress: Sequence[Progress] = ()
    written: bool = True
    isolate: bool = False
    seconds: float = 0.0
    worked: float = 0.0

    @property
    def endings(self) -> list[Ending]:
        """How the records ended, one by one."""
        return list(map(Ending, self.group.records, repeat(Outcome.APPLIED))) if self.applied else self.ended

    @property
    def count(self) -> int:
        """How many records ended."""
        return self.group.size if self.applied else len(self.ended)
