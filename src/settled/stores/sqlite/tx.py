"""What handlers write through: as thin as it can be, and shut while no unit is open.

The first statement of a unit takes the write lock; from then on statements go straight to SQLite, judged by the guard
of the handle when they are prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import apsw

from settled.errors import ContractError, SettledError
from settled.sqlite import translate
from settled.store import AtHand
from settled.stores.outgoing import Outgoing
from settled.stores.sqlite.handle import Handle, ended_by_sqlite


class GuardedTx:
    """What handlers write through; see `settled.store.Tx`. `start` runs at the first use of a unit."""

    dialect: Literal["sqlite", "postgresql"] = "sqlite"
    at_hand: AtHand | None = None

    def __init__(self, handle: Handle, outgoing: Outgoing) -> None:
        self._handle, self._outgoing = handle, outgoing
        self._start: Callable[[], None] = self.open
        handle.on_end = self._end
        self.shut()

    def execute(self, sql: str, params: Any = ()) -> apsw.Cursor:
        """Run one statement; its cursor is iterable, with `fetchall` and `fetchone`."""
        try:
            return self._run(sql, params)
        except apsw.Error as exc:
            self._explain(exc)
            raise

    def executemany(self, sql: str, rows: Iterable[Any]) -> apsw.Cursor:
        """Run one statement for each row of parameters."""
        try:
            return self._run_many(sql, rows)
        except apsw.Error as exc:
            self._explain(exc)
            raise

    def publish(self, value: Any = None, **fields: Any) -> str:
        """Put a message into the outbox, see `settled.store.Tx`."""
        if self._run in (self._closed, self._gone):
            self._run("", ())
        return self._outgoing.publish(value, **fields)

    def _explain(self, exc: apsw.Error) -> None:
        """Raise settled's error where the fault is not the statement's own."""
        if isinstance(translate(exc), SettledError):
            raise self._handle.meaning(exc) from exc

    def arm(self, start: Callable[[], None]) -> None:
        """A unit begins: its first statement calls `start`."""
        self._start = start
        self._run: Callable[..., apsw.Cursor] = self._first
        self._run_many: Callable[..., apsw.Cursor] = self._first_many

    def open(self) -> None:
        """The transaction is open: from now on statements go straight to SQLite, judged by the guard."""
        self._run, self._run_many = self._handle.connection.execute, self._handle.connection.executemany
        self._handle.guarded = True

    def shut(self) -> None:
        """No unit: nothing may be written."""
        self._handle.guarded = False
        self._run = self._run_many = self._closed

    def _first(self, sql: str, params: Any) -> apsw.Cursor:
        self._start()
        return self._run(sql, params)

    def _first_many(self, sql: str, rows: Iterable[Any]) -> apsw.Cursor:
        self._start()
        return self._run_many(sql, rows)

    def _closed(self, *_: object) -> apsw.Cursor:
        raise ContractError(
            "tx is used outside a handler's run", field="tx", hint="write only while the handler runs, on its thread"
        )

    def _end(self) -> None:
        """SQLite ended the transaction by itself: what follows would be committed piece by piece."""
        self._run = self._run_many = self._gone

    def _gone(self, *_: object) -> apsw.Cursor:
        raise ended_by_sqlite()
