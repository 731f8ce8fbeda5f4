"""The log's file: a set of connections that any thread may borrow, and transactions.

Two kinds of connection differ in one setting: `durable` ones sync each commit to the disk, the others survive the
process but not a power cut (control writes, reads, durability `memory`). Every transaction that may write begins with
BEGIN IMMEDIATE. A failed sync makes the whole set unusable: what the disk holds is then not known.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import apsw

from settled import sqlite
from settled.errors import HistoryLost, Refused, Unavailable

_SYNC_FAILED = frozenset({apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC})
_open_sets: weakref.WeakSet[Database] = weakref.WeakSet()
_foreign: list[apsw.Connection] = []  # a parent's connections: kept for ever, since closing them here would do harm


class Connection(Protocol):
    """What transactions need of a connection."""

    def execute(self, sql: str, params: Any = (), /) -> Any: ...

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any: ...

    def changes(self) -> int: ...

    def last_insert_rowid(self) -> int: ...


class Database:
    """Any thread may call it."""

    def __init__(self, path: Path, *, busy_s: float = sqlite.BUSY_S, network: bool = False) -> None:
        self.path = path.absolute()
        self._busy_s, self._network = busy_s, network
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free: dict[bool, list[apsw.Connection]] = {True: [], False: []}
        self._all: set[apsw.Connection] = set()
        self._unusable: Unavailable | None = None
        self._files: tuple[tuple[int, int], ...] | None = None
        self._closed = False
        self._anchor = self._open(durable=True)  # stays open, so that the WAL is never removed under the others
        _open_sets.add(self)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view; keep it short, since a long one holds up checkpoints."""
        with self._borrowed(durable=False) as connection:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def writing(self, *, durable: bool) -> Iterator[Connection]:
        """One transaction; committed when the block ends, rolled back when it raises."""
        with self._borrowed(durable=durable) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def raw(self, *, durable: bool) -> Iterator[apsw.Connection]:
        """A connection outside any transaction."""
        with self._borrowed(durable=durable) as connection:
            yield connection

    def pin(self) -> None:
        """Remember which files are open; from now on `check_same_file` compares with them. The anchor reads, since a
        connection holds on to the WAL from its first read on."""
        self._anchor.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        self._files = self._stat()

    def check_same_file(self) -> None:
        """Raises HistoryLost when the file under this path is no longer the one that is open here."""
        if self._files is not None and self._stat() != self._files:
            raise HistoryLost(
                f"{self.path} or its WAL was replaced or removed while it was open",
                hint="stop all processes that use this log, then start them again; never copy over a live log",
            )

    def wal_bytes(self) -> int:
        try:
            return os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return 0

    def checkpoint(self) -> None:
        """Bring the WAL into the file and cut it, if no reader is in the way."""
        with self.raw(durable=True) as connection:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            connection.set_busy_handler(sqlite.busy_handler(0.1))  # writers wait meanwhile
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                return
            finally:
                connection.set_busy_handler(sqlite.busy_handler(self._busy_s))

    def close(self) -> None:
        """Close all connections. Borrowed ones are closed when they come back."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            idle = [connection for free in self._free.values() for connection in free]
            self._free = {True: [], False: []}
        for connection in [*idle, self._anchor]:
            self._discard(connection)

    @contextmanager
    def _borrowed(self, *, durable: bool) -> Iterator[apsw.Connection]:
        connection = self._take(durable)
        try:
            yield connection
        except apsw.Error as error:
            self._discard(connection)
            raise self._judged(error) from error
        except BaseException:
            self._undo(connection, durable)
            raise
        self._give(connection, durable)

    def _take(self, durable: bool) -> apsw.Connection:
        if os.getpid() != self._pid:
            raise Refused(
                f"the log {self.path} was opened by another process and carried across a fork",
                hint="open the engine after the fork, in the process that uses it",
            )
        if self._unusable is not None:
            raise self._unusable
        with self._lock:
            if self._closed:
                raise Refused(f"the log {self.path} is closed", hint="open the engine again")
            if self._free[durable]:
                return self._free[durable].pop()
        self.check_same_file()  # before opening: a file that was removed must not be made anew by this
        return self._open(durable=durable)

    def _give(self, connection: apsw.Connection, durable: bool) -> None:
        with self._lock:
            if not self._closed:
                self._free[durable].append(connection)
                return
        self._discard(connection)

    def _undo(self, connection: apsw.Connection, durable: bool) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except apsw.Error:
            self._discard(connection)
        else:
            self._give(connection, durable)

    def _open(self, *, durable: bool) -> apsw.Connection:
        connection = sqlite.open_connection(self.path, busy_s=self._busy_s, network=self._network)
        try:
            connection.execute("PRAGMA journal_size_limit = 67108864")
            if not durable:
                connection.execute("PRAGMA synchronous = NORMAL")
        except apsw.Error as error:
            connection.close(True)
            raise self._judged(error) from error
        with self._lock:
            self._all.add(connection)
        return connection

    def _discard(self, connection: apsw.Connection) -> None:
        with self._lock:
            self._all.discard(connection)
        connection.close(True)

    def _judged(self, error: apsw.Error) -> Exception:
        if getattr(error, "extendedresult", 0) in _SYNC_FAILED:
            self._unusable = Unavailable(
                f"a sync of {self.path} failed, so what the disk holds is not known",
                hint="check the disk, then restart the process: opening the log anew is the way back",
            )
            return self._unusable
        return sqlite.translate(error, self.path)

    def _stat(self) -> tuple[tuple[int, int], ...]:
        found = []
        for name in (f"{self.path}", f"{self.path}-wal"):
            try:
                stat = os.stat(name)  # never opened: closing it would drop this process's locks
                found.append((stat.st_dev, stat.st_ino))
            except FileNotFoundError:
                found.append((0, 0))
        return tuple(found)


def _after_fork() -> None:
    for database in _open_sets:
        _foreign.extend(database._all)


os.register_at_fork(after_in_child=_after_fork)
