"""The outbox in a SQLite file. Waiting looks at SQLite's own counter of others' commits, at growing distances."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from settled.outbox_row import INSERT, Row
from settled.store import OutboxRow
from settled.stores.outbox import ANY_FAILING, NOT_BEHIND, ROW, SqlOutbox, row_from, still_held
from settled.stores.sqlite.handle import Handle
from settled.stores.statements import Statements

T = TypeVar("T")

_FIRST_LOOK_S, _LAST_LOOK_S = 0.005, 0.1
_SOME = f"SELECT {ROW} FROM settled_outbox o WHERE o.bucket = ? AND o.seq > ? AND o.state < 2"
_DELETE = "DELETE FROM settled_outbox WHERE seq IN (SELECT value FROM json_each(?))"


class SqliteOutbox(SqlOutbox):
    """See `settled.store.Outbox`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.RLock()
        self._woken = threading.Event()
        self._seen = -1  # SQLite's counter of others' commits when it was last looked at
        self._turn = 0

    def pending(self, held: Mapping[int, int], *, rows: int, bytes: int) -> list[OutboxRow]:
        with self._lock:
            self._seen = self._commits()
            now = self._handle.now()
            failing = bool(self._handle.rows(ANY_FAILING))
            take = _Take(self._handle, rows, bytes, (now, now) if failing else ())
            self._turn += 1
            buckets = sorted(held)
            first = self._turn % len(buckets) if buckets else 0
            buckets = buckets[first:] + buckets[:first]
            share = max(1, rows // max(1, len(buckets)))
            more = [(bucket, last) for bucket in buckets if (last := take.of(bucket, -1, share)) is not None]
            for bucket, last in more:
                take.of(bucket, last, rows)
            return take.found

    def sent(self, held: Mapping[int, int], rows: Sequence[OutboxRow]) -> int:
        def work(handle: Statements) -> int:
            mine = still_held(handle, held)
            seqs = [row.seq for row in rows if row.bucket in mine]
            if seqs:
                handle.run(_DELETE, (msgspec.json.encode(seqs).decode(),))
            return len(seqs)

        return self._work(work)

    def wait(self, relay: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = _FIRST_LOOK_S
        while True:
            with self._lock:
                if self._commits() != self._seen:
                    break
            left = deadline - time.monotonic()
            if left <= 0 or self._woken.wait(min(pause, left)):
                break
            pause = min(_LAST_LOOK_S, pause * 1.3)
        self._woken.clear()

    def wakeup(self) -> None:
        self._woken.set()

    def close(self) -> None:
        with self._lock:
            self._handle.close()

    def _commits(self) -> int:
        return int(self._handle.rows("PRAGMA data_version")[0][0])

    def _query(self, sql: str, params: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._handle.rows(sql, params)

    def _work(self, work: Callable[[Statements], T]) -> T:
        with self._lock:
            return self._handle.write(lambda: work(self._handle))


def insert(handle: Handle, rows: list[Row]) -> None:
    """Inside a transaction: put rows into the outbox. Raises apsw's errors."""
    handle.run_many(INSERT["sqlite"], rows)


class _Take:
    """Collects rows bucket by bucket until it has enough."""

    def __init__(self, handle: Handle, rows: int, bytes: int, due: tuple[int, ...]) -> None:
        self.found: list[OutboxRow] = []
        self._handle, self._rows, self._bytes, self._due = handle, rows, bytes, due
        self._sql = _SOME + (NOT_BEHIND if due else "") + " ORDER BY o.seq LIMIT ?"

    def of(self, bucket: int, after: int, most: int) -> int | None:
        """Take up to `most` rows of the bucket; the last one's number if there may be more."""
        most = min(most, self._rows - len(self.found))
        if most <= 0 or self._bytes <= 0:
            return None
        taken = 0
        try:
            cursor = self._handle.run(self._sql, (bucket, after, *self._due, most))
            for row in cursor:
                found = row_from(row)
                self._bytes -= found.message.size
                self.found.append(found)
                taken += 1
                if self._bytes <= 0:
                    cursor.close(True)
                    return None
        except apsw.Error as exc:
            raise self._handle.meaning(exc) from exc
        return self.found[-1].seq if taken == most else None
