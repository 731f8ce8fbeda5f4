"""The inbox alone: an effect once for each event id, inside any handler of any framework.

    with connection.transaction():
        with settled.inbox.once(connection, consumer="billing", event_id=message.id) as first:
            if first:
                connection.execute("INSERT INTO invoice ...")

One row is inserted on the caller's own transaction; the mark and the effect are committed together or not at all. The
marks are those of settled's runtime, in the same tables.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

from settled import connect
from settled.callers import Caller, caller_of
from settled.errors import ContractError
from settled.outcome import Outcome
from settled.record import checked_text

NO_PLACE = 0  # the place of a mark that came from no partition of a log
CONSUMER_BYTES = 500

_MARK = (
    "INSERT INTO settled_inbox (consumer_id, event_id, outcome, place_id, place_offset, settled_us)"
    f" SELECT id, CAST(? AS text), {int(Outcome.APPLIED)}, {NO_PLACE}, 0, %(now)s FROM settled_consumer WHERE name = ?"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
_CONSUMER = "SELECT id FROM settled_consumer WHERE name = ?"
_NEW_CONSUMER = "INSERT INTO settled_consumer (name) VALUES (?) ON CONFLICT DO NOTHING"
_UNMARK = (
    "DELETE FROM settled_inbox WHERE consumer_id = (SELECT id FROM settled_consumer WHERE name = ?) AND event_id = ?"
)
_PRUNE = (
    "DELETE FROM settled_inbox WHERE consumer_id = (SELECT id FROM settled_consumer WHERE name = ?) AND event_id IN"
    " (SELECT i.event_id FROM settled_inbox i JOIN settled_consumer c ON c.id = i.consumer_id WHERE c.name = ?"
    f" AND i.place_id = {NO_PLACE} AND i.settled_us < %(now)s - CAST(? AS bigint) LIMIT ?) RETURNING 1"
)


def once(connection: Any, *, consumer: str, event_id: str, schema: str = "settled") -> Once:
    """Mark the event as handled by `consumer`, on the caller's open transaction; to be entered by `with`, or by
    `async with` for an asynchronous connection or session.

    What `as` gives is True when the event is new, False when it was handled before. Of two transactions at once that
    bring the same event the second waits for the first: if that commits it sees False, if it rolls back, True. An
    exception inside takes the mark away again and goes on; rolling back stays the caller's. Nothing is committed here.

    `schema`: where settled's tables are on PostgreSQL. Raises ContractError for a connection of an unknown kind or an
    id that no store can hold, Refused without an open transaction, Unavailable when the database is locked or down.
    """
    checked_text("consumer", consumer, limit=CONSUMER_BYTES)
    checked_text("event_id", event_id)
    return Once(caller_of(connection, schema=schema), consumer, event_id)


class Once:
    """One event at one consumer; see `once`."""

    def __init__(self, caller: Caller, consumer: str, event_id: str) -> None:
        self._caller, self._consumer, self._event_id = caller, consumer, event_id
        self._first = False

    def __enter__(self) -> bool:
        self._require(asynchronous=False, remedy="write: async with settled.inbox.once(...)")
        caller = self._caller
        caller.check()
        mark, params = _now(caller, _MARK), (self._event_id, self._consumer)
        self._first = bool(caller.run(mark, params))
        if not self._first and not caller.run(_CONSUMER, (self._consumer,)):
            caller.run(_NEW_CONSUMER, (self._consumer,))
            self._first = bool(caller.run(mark, params))
        return self._first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._first:
            with contextlib.suppress(Exception):  # a transaction that cannot do this can only be rolled back
                self._caller.check()
                self._caller.run(_UNMARK, (self._consumer, self._event_id))

    async def __aenter__(self) -> bool:
        self._require(asynchronous=True, remedy="write: with settled.inbox.once(...)")
        caller = self._caller
        await caller.acheck()
        mark, params = _now(caller, _MARK), (self._event_id, self._consumer)
        self._first = bool(await caller.arun(mark, params))
        if not self._first and not await caller.arun(_CONSUMER, (self._consumer,)):
            await caller.arun(_NEW_CONSUMER, (self._consumer,))
            self._first = bool(await caller.arun(mark, params))
        return self._first

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._first:
            with contextlib.suppress(Exception):  # a transaction that cannot do this can only be rolled back
                await self._caller.acheck()
                await self._caller.arun(_UNMARK, (self._consumer, self._event_id))

    def _require(self, *, asynchronous: bool, remedy: str) -> None:
        if self._caller.asynchronous is not asynchronous:
            kind = "an asynchronous" if self._caller.asynchronous else "a synchronous"
            raise ContractError(
                f"{type(self._caller.handle).__name__} is {kind} handle", field="connection", hint=remedy
            )


def prune(where: Any, *, consumer: str, older_than_s: float, batch: int = 1000, schema: str = "settled") -> int:
    """Remove marks of `consumer` that are older than every way in which an event may come again (the retention of its
    queue, retries, redrives); returns how many were removed.

    `where` is a synchronous connection or session in a transaction: one batch is removed in it, so call it until it
    removes less than `batch`. Or a store's URL: all are removed, in short transactions; marks that a runtime of
    settled made stay until its frontier is above them.
    """
    if isinstance(where, str):
        return _prune_store(where, consumer, older_than_s, batch)
    caller = caller_of(where, schema=schema)
    if caller.asynchronous:
        raise ContractError("prune takes no asynchronous handle", field="where", hint="give the store's URL")
    caller.check()
    return len(caller.run(_now(caller, _PRUNE), (consumer, consumer, int(older_than_s * 1_000_000), batch)))


def migrate(url: str) -> None:
    """Create settled's tables in the database of `url` (sqlite:///file.db or postgresql://...), or bring them up to
    date; the same as `settled store migrate`. Call it before the application opens a SQLite file with another library
    than apsw: SQLite's locks do not hold between two libraries in one process."""
    store = connect.store(url)
    try:
        store.migrate()
    finally:
        store.close()


def _prune_store(url: str, consumer: str, older_than_s: float, batch: int) -> int:
    store = connect.store(url)
    try:
        before = sum(store.tally(consumer).values())
        while store.prune(consumer, older_than_s=older_than_s, batch=batch):
            pass
        return max(0, before - sum(store.tally(consumer).values()))
    finally:
        store.close()


def _now(caller: Caller, sql: str) -> str:
    return sql % {"now": caller.now}
