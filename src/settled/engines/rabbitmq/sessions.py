"""Numbers for what a broker does not number: a producer counts the messages of each topic, a reader notes how far it
heard each producer. No I/O, no threads.

settled-session   the producer's name for itself, new for each that is opened
settled-number    of the message in its topic, from 1; the same when it is sent again
settled-age       milliseconds since the session gave its number 1 there

Numbers tell what is missing below a number that is heard. They tell nothing of a session that is never heard again, so
what a reader counts is certain and not always all.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from settled import clock, tail_form
from settled.errors import HistoryLost

SESSION, NUMBER, AGE = "settled-session", "settled-number", "settled-age"
MOST = 500  # sessions that a reader remembers, those heard last
_FORM = 2
_Fields = tuple[int, str, str, int, dict[str, int]]


class Numbers:
    """Of one producer. Whoever calls it holds the lock under which messages are put in order."""

    def __init__(self) -> None:
        self._session = secrets.token_hex(8)
        self._topics: dict[str, tuple[int, float]] = {}  # the last number, and when the first was given

    def stamp(self, topic: str, table: dict[str, Any], now: float) -> None:
        number, began = self._topics.get(topic, (0, now))
        self._topics[topic] = number + 1, began
        table[SESSION], table[NUMBER], table[AGE] = self._session, number + 1, int((now - began) * 1000)


class Said(msgspec.Struct, frozen=True, gc=False):
    """What a message says of its place. `began_us`: when its session did, by the reader's own clock, or before: how
    long the message was on its way is not known."""

    session: str
    number: int
    began_us: int


def said(table: Mapping[str, Any] | None, now_us: int) -> Said | None:
    """None for a message that has no such place."""
    session, number, age = (table or {}).get(SESSION), (table or {}).get(NUMBER), (table or {}).get(AGE)
    if not isinstance(session, str) or not 0 < len(session) <= 64 or type(number) is not int or type(age) is not int:
        return None
    return Said(session, number, now_us - age * 1000) if number > 0 and age >= 0 else None


class Sessions:
    """How far a reader heard each session: the number that comes next.

    since_us   what is known is all that was heard from then on, by the reader's clock
    whole      and nothing passed unheard since
    """

    def __init__(self, since_us: int, reached: Mapping[str, int] | None = None, *, whole: bool = True) -> None:
        self.since_us, self.whole = since_us, whole
        self.reached = dict(reached or {})

    def passed(self, one: Said) -> int | None:
        """How many of its session passed unheard before it; none: it, or a later one, was heard before."""
        known = self.reached.get(one.session)
        if known is not None:
            return one.number - known if one.number >= known else None
        if self.whole or one.began_us < self.since_us:
            return 0  # numbers below it may be of the time before
        return one.number - 1

    def move(self, session: str, following: int, now_us: int) -> None:
        """It was heard up to before `following`. Of too many sessions the one heard longest ago is forgotten."""
        self.reached.pop(session, None)
        self.reached[session] = following
        if len(self.reached) > MOST:
            del self.reached[next(iter(self.reached))]
            self.since_us = now_us

    def written(self, topic: str, identity: str) -> str:
        """As a tail's position, see `tail_form`."""
        return tail_form.packed((_FORM, topic, identity, self.since_us, self.reached))


def read(text: str, topic: str, identity: str) -> Sessions:
    """A position, for a reader that was away since. Raises ContractError for what is no position of this topic,
    HistoryLost for one of a broker's other part."""
    fields: _Fields = tail_form.unpacked(text, _Fields)
    form, name, incarnation, since, reached = fields
    if form != _FORM or any(number < 1 for number in reached.values()) or len(reached) > MOST:
        raise tail_form.no_position("this is no position that this release can read", text)
    if name != topic:
        raise tail_form.no_position(f"the position is of topic {name!r}, not {topic!r}", text)
    if incarnation != identity:
        raise HistoryLost(
            f"the position is of topic {topic!r} elsewhere: what passed since cannot be counted",
            hint="begin without a position",
        )
    return Sessions(since, reached, whole=False)


def steady() -> Callable[[], int]:
    """A clock that shows the time of day in microseconds, and is not set while the reader lives."""
    ahead = clock.wall_us() - clock.boot_us()
    return lambda: clock.boot_us() + ahead
