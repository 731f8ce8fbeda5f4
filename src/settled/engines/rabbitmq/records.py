"""Between settled's messages and AMQP's.

The event id is the property `message_id`. What AMQP has no field for travels in headers; settled's own begin with
`settled`, what CloudEvents names with `cloudEvents_`, none with `x-`, which is the broker's.

settled           1: the message is settled's, read as written here
settled-key       the key, bytes; absent: none
settled-null      present: the value is none
settled-headers   the user's headers, an array name, value, name, value, ...: in order, names may repeat, values may be
                  none. An AMQP table keeps neither order nor repeats. Of a log the array is packed (MessagePack) into
                  bytes: a stream drops arrays. `traceparent`, `tracestate` and `content-type`
                  stand where other clients look for them too
settled-at        of a log: when it was published, by the producer's clock, in microseconds since 1970
cloudEvents_id    an id of 256 bytes, one more than `message_id` takes

A message without the header `settled` is foreign: its headers are all kept, as bytes, but those that begin with `x-`.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from pika.spec import BasicProperties

from settled.errors import InvalidMessage
from settled.record import MAX_ID_BYTES, RECORD_OVERHEAD, Headers, Message, Record, checked_text, from_us, to_us

MARK, KEY, NULL, HEADERS, AT = "settled", "settled-key", "settled-null", "settled-headers", "settled-at"
ID, TYPE, TIME, SOURCE, SPECVERSION = (
    "cloudEvents_id",
    "cloudEvents_type",
    "cloudEvents_time",
    "cloudEvents_source",
    "cloudEvents_specversion",
)
CORRELATION, CAUSATION = "cloudEvents_correlationid", "cloudEvents_causationid"
VERSION = "cloudEvents_settledversion"  # the version of the key's aggregate, a decimal number
TIME_US = "cloudEvents_settledtimeus"  # an event time outside the years 1 to 9999, in microseconds since 1970
STAMP_MS = "timestamp_in_ms"  # the broker's clock, where it is told to stamp messages
DELIVERIES = "x-delivery-count"

SHORT = 255  # bytes of an AMQP short string
SIDE_BY_SIDE = ("traceparent", "tracestate")
_PREFIXES = ("cloudEvents_", "cloudEvents:", "ce-")
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999


def properties_of(message: Message, at_us: int | None = None) -> BasicProperties:
    """The properties of a message on its way to RabbitMQ, which keeps it on disk."""
    table: dict[str, Any] = {MARK: 1}
    if at_us is not None:
        table[AT] = at_us
    if message.key is not None:
        table[KEY] = message.key
    if message.value is None:
        table[NULL] = True
    content_type = None
    if message.headers:
        content_type = _put_headers(table, message.headers, packed=at_us is not None)
    if message.type is not None:
        table[TYPE], table[SPECVERSION], table[SOURCE] = message.type, "1.0", f"/{message.topic}"
    if message.version is not None:
        table[VERSION] = str(message.version)
    if message.event_time_us is not None:
        name, text = _time(message.event_time_us)
        table[name] = text
    if message.correlation_id is not None:
        table[CORRELATION] = message.correlation_id
    if message.causation_id is not None:
        table[CAUSATION] = message.causation_id
    ident: str | None = message.id
    if len(message.id) > SHORT // 4 and len(message.id.encode()) > SHORT:
        table[ID], ident = message.id, None
    return BasicProperties(content_type=content_type, headers=table, delivery_mode=2, message_id=ident)


def record_of(topic: str, partition: int, offset: int, properties: BasicProperties, body: bytes) -> tuple[Record, int]:
    """The record that a delivered message is, under its claim's number, and its `Record.size`."""
    table: dict[str, Any] = properties.headers or {}
    accepted = stamped_us(properties)
    if table.get(MARK) != 1:
        record = _foreign(topic, partition, offset, properties, body, accepted)
        return record, record.size
    key = _bytes(table.get(KEY))
    value = None if NULL in table else body
    headers = _headers(table.get(HEADERS))
    ident = properties.message_id or _text(table.get(ID), empty=False) or _digest(topic, properties, body)
    record = Record(
        topic,
        partition,
        offset,
        key,
        value,
        headers,
        ident,
        _text(table.get(TYPE)),
        _number(table.get(VERSION)),
        _moment(table),
        _text(table.get(CORRELATION)),
        _text(table.get(CAUSATION)),
        accepted,
    )
    if headers:
        return record, record.size
    return record, RECORD_OVERHEAD + len(body) + (len(key) if key else 0)


def stamped_us(properties: BasicProperties) -> int:
    """When it was accepted: by the broker's clock where it stamps messages, else by the producer's; 0: nobody says."""
    table = properties.headers or {}
    stamp, at = table.get(STAMP_MS), table.get(AT)
    if type(stamp) is int:
        return stamp * 1000
    return at if isinstance(at, int) and table.get(MARK) == 1 else 0


