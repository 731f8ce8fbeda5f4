"""The outbox in PostgreSQL. A relay that finds nothing says so in its row and listens; inserts then notify it.

Rows are selected by what they are, never by a number above the last one seen: a row whose transaction commits late, or
never, holds up nothing and is missed by nobody. Removing sent rows is one statement: no client can stop in its middle.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg

from settled.outbox_row import CHANNEL, INSERT_MANY, Row
from settled.store import OutboxRow
from settled.stores.outbox import NOT_BEHIND, ROW, ROW_BYTES, SqlOutbox, row_from
from settled.stores.postgres.link import NOW, Link
from settled.stores.statements import Statements

T = TypeVar("T")

_BUSY_S = 0.2  # a relay that has not waited for so long is busy: nobody need notify it
_SOME = (
    "SELECT {names} FROM unnest(CAST(? AS smallint[])) AS b(place) CROSS JOIN LATERAL ("
    " SELECT *, sum(coalesce(octet_length(s.payload), 0) + {overhead}) OVER (ORDER BY s.seq ROWS UNBOUNDED PRECEDING)"
    " AS total FROM (SELECT {row} FROM settled_outbox o WHERE o.bucket = b.place AND o.state < 2"
    "{more} ORDER BY o.seq LIMIT ?) AS s) AS found"
    " WHERE total - coalesce(octet_length(payload), 0) - {overhead} < ? ORDER BY seq"
)
_PARTS = {"names": ROW.replace("o.", "found."), "row": ROW, "overhead": ROW_BYTES}
_FAILING = f"SELECT {NOW} FROM settled_outbox WHERE state = 1 LIMIT 1"
_BUT = " AND o.seq <> ALL(CAST(? AS bigint[]))"
_READS = {
    (failing, but): _SOME.format(**_PARTS, more=(NOT_BEHIND if failing else "") + (_BUT if but else ""))
    for failing in (False, True)
    for but in (False, True)
}
_REMOVE = (
    "WITH mine AS (SELECT h.bucket FROM settled_outbox_bucket h WHERE (h.bucket, h.epoch) IN"
    " (SELECT * FROM unnest(CAST(? AS smallint[]), CAST(? AS bigint[]))) ORDER BY h.bucket FOR SHARE),"
    " gone AS (DELETE FROM settled_outbox o"
    " USING unnest(CAST(? AS smallint[]), CAST(? AS bigint[])) AS s(place, number)"
    " WHERE o.bucket = s.place AND o.seq = s.number AND o.bucket IN (SELECT bucket FROM mine) RETURNING 1)"
    " SELECT count(*) FROM gone"
)
_WAITING = "UPDATE settled_outbox_relay SET waiting = ? WHERE relay = ? AND waiting <> ?"


class PostgresOutbox(SqlOutbox):
    """See `settled.store.Outbox`."""

    def __init__(self, link: Link, reader: Link) -> None:
        self._link, self._reader = link, reader  # a relay reads while rows are removed beside
        self._lock, self._read_lock = threading.RLock(), threading.RLock()
        self._ear: psycopg.Connection[Any] | None = None  # listens
        self._wake_end, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._waiting = ""  # the relay that said that it waits
        self._waited = 0.0

    def pending(self, held: Mapping[int, int], *, rows: int, bytes: int, but: Sequence[int] = ()) -> list[OutboxRow]:
        """Each bucket's first rows by its index; what is left of `rows` goes to the buckets that have more. Those are
        read from their beginning again: of two rows of a key that were committed meanwhile the first may stand before
        what the first look found."""
        if not held:
            return []
        with self._read_lock:
            found = self._some(list(held), but, max(1, rows // len(held)), max(1, bytes // len(held)))
            size = sum(ROW_BYTES + len(row.message.value or b"") for row in found)
            full = _full(found, max(1, rows // len(held)))
            if full and rows - len(found) >= rows // 2 and size < bytes // 2:
                but = [*but, *(row.seq for row in found)]
                found += self._some(full, but, (rows - len(found)) // len(full), (bytes - size) // len(full))
                found.sort(key=lambda row: row.seq)
            return found

    def _some(self, buckets: list[int], but: Sequence[int], rows: int, bytes: int) -> list[OutboxRow]:
        """Of each bucket so many rows and bytes, all as they stood at one moment."""
        failing = self._reader.rows(_FAILING)
        more: list[Any] = [failing[0][0]] * 2 if failing else []
        more += [list(but)] if but else []
        read = _READS[(bool(failing), bool(but))]
        return [row_from(row) for row in self._reader.rows(read, (buckets, *more, rows, bytes))]

    def sent(self, held: Mapping[int, int], rows: Sequence[OutboxRow]) -> int:
        params = (list(held), list(held.values()), [row.bucket for row in rows], [row.seq for row in rows])
        removed = int(self._query(_REMOVE, params)[0][0])
        if self._waiting and time.monotonic() - self._waited > _BUSY_S:
            self._say(self._waiting, waits=False)
        return removed

    def wait(self, relay: str, seconds: float) -> None:
        if self._waiting != relay:
            self._listen()
            self._say(relay, waits=True)  # and look once more: what was inserted meanwhile notified nobody
            return
        ear = self._listen()
        try:
            ready, _, _ = select.select([ear.pgconn.socket, self._wake_end], [], [], max(0.0, seconds))
            if self._wake_end in ready:
                os.read(self._wake_end, 4096)
            if ear.pgconn.socket in ready:
                ear.pgconn.consume_input()
                while ear.pgconn.notifies() is not None:
                    pass
        except psycopg.Error as exc:
            self._hang_up()
            raise self._link.meaning(exc) from exc
        self._waited = time.monotonic()

    def wakeup(self) -> None:
        try:
            os.write(self._wake, b"w")
        except BlockingIOError:
            return  # full: it will wake anyway

    def leave(self, relay: str) -> None:
        self._waiting = ""
        super().leave(relay)

    def close(self) -> None:
        with self._lock, self._read_lock:
            self._hang_up()
            self._link.close()
            self._reader.close()
            for end in (self._wake_end, self._wake):
                os.close(end)

    def _listen(self) -> psycopg.Connection[Any]:
        if self._ear is None or self._ear.closed:
            self._waiting = ""
            try:
                self._ear = psycopg.connect(self._link.conninfo, autocommit=True)
                self._ear.execute(f'LISTEN "{CHANNEL}"')
            except psycopg.Error as exc:
                self._hang_up()
                raise self._link.unreached(exc) from exc
        return self._ear

    def _hang_up(self) -> None:
        if self._ear is not None:
            self._ear.close()
            self._ear = None
        self._waiting = ""

    def _say(self, relay: str, *, waits: bool) -> None:
        self._work(lambda handle: handle.run(_WAITING, (waits, relay, waits)))
        self._waiting = relay if waits else ""
        self._waited = time.monotonic()

    def _query(self, sql: str, params: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._link.rows(sql, params)

    def _look(self, work: Callable[[Statements], T]) -> T:
        return self._work(work)

    def _work(self, work: Callable[[Statements], T]) -> T:
        with self._lock:
            return self._link.write(lambda: work(self._link))


def insert(link: Link, rows: list[Row]) -> None:
    """Inside a transaction: put rows into the outbox. Raises psycopg's errors."""
    link.run(INSERT_MANY, [list(column) for column in zip(*rows, strict=True)])


def _full(found: Sequence[OutboxRow], share: int) -> list[int]:
    """The buckets of which as many rows came as were asked for."""
    counts = Counter(row.bucket for row in found)
    return [bucket for bucket, count in counts.items() if count == share]
