"""Adding to the outbox from any application: one insert on the caller's open transaction, see `settled.callers`.

Everything that can be refused is refused before the first statement, so a caller's transaction is never broken by a
message that cannot be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from settled.callers import Caller, caller_of
from settled.outbox_row import INSERT, MAX_BYTES, Row, made, row_of
from settled.record import Message
from settled.token_form import token_of_event


def add(connection: Any, message: Message, *, schema: str = "settled", max_bytes: int = MAX_BYTES) -> Any:
    """Put `message` into the outbox on the caller's transaction; it is published if that commits. Returns its id; for
    an asynchronous connection or session, what returns it when awaited.

    `connection`: psycopg, sqlite3, apsw, SQLAlchemy 2 (Session, Connection, and their async forms) or Django.
    `schema`: where settled's tables live on PostgreSQL. `max_bytes`: the engine's limit. Raises InvalidMessage,
    TooLarge, ContractError for an unknown kind of connection, Refused when no transaction is open; nothing has been
    written by then, and the caller's transaction is as it was.
    """
    row = row_of(message, max_bytes)
    caller = caller_of(connection, schema=schema)
    if caller.asynchronous:
        return _insert_async(caller, row)
    caller.check()
    caller.run(INSERT[caller.dialect], row)
    return message.id


def publish(
    connection: Any,
    value: Any = None,
    *,
    topic: str,
    key: bytes | str | None = None,
    id: str | None = None,
    type: str | None = None,
    version: int | None = None,
    event_time: datetime | None = None,
    headers: Iterable[tuple[str, bytes | None]] = (),
    correlation_id: str | None = None,
    causation_id: str | None = None,
    schema: str = "settled",
    max_bytes: int = MAX_BYTES,
) -> Any:
    """`add`, of a message made here: `value` and `key` may be bytes, text or none; any other value becomes JSON.
    Without an `id` it gets a fresh one."""
    message = made(
        value,
        topic=topic,
        key=key,
        id=id,
        type=type,
        version=version,
        event_time=event_time,
        headers=headers,
        correlation_id=correlation_id,
        causation_id=causation_id,
    )
    return add(connection, message, schema=schema, max_bytes=max_bytes)


def token(event_id: str, *, topic: str) -> str:
    """The token of a message that was added: it serves readers at once, before a relay has published it, of every
    consumer that keeps an inbox. `event_id` is what `add` or `publish` returned; `topic` the one that it is published
    to. Text, for URLs; see `settled.tokens`. Raises ContractError for names that no message can have."""
    return token_of_event(topic, event_id)


async def _insert_async(caller: Caller, row: Row) -> str:
    await caller.acheck()
    await caller.arun(INSERT[caller.dialect], row)
    ident: str = row[0]
    return ident
