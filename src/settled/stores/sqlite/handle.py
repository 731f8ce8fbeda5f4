"""A connection of the store, and the guard around it: nothing commits on it but settled.

While a handler runs, SQLite's authorizer denies transactions, savepoints, ATTACH, pragmas that change something and
writes to settled's tables; a commit hook turns any other commit into a rollback; a rollback hook notices a transaction
that SQLite ended by itself. Writers of one process take turns by a lock instead of fighting over the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

from settled.clock import wall_us
from settled.errors import CommitUnknown, Refused, SettledError, Unavailable
from settled.sqlite import BUSY_S, busy_handler, open_connection, translate

T = TypeVar("T")

READABLE_PRAGMAS = frozenset(
    {
        "table_info",
        "table_xinfo",
        "table_list",
        "index_list",
        "index_info",
        "index_xinfo",
        "foreign_key_list",
        "foreign_key_check",
        "database_list",
        "function_list",
        "collation_list",
        "compile_options",
    }
)
_TABLE_FIRST = frozenset(
    {
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_DROP_VIEW,
        apsw.SQLITE_CREATE_VIEW,
    }
)
_TABLE_SECOND = frozenset(
    {
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_ALTER_TABLE,
    }
)

_turns: dict[str, threading.Lock] = {}
_turns_lock = threading.Lock()


def turn_of(path: Path) -> threading.Lock:
    """The lock that this process's writers of one file share."""
    with _turns_lock:
        return _turns.setdefault(str(path.resolve()), threading.Lock())


