"""A position token: what it says, and its one form as text. No I/O; waiting for it is `settled.tokens`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import uuid

import msgspec

from settled.engine import Receipt
from settled.errors import ContractError
from settled.record import checked_name, checked_text

VERSION = 1
_PLACED, _UUID = 1, 2  # flags: it has a place; the event id is a UUID, kept in 16 bytes
_IDENTITY_BYTES, _SUM_BYTES = 6, 4


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says. `identity` is a short hash of the topic's incarnation; it, `partition` and `offset` are empty
    or none for a message that has no place in the log yet."""

    topic: str
    event_id: str
    identity: str = ""
    partition: int | None = None
    offset: int | None = None

    def encode(self) -> str:
        """The token as text: A-Z a-z 0-9 - _ only."""
        raw = _packed(self)
        return base64.urlsafe_b64encode(raw + checksum(raw)).rstrip(b"=").decode()


def token_of(receipt: Receipt, identity: str) -> str:
    """The token of an accepted message; `identity` is the incarnation of its topic (`TopicInfo.identity`). A receipt
    without a place gives the token of the event, as for an outbox."""
    if receipt.offset < 0:
        return token_of_event(receipt.topic, receipt.id)
    place = {"partition": receipt.partition, "offset": receipt.offset, "identity": short(identity)}
    return Token(topic=receipt.topic, event_id=receipt.id, **place).encode()  # type: ignore[arg-type]


def token_of_event(topic: str, event_id: str) -> str:
    """The token of a message that was put into an outbox: `event_id` is what the outbox gave back. It serves
    consumers that keep an inbox."""
    checked_name("topic", topic)
    checked_text("event_id", event_id)
    return Token(topic=topic, event_id=event_id).encode()


def read_token(text: str) -> Token:
    """What the token says. Raises ContractError for what is no token of this release's form."""
    try:
        return _unpacked(text)
    except (ValueError, IndexError, TypeError, ContractError):
        raise ContractError(
            "this is no token of settled, or it was changed on its way",
            field="token",
            value=text if isinstance(text, str) else type(text).__name__,
            hint="pass it on as it came from publish; treat a bad one in a request as a bad request",
        ) from None


# The form: version, flags, topic, [identity, partition, offset], event id, checksum.


def short(identity: str) -> str:
    """The incarnation as a token holds it."""
    return hashlib.blake2b(identity.encode(), digest_size=_IDENTITY_BYTES).hexdigest()


def checksum(raw: bytes) -> bytes:
    """What a token ends with, so that a changed one is known."""
    return hashlib.blake2b(raw, digest_size=_SUM_BYTES, person=b"settled token").digest()


def _packed(token: Token) -> bytes:
    compact = _uuid_bytes(token.event_id)
    placed = token.partition is not None
    topic = token.topic.encode()
    parts = [bytes((VERSION, placed * _PLACED | (compact is not None) * _UUID, len(topic))), topic]
    if token.partition is not None and token.offset is not None:
        parts += [bytes.fromhex(token.identity), _number(token.partition), _number(token.offset)]
    parts.append(token.event_id.encode() if compact is None else compact)
    return b"".join(parts)


def _unpacked(text: str) -> Token:
    whole = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    raw, found = whole[:-_SUM_BYTES], whole[-_SUM_BYTES:]
    if found != checksum(raw) or raw[0] != VERSION or raw[1] & ~(_PLACED | _UUID):
        raise ValueError("checksum or version")
    flags, end = raw[1], 3 + raw[2]
    topic, identity = checked_name("topic", raw[3:end].decode()), ""
    partition: int | None = None
    offset: int | None = None
    if flags & _PLACED:
        identity, end = raw[end : end + _IDENTITY_BYTES].hex(), end + _IDENTITY_BYTES
        partition, end = _read_number(raw, end, 2**31)
        offset, end = _read_number(raw, end, 2**63)
    rest = raw[end:]
    event_id = str(uuid.UUID(bytes=rest)) if flags & _UUID else rest.decode()
    checked_text("event_id", event_id)
    token = Token(topic=topic, event_id=event_id, identity=identity, partition=partition, offset=offset)
    if token.encode() != text:
        raise binascii.Error("not the one way to write it")
    return token


def _uuid_bytes(event_id: str) -> bytes | None:
    """The id in 16 bytes, if it is a UUID in its usual form."""
    if len(event_id) != 36:
        return None
    try:
        found = uuid.UUID(event_id)
    except ValueError:
        return None
    return found.bytes if str(found) == event_id else None


def _number(value: int) -> bytes:
    """Seven bits a byte, the low ones first; the high bit says that more follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_number(raw: bytes, start: int, most: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(start, start + 10):
        value |= (raw[place] & 0x7F) << shift
        shift += 7
        if raw[place] < 0x80 and value < most:
            return value, place + 1
    raise ValueError("no number of this size")
