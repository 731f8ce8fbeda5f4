"""Message: what a producer publishes. Record: what the log holds. Keys and values are bytes or none, headers an
ordered multimap whose values may be none; nothing here decodes, renames or drops any of it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from settled.errors import InvalidMessage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=None)  # `Record` alone means a record whose value stays bytes
else:
    from typing import TypeVar

    T = TypeVar("T")

Headers = tuple[tuple[str, bytes | None], ...]

MAX_ID_BYTES = 256
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a producer publishes.

    topic            where to; see `checked_name` for the rule
    key, value       bytes or none; b"" and none are different things
    headers          ordered (name, bytes or none) pairs; names may repeat
    id               event id, at most 256 bytes of UTF-8; it survives every retry, relay, redrive and replay
    type             event type, free text
    version          aggregate version, rising per key; a version not above the last one applied is stale
    event_time_us    when it happened, microseconds since 1970 in UTC
    correlation_id, causation_id   free text
    """

    topic: str
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    id: str
    type: str | None = None
    version: int | None = None
    event_time_us: int | None = None
    correlation_id: str | None = None
    causation_id: str | None = None

    @property
    def size(self) -> int:
        """Bytes of key, value, headers and id: what limits and batch bounds count."""
        total = len(self.key or b"") + len(self.value or b"") + len(self.id)
        for name, value in self.headers:
            total += len(name) + len(value or b"")
        return total


class Record(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """What the log holds: a message with its place.

    accepted_us      when the engine accepted it, by the engine's clock, microseconds since 1970 in UTC
    payload          the value decoded as the handler's annotation asks for (`Record[Order]`), else none
    The other fields are those of `Message`.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    id: str
    type: str | None = None
    version: int | None = None
    event_time_us: int | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    accepted_us: int = 0
    payload: T = None  # type: ignore[assignment]  # filled by `with_payload` when the annotation asks

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def event_time(self) -> datetime | None:
        return None if self.event_time_us is None else from_us(self.event_time_us)

    @property
    def accepted_at(self) -> datetime:
        return from_us(self.accepted_us)

    @property
    def size(self) -> int:
        """Expanded bytes: what the in-flight bound counts for this record."""
        total = RECORD_OVERHEAD + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            total += len(name) + len(value or b"") + 64
        return total

    def header(self, name: str) -> bytes | None:
        """The last value under `name`, or none."""
        for found, value in reversed(self.headers):
            if found == name:
                return value
        return None

    def with_payload(self, payload: Any) -> Record[Any]:
        return msgspec.structs.replace(self, payload=payload)


RECORD_OVERHEAD = 300  # bytes of Python objects around one record, measured with sys.getsizeof over its fields


def new_id() -> str:
    """A fresh event id: UUID version 7 (RFC 9562), so that ids made in order are stored in order."""
    if hasattr(uuid, "uuid7"):
        return str(uuid.uuid7())
    raw = uuid.uuid4().int
    milliseconds = (datetime.now(UTC) - _EPOCH) // timedelta(milliseconds=1)
    value = (milliseconds & (2**48 - 1)) << 80 | 0x7 << 76 | (raw >> 64 & 0xFFF) << 64
    value |= 0b10 << 62 | raw & (2**62 - 1)
    return str(uuid.UUID(int=value))


def to_us(moment: datetime) -> int:
    """Microseconds since 1970. A datetime without a zone is refused: whose local time it is cannot be known."""
    if moment.tzinfo is None:
        raise InvalidMessage(
            f"time {moment.isoformat()} has no zone",
            field="event_time",
            value=moment,
            hint="give an aware datetime, e.g. datetime.now(UTC)",
        )
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def checked_name(kind: str, name: str) -> str:
    """A topic or group name: 1 to 200 of A-Z a-z 0-9 . _ - and not `.` or `..` (Kafka's rule, shorter)."""
    if not _NAME.match(name) or name in {".", ".."}:
        shown = name if len(name) <= 60 else name[:60] + "…"
        raise InvalidMessage(
            f"{kind} name {shown!r} is not allowed",
            field=kind,
            value=name,
            hint="use 1 to 200 of the characters A-Z a-z 0-9 . _ - (and not '.' or '..' alone)",
        )
    return name


def checked_text(field: str, text: str | None, *, limit: int = MAX_ID_BYTES, empty: bool = False) -> str | None:
    """Text that every engine and store can hold: no NUL, no lone surrogate, at most `limit` bytes of UTF-8."""
    if text is None:
        return None
    fault = ""
    if not isinstance(text, str):
        fault = f"must be text, not {type(text).__name__}"
    elif not text and not empty:
        fault = "is empty"
    elif "\0" in text:
        fault = "holds a NUL character, which PostgreSQL cannot store"
    elif not text.isascii() and _SURROGATES.search(text):
        fault = "holds a lone surrogate, which is not valid UTF-8"
    elif len(text) > limit // 4 and len(text.encode()) > limit:
        fault = f"has {len(text.encode())} bytes, above the limit of {limit}"
    if fault:
        raise InvalidMessage(f"{field} {fault}", field=field, value=text, hint=f"change {field} at the producer")
    return text


def checked(message: Message) -> Message:
    """The message, or InvalidMessage naming the first field that no engine could keep."""
    checked_name("topic", message.topic)
    checked_text("id", message.id)
    for field in ("type", "correlation_id", "causation_id"):
        value = getattr(message, field)
        if value is not None:
            checked_text(field, value, empty=True)
    for field, part in (("key", message.key), ("value", message.value)):
        if part is not None and type(part) is not bytes:
            raise InvalidMessage(
                f"{field} must be bytes or none, not {type(part).__name__}", field=field, hint="encode it first"
            )
    for field, number in (("version", message.version), ("event_time_us", message.event_time_us)):
        if number is not None and (type(number) is not int or not -(2**63) <= number < 2**63):
            raise InvalidMessage(f"{field} must be an integer of 64 bits, not {number!r}", field=field, value=number)
    if message.headers:
        _check_headers(message.headers)
    return message


def _check_headers(headers: Iterable[tuple[str, bytes | None]]) -> None:
    for name, value in headers:
        checked_text("header name", name, limit=1024, empty=True)
        if value is not None and type(value) is not bytes:
            raise InvalidMessage(
                f"header {name!r} must be bytes or none, not {type(value).__name__}",
                field="headers",
                hint="encode it first",
            )