class Handle:
    """One connection. One thread at a time; never after a fork.

    guarded          a handler's code runs: the authorizer judges what is prepared
    refusal          what the guard refused in this transaction; it may not be committed any more
    ended            SQLite ended the transaction by itself while it was guarded
    """

    for_update = ""  # a write transaction is alone already

    def __init__(
        self, path: Path, *, busy_s: float = BUSY_S, cache_kib: int = 8192, foreign_keys: bool = False
    ) -> None:
        self.path, self.busy_s, self.cache_kib, self.foreign_keys = path, busy_s, cache_kib, foreign_keys
        self.guarded = self.ended = self.committing = False
        self.refusal: Refused | None = None
        self.on_end: Callable[[], None] = lambda: None
        self._turn = turn_of(path)
        self._holds_turn = False
        self._poisoned = False
        # settled's statements carry a mark no handler can write, so theirs never meet ours in the statement cache.
        self._mark = f" /* {os.urandom(8).hex()} */"
        self._marked: dict[str, str] = {}
        self.connection = self._open()

    def _open(self) -> apsw.Connection:
        self._pid = os.getpid()
        connection = open_connection(self.path, busy_s=self.busy_s, cache_kib=16384, statements=200)
        if self.foreign_keys:
            connection.execute("PRAGMA foreign_keys = ON")
        connection.authorizer = self._authorize
        connection.set_commit_hook(self._forbid_commit)
        connection.set_rollback_hook(self._note_rollback)
        return connection

    def ready(self) -> None:
        """Before each use: right process, and a fresh connection after an I/O error."""
        if os.getpid() != self._pid:
            raise Refused("the store was carried across fork", hint="open the store after the fork, in each process")
        if self._poisoned:
            self.reopen()

    def reopen(self) -> None:
        """Leave the connection behind and open another: after an I/O error its state is not to be trusted."""
        self.connection.close(True)
        self.connection = self._open()
        self._poisoned = False

    # settled's own statements

    def run(self, sql: str, params: Any = ()) -> apsw.Cursor:
        """Run a statement of settled; raises apsw's errors."""
        marked = self._marked.get(sql)
        if marked is None:
            marked = self._marked[sql] = sql + self._mark
        return self.connection.execute(marked, params)

    def all(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        """Run a query of settled and take all of its rows; raises apsw's errors."""
        return self.run(sql, params).fetchall()

    def now(self) -> int:
        return wall_us()

    def run_many(self, sql: str, rows: Iterable[Any]) -> None:
        marked = self._marked.get(sql)
        if marked is None:
            marked = self._marked[sql] = sql + self._mark
        self.connection.executemany(marked, rows)

    def rows(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        """Run a query of settled outside a transaction of its own; raises settled's errors."""
        self.ready()
        try:
            return self.all(sql, params)
        except apsw.Error as exc:
            raise self.meaning(exc) from exc

    def begin(self) -> None:
        """Take this process's turn and the file's write lock."""
        if not self._turn.acquire(timeout=self.busy_s):
            raise Unavailable(
                f"{self.path}: another thread of this process has been writing for {self.busy_s:g} s",
                hint="trying again is safe; a handler holds the write lock while it runs",
            )
        self._holds_turn = True
        self.refusal, self.ended = None, False
        try:
            try:
                self.run("BEGIN IMMEDIATE")
            except apsw.BusyError as exc:
                if getattr(exc, "extendedresult", 0) != apsw.SQLITE_BUSY_SNAPSHOT:
                    raise
                self.reopen()  # a cursor that a handler left open holds an old snapshot
                self.run("BEGIN IMMEDIATE")
        except BaseException:
            self.leave()
            raise

    def commit(self) -> None:
        """Commit; durable when it returns. Raises CommitUnknown when only the inbox can tell."""
        self.committing = True
        try:
            self.run("COMMIT")
        except apsw.IOError as exc:
            self._poisoned = True
            raise CommitUnknown(
                f"{self.path}: COMMIT met an I/O error; whether it holds is not known",
                hint="look at the disk and the system's log; settled asks the inbox",
            ) from exc
        except apsw.BusyError as exc:
            raise Refused(
                "a writing statement of the handler is still open, so the transaction cannot be committed",
                hint="fetch all rows of a statement with RETURNING before the handler returns",
            ) from exc
        finally:
            self.committing = False
        self.leave()

    def rollback(self) -> None:
        """Undo and give up the locks. Never raises."""
        self.guarded = False
        if self._holds_turn:
            try:
                if self.connection.in_transaction:
                    self.run("ROLLBACK")
            except apsw.Error:
                self._poisoned = True
            self.leave()

    def leave(self) -> None:
        self.guarded = False
        if self._holds_turn:
            self._holds_turn = False
            self._turn.release()

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Wait no longer than this for locks, for a while."""
        usual, self.busy_s = self.busy_s, seconds
        self.connection.set_busy_handler(busy_handler(seconds))
        try:
            yield
        finally:
            self.busy_s = usual
            self.connection.set_busy_handler(busy_handler(usual))

    def write(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction of settled's own."""
        self.ready()
        try:
            self.begin()
            found = work()
            self.commit()
        except apsw.Error as exc:
            self.rollback()
            raise self.meaning(exc) from exc
        except BaseException:
            self.rollback()
            raise
        return found

    def look(self, work: Callable[[], T]) -> T:
        """Run queries that all see one moment, without the file's write lock: a handler may hold that for long."""
        self.ready()
        try:
            self.run("BEGIN")
            try:
                return work()
            finally:
                self.run("COMMIT")
        except apsw.Error as exc:
            self._poisoned = True  # it may still be inside the transaction
            raise self.meaning(exc) from exc

    def meaning(self, exc: apsw.Error) -> Exception:
        """What `exc` means to the caller; a statement of settled's own that is at fault is a defect."""
        if isinstance(exc, apsw.IOError | apsw.NoMemError | apsw.CorruptError):
            self._poisoned = True
        found = translate(exc, self.path)
        return SettledError(f"{self.path}: {exc}") if found is exc else found

    def close(self) -> None:
        if os.getpid() == self._pid:
            self.rollback()
            self.connection.close(True)

    # the guard

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        if not self.guarded:
            return apsw.SQLITE_OK
        if action in (apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT):
            what = first if action == apsw.SQLITE_TRANSACTION else "SAVEPOINT"
            self._refuse(f"{what} in a handler", "return from the handler: settled commits; raise: settled rolls back")
        if action in (apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH):
            self._refuse("ATTACH or DETACH in a handler", "keep what an effect changes in the store's own database")
        if action == apsw.SQLITE_PRAGMA and (first or "").lower() not in READABLE_PRAGMAS:
            self._refuse(f"PRAGMA {first} in a handler", "settings of the connection are settled's")
        table = first if action in _TABLE_FIRST else second if action in _TABLE_SECOND else None
        if table is not None and table.lower().startswith("settled_"):
            self._refuse(
                f"a change of {table} in a handler", "tables named settled_* are settled's own; only read them"
            )
        return apsw.SQLITE_OK

    def _refuse(self, what: str, hint: str) -> None:
        self.refusal = Refused(f"{what} is refused", hint=hint)
        raise self.refusal

    def _forbid_commit(self) -> bool:
        return not self.committing

    def _note_rollback(self) -> None:
        if self.guarded:
            self.ended = True
            self.on_end()


def ended_by_sqlite() -> Refused:
    return Refused(
        "the transaction was rolled back by a statement or an error in the handler; nothing of it is kept",
        hint="do not go on after a failed statement: let the error leave the handler; do not use OR ROLLBACK",
    )