def deliveries_before(properties: BasicProperties, redelivered: bool) -> int:
    """How often the message was handed out before without an end, as the broker counted."""
    count = (properties.headers or {}).get(DELIVERIES)
    if type(count) is int and count > 0:
        return count
    return 1 if redelivered else 0


def _put_headers(table: dict[str, Any], headers: Headers, *, packed: bool) -> str | None:
    pairs: list[Any] = []
    content_type = None
    for name, value in headers:
        pairs += (name.encode(), value)
        if value is not None and len(value) <= SHORT:
            if name in SIDE_BY_SIDE:
                table[name] = value.decode("utf-8", "replace")
            elif name == "content-type" and value.isascii():
                content_type = value.decode()
    table[HEADERS] = msgspec.msgpack.encode(pairs) if packed else pairs
    return content_type


def _headers(pairs: Any) -> Headers:
    if isinstance(pairs, bytes):
        try:
            pairs = msgspec.msgpack.decode(pairs)
        except msgspec.DecodeError:
            return ()
    if not isinstance(pairs, list) or len(pairs) % 2:
        return ()
    found = []
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        found.append(((_bytes(name) or b"").decode("utf-8", "replace"), _bytes(value)))
    return tuple(found)


def _foreign(
    topic: str, partition: int, offset: int, properties: BasicProperties, body: bytes, accepted: int
) -> Record:
    table: dict[str, Any] = properties.headers or {}
    said: dict[str, Any] = {}
    for name, value in table.items():
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                said["cloudEvents_" + name.removeprefix(prefix)] = value
    kept = {name: value for name, value in table.items() if not name.startswith("x-")}
    event_time = _moment(said)
    if event_time is None and isinstance(properties.timestamp, int):
        event_time = properties.timestamp * 1_000_000
    return Record(
        topic,
        partition,
        offset,
        _bytes(said.get("cloudEvents_partitionkey")),
        body,
        tuple((name, _bytes(value)) for name, value in kept.items() if _text(name, limit=1024) is not None),
        _text(properties.message_id, empty=False)
        or _text(said.get(ID), empty=False)
        or _digest(topic, properties, body),
        _text(properties.type) or _text(said.get(TYPE)),
        _number(said.get(VERSION)),
        event_time if event_time is None or -(2**63) <= event_time < 2**63 else None,
        _text(properties.correlation_id) or _text(said.get(CORRELATION)),
        _text(said.get(CAUSATION)),
        accepted,
    )


def _digest(topic: str, properties: BasicProperties, body: bytes) -> str:
    """The id of a message without one: a digest of all that stays the same when it is delivered again."""
    stable = {
        name: value
        for name, value in vars(properties).items()
        if value is not None and name not in ("headers", "delivery_mode")
    }
    stable["headers"] = {name: value for name, value in (properties.headers or {}).items() if not name.startswith("x-")}
    text = json.dumps([topic, stable], sort_keys=True, default=repr).encode()
    return f"{topic}/{hashlib.blake2b(text + b'|' + body, digest_size=16).hexdigest()}"


def _bytes(value: Any) -> bytes | None:
    """A value of an AMQP table as bytes: texts in UTF-8, numbers and times as people write them, lists as JSON."""
    match value:
        case None:
            return None
        case bytes():
            return value
        case str():
            return value.encode("utf-8", "surrogateescape")
        case bool():
            return b"true" if value else b"false"
        case datetime():
            return value.replace(tzinfo=value.tzinfo or UTC).isoformat().encode()
        case list() | dict():
            return json.dumps(value, default=lambda inner: (_bytes(inner) or b"").decode("utf-8", "replace")).encode()
    return str(value).encode()


def _text(value: Any, *, empty: bool = True, limit: int = MAX_ID_BYTES) -> str | None:
    """A text that every store could keep, none for anything else."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if not isinstance(value, str):
        return None
    try:
        return checked_text("header", value, empty=empty, limit=limit)
    except InvalidMessage:
        return None


def _number(value: Any) -> int | None:
    """A number of 64 bits, none for anything else."""
    text = value if isinstance(value, str) else ""
    if not text or len(text) > 20 or not text.removeprefix("-").isdigit() or not text.isascii():
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _time(us: int) -> tuple[str, str]:
    if _FIRST_US <= us <= _LAST_US:
        return TIME, from_us(us).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return TIME_US, str(us)


def _moment(said: dict[str, Any]) -> int | None:
    stated = said.get(TIME)
    if stated is None:
        return _number(said.get(TIME_US))
    try:
        return to_us(datetime.fromisoformat(stated))
    except (TypeError, ValueError, OverflowError, InvalidMessage):
        return None
