"""Position tokens: what a writer hands to a reader so that it reads what was written.

    receipt = app.publish(key="post-7", value=comment)          redirect to /posts/7?seen=<receipt.token>
    found = app.wait(token, timeout=1.0)                        Visible(...) or NotYet(...)
    page = app.read_your_writes(token, projection=read_page, fallback=read_posts, timeout=1.0)

A token names one record: topic, its incarnation, partition, offset and event id; or, before a relay has given it a
place, topic and event id alone. It is no secret and grants nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
import uuid
from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec

from settled import connect
from settled.engine import Receipt
from settled.errors import ContractError
from settled.outcome import Outcome
from settled.record import checked_name, checked_text
from settled.store import Asked, Seen, Store

T = TypeVar("T")

VERSION = 1
_PLACED, _UUID = 1, 2  # flags: it has a place; the event id is a UUID, kept in 16 bytes
_IDENTITY_BYTES, _SUM_BYTES = 6, 4
_EFFECT = frozenset({Outcome.APPLIED, Outcome.STALE})  # stale: a newer state than this record's is there


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
        return base64.urlsafe_b64encode(raw + _checksum(raw)).rstrip(b"=").decode()


class Visible(msgspec.Struct, frozen=True, kw_only=True):
    """The record has ended, and its ending is committed in the store that was asked.

    outcome          how; DUPLICATE: an earlier record of its event id ended. None: no longer known, the frontier is
                     past it and its mark was pruned (or the consumer keeps no marks)
    effect           a read of the store shows the record's effect, or a newer one; false for what was quarantined or
                     discarded
    """

    outcome: Outcome | None
    effect: bool
    waited_s: float


class NotYet(msgspec.Struct, frozen=True, kw_only=True):
    """The bound came first: nothing is known of the record's ending.

    behind           how many offsets the consumer's frontier is short of it, where that is known
    why              what it waits for, in words
    """

    effect: ClassVar[bool] = False
    behind: int | None
    why: str
    waited_s: float


def token_of(receipt: Receipt, identity: str) -> str:
    """The token of an accepted message; `identity` is the incarnation of its topic (`TopicInfo.identity`)."""
    place = {"partition": receipt.partition, "offset": receipt.offset, "identity": _short(identity)}
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


def wait(token: str, *, consumer: str, store: Store | str, timeout: float) -> Visible | NotYet:
    """Wait until the record's ending at `consumer` is committed in `store`, at most `timeout` seconds.

    Any thread; the bound is a value and no exception, and an outage of the store counts against it. `store` is an open
    store, or a URL that is opened for this one call. Raises ContractError for a garbled token, one of another topic or
    of another incarnation of it, and for a consumer that has never begun in this store.
    """
    if isinstance(store, str):
        opened = connect.store(store)
        try:
            return wait_for(read_token(token), consumer, opened, timeout)
        finally:
            opened.close()
    return wait_for(read_token(token), consumer, store, timeout)


def wait_for(token: Token, consumer: str, store: Store, timeout: float, *, begun: bool = True) -> Visible | NotYet:
    """`wait` for a token that was read already. `begun=False`: a consumer that has never begun is waited for."""
    asked = Asked(
        consumer=consumer,
        topic=token.topic,
        event_id=token.event_id,
        partition=token.partition,
        offset=token.offset,
    )
    started = time.monotonic()
    seen = store.watch(asked, 0.0)
    _check(token, consumer, store, seen, begun=begun)
    if not seen.ended(asked) and timeout > 0:
        seen = store.watch(asked, max(0.0, started + timeout - time.monotonic()))
        _check(token, consumer, store, seen, begun=False)
    waited = time.monotonic() - started
    if seen.ended(asked):
        outcome, effect = _ending(token, seen)
        return Visible(outcome=outcome, effect=effect, waited_s=waited)
    behind, why = _lag(token, seen, consumer)
    return NotYet(behind=behind, why=why, waited_s=waited)


def read_your_writes(
    token: str | None,
    *,
    consumer: str,
    store: Store | str,
    projection: Callable[[], T],
    fallback: Callable[[], T],
    timeout: float,
) -> T:
    """What `projection` reads, once it shows the record's effect; what `fallback` reads from the write model if it does
    not within `timeout` seconds, or never will (quarantined, discarded). Without a token: the projection, at once."""
    if not token:
        return projection()
    return projection() if wait(token, consumer=consumer, store=store, timeout=timeout).effect else fallback()


# What was seen, in words.


def _check(token: Token, consumer: str, store: Store, seen: Seen, *, begun: bool) -> None:
    """Refuse a token that can never be answered here."""
    if seen.identity is not None:
        if _short(seen.identity) != token.identity:
            raise ContractError(
                f"the token is of another incarnation of topic {token.topic!r} than {consumer!r} consumes in this"
                " store",
                field="token",
                hint="the topic was made anew, or the store belongs to another log; drop the token and read on",
            )
        return
    if seen.why or (seen.outcome is not None and token.partition is None):
        return
    topics = {position.topic for _, position in store.positions(consumer)}
    if topics and token.topic not in topics:
        raise ContractError(
            f"the token is of topic {token.topic!r}; {consumer!r} consumes {', '.join(sorted(topics))} in this store",
            field="token",
            hint="wait for the consumer that makes the effect which you read",
        )
    if not topics and begun:
        raise ContractError(
            f"no consumer {consumer!r} has begun in this store",
            field="consumer",
            value=consumer,
            hint="check the consumer's name and the store; a consumer begins when its worker first starts",
        )


def _ending(token: Token, seen: Seen) -> tuple[Outcome | None, bool]:
    if seen.outcome is None:  # the frontier is past it
        return (Outcome.QUARANTINED, False) if seen.quarantined else (None, True)
    outcome = seen.outcome if seen.own or token.partition is None else Outcome.DUPLICATE
    return outcome, seen.outcome in _EFFECT


def _lag(token: Token, seen: Seen, consumer: str) -> tuple[int | None, str]:
    if seen.why:
        return None, f"the store cannot be asked: {seen.why}"
    if token.offset is None:
        return None, f"{consumer} has not settled the event; it may not be published yet"
    place = f"{token.topic}/{token.partition}"
    if seen.frontier is None:
        return None, f"{consumer} has not begun on {place}"
    behind = token.offset - seen.frontier
    return behind, f"{consumer} stands at {seen.frontier} in {place}; the record is at {token.offset}"


# The form: version, flags, topic, [identity, partition, offset], event id, checksum.


def _short(identity: str) -> str:
    return hashlib.blake2b(identity.encode(), digest_size=_IDENTITY_BYTES).hexdigest()


def _checksum(raw: bytes) -> bytes:
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
    raw, checksum = whole[:-_SUM_BYTES], whole[-_SUM_BYTES:]
    if checksum != _checksum(raw) or raw[0] != VERSION or raw[1] & ~(_PLACED | _UUID):
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
