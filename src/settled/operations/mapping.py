"""From a row of a file to a message: which column is id, key, version, time, type and header, and what is the value."""

from __future__ import annotations

import functools
import hashlib
import string
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any

import msgspec

from settled.errors import ContractError
from settled.operations.rows import Cell, Row
from settled.record import Headers, Message, to_us

ALL, REST = "all", "rest"
TEMPLATE_FIELDS = frozenset({"file", "line", "topic", "key", "version", "type"})


class Unfit(Exception):
    """The row is no message; the text says why."""


class Mapping(msgspec.Struct, frozen=True, kw_only=True):
    """Columns by what they are; none: the message has no such thing.

    id         a template, `{file}:{key}:{version}`; fields: file, line, topic, key, version, type, all columns
    id_column  a column instead; neither: file name, line number and a fingerprint of the line
    headers    (name, column) pairs, in their order
    scheduled  what every message asks of a queue, see `settled.scheduling`
    value      `all` columns as a JSON object, the `rest` that is not mapped, or one column as it is
    zone       what times without a zone mean; none: they are refused
    """

    topic: str
    file: str
    key: str | None = None
    version: str | None = None
    id: str | None = None
    id_column: str | None = None
    time: str | None = None
    zone: tzinfo | None = None
    type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    scheduled: Headers = ()
    value: str = ALL

    def __post_init__(self) -> None:
        if self.id is not None and self.id_column is not None:
            raise ContractError("both --id and --id-column are given", field="--id", hint="give one of them")
        if self.id is not None:
            _check_template(self.id)

    def message(self, row: Row) -> Message:
        """Raises Unfit."""
        key = None if self.key is None else _bytes(self._needed(row, self.key))
        version = None if self.version is None else _whole(self._needed(row, self.version), self.version)
        kind = self._text(row, self.type)
        return Message(
            topic=self.topic,
            key=key,
            value=self._value(row),
            headers=(*[(name, _bytes(self._cell(row, column))) for name, column in self.headers], *self.scheduled),
            id=self._id(row, key, version, kind),
            type=kind,
            version=version,
            event_time_us=self._time(row),
        )

    def mapped(self) -> frozenset[str]:
        """The columns that have a place of their own."""
        named = {self.key, self.version, self.id_column, self.time, self.type, *(column for _, column in self.headers)}
        return frozenset(name for name in named if name is not None)

    def _cell(self, row: Row, column: str) -> Cell:
        try:
            return row.cells[column]  # type: ignore[no-any-return]
        except KeyError:
            raise Unfit(f"column {column!r} is missing") from None

    def _needed(self, row: Row, column: str) -> Cell:
        cell = self._cell(row, column)
        if not cell or (not isinstance(cell, str) and bytes(cell) in (b"null", b'""')):
            raise Unfit(f"column {column!r} is empty")
        return cell

    def _text(self, row: Row, column: str | None) -> str | None:
        if column is None:
            return None
        raw = _bytes(self._cell(row, column))
        return raw.decode() if raw else None

    def _id(self, row: Row, key: bytes | None, version: int | None, kind: str | None) -> str:
        if self.id_column is not None:
            return (_bytes(self._needed(row, self.id_column)) or b"").decode()
        if self.id is None:
            content = row.raw or msgspec.json.encode(row.cells)
            return f"{self.file}:{row.line}:{hashlib.blake2b(content, digest_size=6).hexdigest()}"
        known: dict[str, Any] = {"file": self.file, "line": row.line, "topic": self.topic, "version": version}
        known |= {"key": None if key is None else key.decode(), "type": kind}
        parts = []
        for literal, name in _parsed(self.id):
            parts.append(literal)
            if name is not None:
                found = known[name] if known.get(name) is not None else self._text_needed(row, name)
                parts.append(str(found))
        return "".join(parts)

    def _text_needed(self, row: Row, name: str) -> str:
        return (_bytes(self._needed(row, name)) or b"").decode()

    def _time(self, row: Row) -> int | None:
        text = self._text(row, self.time)
        if text is None:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise Unfit(f"{self.time} {text!r} is not an ISO 8601 time") from None
        if moment.tzinfo is None:
            if self.zone is None:
                raise Unfit(f"{self.time} {text!r} has no zone; say what it means with --time-zone")
            moment = moment.replace(tzinfo=self.zone)
        return to_us(moment)

    def _value(self, row: Row) -> bytes | None:
        if self.value == ALL:
            return row.raw or msgspec.json.encode(row.cells)
        if self.value == REST:
            mapped = self.mapped()
            return msgspec.json.encode({name: cell for name, cell in row.cells.items() if name not in mapped})
        return _bytes(self._cell(row, self.value))


def header_pairs(stated: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """From `NAME=COLUMN`. Raises ContractError."""
    pairs = []
    for text in stated:
        name, equals, column = text.partition("=")
        if not (name and equals and column):
            raise ContractError(
                f"{text!r} is not NAME=COLUMN", field="--header", value=text, hint="--header source=src"
            )
        pairs.append((name, column))
    return tuple(pairs)


@functools.cache
def _parsed(template: str) -> tuple[tuple[str, str | None], ...]:
    return tuple(parts[:2] for parts in string.Formatter().parse(template))


def _check_template(template: str) -> None:
    try:
        fields = [parts[1:] for parts in string.Formatter().parse(template) if parts[1] is not None]
    except ValueError as error:
        raise ContractError(f"{template!r} is not a template: {error}", field="--id", hint=_TEMPLATE) from None
    if not fields:
        raise ContractError(f"{template!r} would give every message one id", field="--id", hint=_TEMPLATE)
    for name, form, conversion in fields:
        if not name or form or conversion:
            raise ContractError(f"{template!r}: a field is a plain name in braces", field="--id", hint=_TEMPLATE)


def _bytes(cell: Cell) -> bytes | None:
    """Text as UTF-8, null as none, anything else as its JSON."""
    if isinstance(cell, str):
        return cell.encode()
    raw = bytes(cell)
    if raw == b"null":
        return None
    if raw.startswith(b'"'):
        try:
            return _TEXT.decode(raw).encode()
        except (UnicodeEncodeError, msgspec.DecodeError) as error:
            raise Unfit(f"text that is not UTF-8: {error}") from None
    return raw


def _whole(cell: Cell, column: str) -> int:
    raw = _bytes(cell) or b""
    try:
        return int(raw.decode())
    except ValueError:
        raise Unfit(f"{column} {raw.decode()!r} is not a whole number") from None


_TEXT = msgspec.json.Decoder(str)
_TEMPLATE = "e.g. --id '{file}:{key}:{version}'; the fields are file, line, topic, key, version, type and all columns"
