"""What handlers write through: as thin as it can be, and shut while no unit is open.

The first statement of a unit takes the write lock; from then on statements go straight to SQLite, judged by the guard
of the handle when they are prepared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

import apsw

from settled.errors import ContractError, SettledError
from settled.sqlite import translate
from settled.store import AtHand
from settled.stores.outgoing import Outgoing
from settled.stores.spare import ALONE
from settled.stores.sqlite.handle import Handle, ended_by_sqlite


class GuardedTx:
    """What handlers write through; see `settled.store.Tx`. `start` runs at the first use of a unit."""

    dialect: Literal["sqlite", "postgresql"] = "sqlite"
    at_hand: AtHand | None = None

    def __init__(self, handle: Handle, outgoing: Outgoing) -> None:
        self._handle, self._outgoing = handle, outgoing
        self._start: Callable[[], None] = self.open
        self._spare: Any = None
        self._cursor: Callable[[], apsw.Cursor] = self._closed
        handle.on_end = self._end
        self.shut()

    def execute(self, sql: str, params: Any = ()) -> apsw.Cursor:
        """Run one statement; its cursor is iterable, with `fetchall` and `fetchone`."""
        cursor = self._spare
        if sys.getrefcount(cursor) != ALONE:  # none yet, or the handler holds it: its rows stay its own
            cursor = self._cursor()
        try:
            found: apsw.Cursor = cursor.execute(sql, params)
            return found
        except apsw.Error as exc:
            self._explain(exc)
            raise

    def executemany(self, sql: str, rows: Iterable[Any]) -> apsw.Cursor:
        """Run one statement for each row of parameters."""
        try:
            return self._cursor().executemany(sql, rows)
        except apsw.Error as exc:
            self._explain(exc)
            raise

    def publish(self, value: Any = None, **fields: Any) -> str:
        """Put a message into the outbox, see `settled.store.Tx`."""
        if self._cursor in (self._closed, self._gone):
            self._cursor()
        return self._outgoing.publish(value, **fields)

    def _explain(self, exc: apsw.Error) -> None:
        """Raise settled's error where the fault is not the statement's own."""
        if isinstance(translate(exc), SettledError):
            raise self._handle.meaning(exc) from exc

    def arm(self, start: Callable[[], None]) -> None:
        """A unit begins: its first statement calls `start`."""
        self._start = start
        self._cursor = self._first

    def open(self) -> None:
        """The transaction is open: from now on statements go straight to SQLite, judged by the guard."""
        self._cursor = self._next
        self._handle.guarded = True

    def shut(self) -> None:
        """No unit: nothing may be written."""
        self._handle.guarded = False
        self._cursor = self._closed
        self.rest()

    def rest(self) -> None:
        """Let go of the spare cursor, and so end a statement whose rows nobody fetches any more."""
        self._spare = None  # held by many, so never taken for a cursor that is free

    def _first(self) -> apsw.Cursor:
        self._start()
        return self._next()

    def _next(self) -> apsw.Cursor:
        self._spare = self._handle.connection.cursor()
        return self._spare  # type: ignore[no-any-return]

    def _closed(self) -> apsw.Cursor:
        raise ContractError(
            "tx is used outside a handler's run", field="tx", hint="write only while the handler runs, on its thread"
        )

    def _end(self) -> None:
        """SQLite ended the transaction by itself: what follows would be committed piece by piece."""
        self._cursor = self._gone
        self.rest()

    def _gone(self) -> apsw.Cursor:
        raise ended_by_sqlite()
