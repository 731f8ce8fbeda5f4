"""The outbox in a SQLite file. Waiting looks at SQLite's own counter of others' commits, at growing distances."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from settled.outbox_row import BUCKETS, COLUMNS, INSERT, Row, decode_headers
from settled.record import Message
from settled.store import OutboxRow
from settled.stores.outbox import ANY_FAILING, NOT_BEHIND, PAYLOAD, ROW_BYTES, STATES, SqlOutbox, still_held
from settled.stores.sqlite.handle import Handle
from settled.stores.statements import Statements, holders

T = TypeVar("T")

_FIRST_LOOK_S, _LAST_LOOK_S = 0.005, 0.1
_READ = ", ".join(f"o.{name}" for name in (*COLUMNS, "seq", "state", "attempts"))  # no more: each column costs
_SOME = f"SELECT {_READ} FROM settled_outbox o WHERE o.state < 2"


class SqliteOutbox(SqlOutbox):
    """See `settled.store.Outbox`."""

    def __init__(self, handle: Handle, reader: Handle) -> None:
        self._handle, self._reader = handle, reader  # a relay reads while rows are removed beside
        self._lock, self._read_lock = threading.RLock(), threading.RLock()
        self._woken = threading.Event()
        self._seen = -1  # SQLite's counter of others' commits when it was last looked at

    def pending(self, held: Mapping[int, int], *, rows: int, bytes: int, but: Sequence[int] = ()) -> list[OutboxRow]:
        """In the order of their numbers, as they stand in the file: the fastest way to read them."""
        with self._read_lock:
            self._seen = self._commits()
            sql = _SOME
            params: list[Any] = []
            if len(held) < BUCKETS:
                sql += f" AND o.bucket IN ({holders(held)})"
                params += held
            failing = bool(self._reader.rows(ANY_FAILING))
            if failing:
                sql += NOT_BEHIND
                params += [self._reader.now()] * 2
            end = " ORDER BY o.seq LIMIT ?"
            if not but:
                return self._read(sql + end, [*params, rows], bytes)
            if max(but) - min(but) >= len(but):
                sql += " AND o.seq NOT IN (SELECT value FROM json_each(?))"
                return self._read(sql + end, [*params, _as_json(but), rows], bytes)
            # Nothing stands between them: before them, else behind them, and their pages are not read again.
            before = self._read(f"{sql} AND o.seq < ?{end}", [*params, min(but), rows], bytes)
            return before or self._read(f"{sql} AND o.seq > ?{end}", [*params, max(but), rows], bytes)

    def _read(self, sql: str, params: list[Any], most: int) -> list[OutboxRow]:
        taken: list[tuple[Any, ...]] = []
        try:
            cursor = self._reader.run(sql, params)
            for row in cursor:
                taken.append(row)
                value = row[PAYLOAD]
                most -= ROW_BYTES if value is None else ROW_BYTES + len(value)
                if most <= 0:
                    cursor.close(True)
                    break
        except apsw.Error as exc:
            raise self._reader.meaning(exc) from exc
        return [_row(*row) for row in taken]

    def sent(self, held: Mapping[int, int], rows: Sequence[OutboxRow]) -> int:
        def work(handle: Statements) -> int:
            mine = still_held(handle, held)
            sql, seqs = "DELETE FROM settled_outbox WHERE seq", [row.seq for row in rows]
            first, last = min(seqs), max(seqs)
            params: list[Any]
            if last - first < len(seqs):  # nothing stands between them
                sql, params = sql + " BETWEEN ? AND ?", [first, last]
            else:
                sql, params = sql + " IN (SELECT value FROM json_each(?))", [_as_json(seqs)]
            if len(mine) < BUCKETS:
                sql += f" AND bucket IN ({holders(mine)})"
            handle.run(sql, [*params, *(mine if len(mine) < BUCKETS else ())])
            return int(self._handle.connection.changes())

        with self._lock:
            self._handle.rows("PRAGMA synchronous = NORMAL")  # no sync: see `settled.store.Outbox.sent`
            try:
                return self._work(work)
            finally:
                self._handle.rows("PRAGMA synchronous = FULL")

    def wait(self, relay: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = _FIRST_LOOK_S
        while True:
            with self._read_lock:
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
        with self._lock, self._read_lock:
            self._handle.close()
            self._reader.close()

    def _commits(self) -> int:
        return int(self._reader.rows("PRAGMA data_version")[0][0])

    def _query(self, sql: str, params: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._handle.rows(sql, params)

    def _look(self, work: Callable[[Statements], T]) -> T:
        with self._read_lock:
            return self._reader.look(lambda: work(self._reader))

    def _work(self, work: Callable[[Statements], T]) -> T:
        with self._lock:
            return self._handle.write(lambda: work(self._handle))


def insert(handle: Handle, rows: list[Row]) -> None:
    """Inside a transaction: put rows into the outbox. Raises apsw's errors."""
    handle.run_many(INSERT["sqlite"], rows)


def _row(
    ident: str,
    topic: str,
    aggregate: str | None,
    kind: str | None,
    payload: Any,
    key: bytes | None,
    headers: bytes | None,
    version: int | None,
    moment: int | None,
    correlation: str | None,
    causation: str | None,
    seq: int,
    state: int,
    attempts: int,
) -> OutboxRow:
    """A row of _READ. Every row goes through this: keep it short."""
    if key is None and aggregate is not None:
        key = aggregate.encode()
    message = Message(
        topic=topic,
        key=key,
        value=payload.encode() if payload.__class__ is str else payload,
        headers=() if headers is None else decode_headers(headers),
        id=ident,
        type=kind,
        version=version,
        event_time_us=moment,
        correlation_id=correlation,
        causation_id=causation,
    )
    return OutboxRow(seq, -1, message) if state == 0 else OutboxRow(seq, -1, message, 0, STATES[state], attempts)


def _as_json(seqs: Sequence[int]) -> str:
    return msgspec.json.encode(seqs).decode()
