"""What handlers write through: psycopg's own cursors, on a guarded connection, shut while no unit is open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import psycopg

from settled.errors import ContractError, SettledError, Unavailable
from settled.stores.postgres.guard import GuardedCursor
from settled.stores.postgres.link import Link


class PostgresTx:
    """See `settled.store.Tx`. Placeholders are psycopg's: %s, or %(name)s.

    spoiled          the error that made the transaction unfit to commit, if a statement failed
    lost             says whether an outage is more than that: a successor that ended this connection
    """

    def __init__(self, link: Link, lost: Callable[[Unavailable], SettledError] = lambda outage: outage) -> None:
        self._link, self._lost = link, lost
        self.spoiled: Exception | None = None
        self.shut()

    def execute(self, sql: Any, params: Any = ()) -> GuardedCursor:
        """Run one statement; its cursor is iterable, with `fetchall`, `fetchone` and `rowcount`."""
        try:
            return self._run(sql, params or None)
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

    def open(self) -> None:
        self.spoiled = None
        connection: Any = self._link.connection
        self._run: Callable[..., GuardedCursor] = connection.execute
        self._cursor: Callable[[], GuardedCursor] = connection.cursor
        connection.guarded = True

    def shut(self) -> None:
        self._link.connection.guarded = False
        self._run = self._closed
        self._cursor = self._closed

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
