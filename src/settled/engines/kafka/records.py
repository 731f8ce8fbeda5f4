"""Between settled's messages and Kafka's. What Kafka has no field for travels in headers with the names of CloudEvents'
Kafka binding (`ce_id`, `ce_type`, ...), in a block of settled's own before the user's headers. The first header,
`settled`, says how many headers after it belong to the block; the rest are the user's, byte for byte, whatever their
names. A record without that header is foreign: its headers are all kept, and what CloudEvents names among them say is
taken over.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from settled.errors import InvalidMessage
from settled.record import MAX_ID_BYTES, RECORD_OVERHEAD, Headers, Message, Record, checked_text, from_us, to_us

Pair = tuple[str, "str | bytes | None"]

MARK = "settled"
ID, TYPE, TIME, SOURCE, SPECVERSION = "ce_id", "ce_type", "ce_time", "ce_source", "ce_specversion"
CORRELATION, CAUSATION = "ce_correlationid", "ce_causationid"
VERSION = "ce_settledversion"  # the version of the key's aggregate, a decimal number
TIME_US = "ce_settledtimeus"  # an event time outside the years 1 to 9999, in microseconds since 1970

_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999
_ONLY_ID, _ID_AND_TYPE = (MARK, b"1"), (MARK, b"4")


def headers_of(message: Message) -> list[Pair]:
    """The headers of a message on its way to Kafka: settled's block, then the user's.

    With a type the block makes the record a CloudEvent (its source is `/` and the topic); without one, which
    CloudEvents requires, only the id and what else is set are written.
    """
    if (
        message.type is None
        and message.version is None
        and message.event_time_us is None
        and message.correlation_id is None
        and message.causation_id is None
    ):
        return [_ONLY_ID, (ID, message.id), *message.headers]
    block: list[Pair] = [(ID, message.id)]
    if message.type is not None:
        block += ((TYPE, message.type), (SPECVERSION, b"1.0"), (SOURCE, f"/{message.topic}"))
    if message.version is not None:
        block.append((VERSION, str(message.version)))
    if message.event_time_us is not None:
        block.append(_time(message.event_time_us))
    if message.correlation_id is not None:
        block.append((CORRELATION, message.correlation_id))
    if message.causation_id is not None:
        block.append((CAUSATION, message.causation_id))
    return [(MARK, str(len(block))), *block, *message.headers]


def records_of(messages: list[Any], topic: str, partition: int) -> tuple[list[Record], list[int]]:
    """The records that messages of confluent_kafka are, all of one partition, and each one's `Record.size`.

    Every record goes through this loop: it does the usual ones, of which only an id, or an id and a type, are said, in
    place.
    """
    records: list[Record] = []
    sizes: list[int] = []
    types: dict[bytes | None, str | None] = {}
    event = [(SPECVERSION, b"1.0"), (SOURCE, f"/{topic}".encode())]
    for message in messages:
        headers: list[Any] = message.headers() or []
        count, name, raw, type_ = len(headers), "", b"", None
        if count == 2 and headers[0] == _ONLY_ID:
            name, raw = headers[1]
        elif count == 5 and headers[0] == _ID_AND_TYPE and headers[2][0] == TYPE and headers[3:] == event:
            name, raw = headers[1]
            said = headers[2][1]
            if said not in types:
                types[said] = _text(said)
            type_ = types[said]
        if raw and name == ID and len(raw) <= MAX_ID_BYTES and raw.isascii() and b"\0" not in raw:
            kind, stamp = message.timestamp()
            key, value, size = message.key(), message.value(), RECORD_OVERHEAD
            if key is not None:
                size += len(key)
            if value is not None:
                size += len(value)
            ident, accepted, offset = raw.decode(), stamp * 1000 if kind else 0, message.offset()
            record = Record(topic, partition, offset, key, value, (), ident, type_, None, None, None, None, accepted)
        else:
            record = record_of(message, topic, partition)
            size = record.size
        records.append(record)
        sizes.append(size)
    return records, sizes


def record_of(message: Any, topic: str, partition: int) -> Record:
    """The record that a message of confluent_kafka is."""
    offset, key, value, stamp = message.offset(), message.key(), message.value(), message.timestamp()
    headers, said = _split(message.headers() or [])
    return Record(
        topic,
        partition,
        offset,
        key,
        value,
        headers,
        _text(said.get(ID), empty=False) or f"{topic}/{partition}/{offset}",
        _text(said.get(TYPE)),
        _number(said.get(VERSION)),
        _moment(said),
        _text(said.get(CORRELATION)),
        _text(said.get(CAUSATION)),
        stamp[1] * 1000 if stamp[0] else 0,
    )


def _time(us: int) -> tuple[str, str]:
    if _FIRST_US <= us <= _LAST_US:
        return TIME, from_us(us).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return TIME_US, str(us)


def _split(found: list[tuple[str, bytes | None]]) -> tuple[Headers, dict[str, bytes | None]]:
    """The user's headers, and what settled's block (or, in a foreign record, CloudEvents' names) say."""
    if found and found[0][0] == MARK:
        count = _number(found[0][1])
        if count is not None and 0 < count < len(found) and found[1][0] == ID:
            return tuple(found[count + 1 :]), dict(found[1 : count + 1])
    return tuple(found), {name: value for name, value in found if name.startswith("ce_")}


def _text(value: bytes | None, *, empty: bool = True) -> str | None:
    """A foreign producer's text, none if no store could keep it."""
    if value is None or len(value) > MAX_ID_BYTES:
        return None
    try:
        return checked_text("header", value.decode(), empty=empty)
    except (UnicodeDecodeError, InvalidMessage):
        return None


def _number(value: bytes | None) -> int | None:
    """A number of 64 bits, none for anything else."""
    if value is None or len(value) > 20 or not value.removeprefix(b"-").isdigit():
        return None
    number = int(value)
    return number if -(2**63) <= number < 2**63 else None


def _moment(said: dict[str, bytes | None]) -> int | None:
    stated = said.get(TIME)
    if stated is None:
        return _number(said.get(TIME_US))
    try:
        moment = datetime.fromisoformat(stated.decode())
        return to_us(moment)
    except (ValueError, OverflowError, InvalidMessage):
        return None
