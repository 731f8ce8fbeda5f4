"""What is durable about calls outside the transaction: the intent before the call, one recorded outcome after it.

On a connection of its own, each step in a transaction of its own, so that a unit that is rolled back forgets nothing of
it. The same SQL serves every store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from settled.store import Intent
from settled.stores.statements import Statements

_KEY = "consumer = ? AND event_id = ? AND name = ?"
_INTEND = (
    "INSERT INTO settled_external (consumer, event_id, name, runs, intended_us) VALUES (?, ?, ?, 1, ?)"
    " ON CONFLICT DO NOTHING RETURNING runs"
)
_FOUND = f"SELECT runs, intended_us, result FROM settled_external WHERE {_KEY}"
_AGAIN = f"UPDATE settled_external SET runs = runs + 1 WHERE {_KEY}"
_KEEP = f"UPDATE settled_external SET result = ?, ended_us = ? WHERE {_KEY} AND result IS NULL"
_TAKE_BACK = f"UPDATE settled_external SET runs = runs - 1 WHERE {_KEY} AND result IS NULL"
_UNWRITE = f"DELETE FROM settled_external WHERE {_KEY} AND result IS NULL AND runs = 0"
_FORGET = "DELETE FROM settled_external WHERE consumer = ? AND event_id = ?"


class Connection(Statements, Protocol):
    """A store's connection with transactions of settled's own."""

    def write(self, work: Callable[[], Intent]) -> Intent: ...

    def rows(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]: ...

    def close(self) -> None: ...


class StoredCalls:
    """See `settled.store.Calls`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def intend(self, consumer: str, event_id: str, name: str) -> Intent:
        handle, key = self._connection, (consumer, event_id, name)

        def work() -> Intent:
            now = handle.now()
            if handle.all(_INTEND, (*key, now)):
                return Intent(runs=1, intended_us=now)
            handle.run(_AGAIN, key)
            return self._found(key)

        return handle.write(work)

    def found(self, consumer: str, event_id: str, name: str) -> Intent | None:
        rows = self._connection.rows(_FOUND, (consumer, event_id, name))
        return _intent(rows[0]) if rows else None

    def keep(self, consumer: str, event_id: str, name: str, result: bytes) -> Intent:
        handle, key = self._connection, (consumer, event_id, name)

        def work() -> Intent:
            handle.run(_INTEND, (*key, handle.now())).fetchall()  # a person may have removed it meanwhile
            handle.run(_KEEP, (result, handle.now(), *key))
            return self._found(key)

        return handle.write(work)

    def withdraw(self, consumer: str, event_id: str, name: str) -> None:
        handle, key = self._connection, (consumer, event_id, name)

        def work() -> Intent:
            handle.run(_TAKE_BACK, key)
            handle.run(_UNWRITE, key)
            return Intent(runs=0, intended_us=0)

        handle.write(work)

    def close(self) -> None:
        self._connection.close()

    def _found(self, key: tuple[str, str, str]) -> Intent:
        return _intent(self._connection.all(_FOUND, key)[0])


def _intent(row: Sequence[Any]) -> Intent:
    runs, intended_us, result = row
    return Intent(runs=runs, intended_us=intended_us, result=None if result is None else bytes(result))


def forget(handle: Statements, consumer: str, event_ids: Sequence[str]) -> None:
    """Remove the calls of events whose marks were pruned."""
    handle.run_many(_FORGET, [(consumer, event_id) for event_id in event_ids])
