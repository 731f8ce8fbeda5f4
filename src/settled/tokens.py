"""Position tokens: what a writer hands to a reader so that it reads what was written.

    receipt = app.publish(key="post-7", value=comment)          redirect to /posts/7?seen=<receipt.token>
    found = app.wait(token, timeout=1.0)                        Visible(...) or NotYet(...)
    page = app.read_your_writes(token, projection=read_page, fallback=read_posts, timeout=1.0)

A token names one record: topic, its incarnation, partition, offset and event id; or, before a relay has given it a
place, topic and event id alone. It is no secret and grants nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec

from settled import connect
from settled.errors import ContractError
from settled.outcome import Outcome
from settled.store import Asked, Seen, Store
from settled.token_form import Token, read_token, short, token_of, token_of_event

__all__ = [
    "NotYet",
    "Token",
    "Visible",
    "read_token",
    "read_your_writes",
    "token_of",
    "token_of_event",
    "wait",
    "wait_for",
]

T = TypeVar("T")

_EFFECT = frozenset({Outcome.APPLIED, Outcome.STALE})  # stale: a newer state than this record's is there


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
        if short(seen.identity) != token.identity:
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
