"""A message as a row of the outbox, and back: the one place that knows its columns. No I/O.

The first five columns are those that Debezium's outbox event router reads; `aggregatetype` is the topic. A key that is
text is `aggregateid`; of any other key `aggregateid` is its hexadecimal form and `record_key` holds the bytes. Whoever
writes rows by SQL of their own fills the first five; all others have defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from settled.errors import TooLarge
from settled.record import MAX_ID_BYTES, Headers, Message, checked, new_id, to_us

COLUMNS = (
    "id",
    "aggregatetype",
    "aggregateid",
    "type",
    "payload",
    "record_key",
    "headers",
    "version",
    "event_time_us",
    "correlation_id",
    "causation_id",
)
BUCKETS = 16  # keys are divided into so many; each has one owner among the relays
MAX_BYTES = 1_000_000  # the limit of an engine that states no other
CHANNEL = "settled-outbox"  # where PostgreSQL's relays listen

Row = tuple[Any, ...]

_good_names: set[tuple[str, str | None]] = set()
_encode_headers = msgspec.msgpack.Encoder().encode
decode_headers = msgspec.msgpack.Decoder(Headers).decode


def row_of(message: Message, max_bytes: int = MAX_BYTES) -> Row:
    """The values of COLUMNS. Raises InvalidMessage or TooLarge: nothing has been written by then."""
    size = message.size if _is_plain(message) else checked(message).size
    if size > max_bytes:
        raise TooLarge(
            f"message {message.id!r} has {size} bytes, above the limit of {max_bytes}",
            field="value",
            hint="store large content elsewhere and publish a reference; or state a higher max_bytes if the engine,"
            " and the topic, take it",
        )
    key = message.key
    text = None if key is None else _as_text(key)
    return (
        message.id,
        message.topic,
        text if key is None or text is not None else key.hex(),
        message.type,
        message.value,
        key if text is None else None,
        _encode_headers(message.headers) if message.headers else None,
        message.version,
        message.event_time_us,
        message.correlation_id,
        message.causation_id,
    )


def _is_plain(message: Message) -> bool:
    """Whether a few comparisons show that `checked` would let it pass, as nearly always. The topics and types that
    were found good are remembered."""
    ident = message.id
    if message.headers or message.version is not None or message.event_time_us is not None:
        return False
    if type(ident) is not str or not 0 < len(ident) <= MAX_ID_BYTES or not ident.isascii() or "\0" in ident:
        return False
    for part in (message.key, message.value):
        if part is not None and type(part) is not bytes:
            return False
    for text in (message.correlation_id, message.causation_id):
        if text is not None and (type(text) is not str or len(text) > 200 or not text.isascii() or "\0" in text):
            return False
    names = (message.topic, message.type)
    if names not in _good_names:
        checked(message)
        if len(_good_names) < 1000:
            _good_names.add(names)
    return True


def message_of(row: Row) -> Message:
    """The message that a row of COLUMNS holds, byte for byte; also of a row that others wrote."""
    ident, topic, aggregate, kind, payload, key, headers, version, moment, correlation, causation = row
    if key is None and aggregate is not None:
        key = aggregate.encode()
    return Message(
        topic=topic,
        key=key,
        value=payload.encode() if type(payload) is str else payload,
        headers=decode_headers(headers) if headers is not None else (),
        id=ident,
        type=kind,
        version=version,
        event_time_us=moment,
        correlation_id=correlation,
        causation_id=causation,
    )


def made(
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
) -> Message:
    """A message of what people have in hand: `value` and `key` may be bytes, text (UTF-8) or none; any other value
    becomes JSON. Without an id it gets a fresh one."""
    return Message(
        topic=topic,
        key=_bytes(key),
        value=_bytes(value),
        headers=tuple(headers),
        id=new_id() if id is None else id,
        type=type,
        version=version,
        event_time_us=None if event_time is None else to_us(event_time),
        correlation_id=correlation_id,
        causation_id=causation_id,
    )


_HOLDERS = ", ".join("?" * len(COLUMNS))
_NAMES = ", ".join(COLUMNS)
_KINDS = {"payload": "bytea", "record_key": "bytea", "headers": "bytea", "version": "bigint", "event_time_us": "bigint"}
_ARRAYS = ", ".join(f"CAST(? AS {_KINDS.get(name, 'text')}[])" for name in COLUMNS)


def _waking(insert: str) -> str:
    """Wakes a relay that said that it waits. A busy one needs no NOTIFY, which would make commits take turns."""
    return f"WITH added AS ({insert}) SELECT pg_notify('{CHANNEL}', '') FROM settled_outbox_relay WHERE waiting LIMIT 1"


# The insert, in the dialect of `settled.stores.statements`. INSERT_MANY takes an array for each column.
INSERT = {
    "sqlite": f"INSERT INTO settled_outbox ({_NAMES}) VALUES ({_HOLDERS})",
    "postgresql": _waking(f"INSERT INTO settled_outbox ({_NAMES}) VALUES ({_HOLDERS})"),
}
INSERT_MANY = _waking(
    f"INSERT INTO settled_outbox ({_NAMES})"
    f" SELECT {_NAMES} FROM unnest({_ARRAYS}) WITH ORDINALITY AS r({_NAMES}, place) ORDER BY place"
)


def _as_text(key: bytes) -> str | None:
    """The key as text that every database can hold, or none."""
    if b"\0" in key:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _bytes(part: Any) -> bytes | None:
    if part is None or isinstance(part, bytes):
        return part
    if isinstance(part, str):
        return part.encode()
    return msgspec.json.encode(part)
