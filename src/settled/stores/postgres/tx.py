"""What handlers write through: psycopg's own cursors, on a guarded connection, shut while no unit is open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

import psycopg

from settled.errors import ContractError, SettledError, Unavailable
from settled.store import AtHand
from settled.stores.outgoing import Outgoing
from settled.stores.postgres.guard import GuardedCursor
from settled.stores.postgres.link import Link
from settled.stores.spare import ALONE


class PostgresTx:
    """See `settled.store.Tx`. Placeholders are psycopg's: %s, or %(name)s.

    spoiled          the error that made the transaction unfit to commit, if a statement failed
    lost             says whether an outage is more than that: a successor that ended this connection
    """

    dialect: Literal["sqlite", "postgresql"] = "postgresql"
    at_hand: AtHand | None = None

    def __init__(
        self, link: Link, outgoing: Outgoing, lost: Callable[[Unavailable], SettledError] = lambda outage: outage
    ) -> None:
        self._link, self._outgoing, self._lost = link, outgoing, lost
        self.spoiled: Exception | None = None
        self._spare: Any = None
        self._cursor: Callable[[], GuardedCursor] = self._closed
        self.shut()

    def execute(self, sql: Any, params: Any = ()) -> GuardedCursor:
        """Run one statement; its cursor is iterable, with `fetchall`, `fetchone` and `rowcount`."""
        cursor = self._spare
        if sys.getrefcount(cursor) != ALONE:  # the handler still holds the last one: its rows stay its own
            cursor = self._spare = self._cursor()
        try:
            cursor.execute(sql, params or None)
            return cursor  # type: ignore[no-any-return]
        except psycopg.Error as exc:
            self._explain(exc)
            raise

    def executemany(self, sql: Any, rows: Iterable[Any]) -> GuardedCursor:
        """Run one statement for each row of parameters, in few round trips."""
        cursor = self._cursor()
        try:
            cursor.executemany(sql, rows)
        except psycopg.Error as exc:
            self._explain(exc)
            raise
        return cursor

    def copy(self, sql: Any, params: Any = ()) -> Any:
        """COPY, as psycopg does it: `with tx.copy("COPY t FROM STDIN") as copy: copy.write_row(...)`."""
        return self._cursor().copy(sql, params or None)

    def publish(self, value: Any = None, **fields: Any) -> str:
        """Put a message into the outbox, see `settled.store.Tx`."""
        if self._cursor == self._closed:
            self._cursor()
        return self._outgoing.publish(value, **fields)

    def open(self) -> None:
        self.spoiled = None
        connection: Any = self._link.connection
        self._cursor = connection.cursor
        self._spare = self._cursor()
        connection.guarded = True

    def shut(self) -> None:
        self._link.connection.guarded = False
        self._cursor = self._closed
        self._spare = None  # held by many, so never taken for a spare cursor

    def _explain(self, exc: psycopg.Error) -> None:
        """Raise settled's error where the fault is not the statement's own."""
        passing = self._link.passing(exc)
        if passing is None:
            self.spoiled = exc
            return
        self.spoiled = self._lost(passing)
        raise self.spoiled from exc

    def _closed(self, *_: object) -> GuardedCursor:
        raise ContractError(
            "tx is used outside a handler's run", field="tx", hint="write only while the handler runs, on its thread"
        )
