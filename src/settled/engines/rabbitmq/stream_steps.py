"""What is asked of a stream, as steps: on a connection that waits (`streams`) and on one that never does (`looking`).

AMQP tells neither where a stream begins nor where it ends: both are seen from what a new consumer is handed. Once the
channel has heard of the stream (`_begin`) the broker hands out in the channel's own process, before it answers what
comes after, so that a question and its answer (a turn) show that nothing more was there. What it hands out are whole
chunks, as producers' messages were written together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from pika.spec import BasicProperties

from settled.engines.rabbitmq.records import stamped_us

AHEAD = 1_000  # messages asked for at a time
TURNS = 3  # without an answer until nothing is there
DOUBLINGS = 40
OFFSET = "x-stream-offset"  # a header of what comes, and the argument of a consumer
LATEST_S = 253_402_300_799  # the last second of the year 9999

T = TypeVar("T")
Place = int | str | datetime


class Entry(NamedTuple):
    """A message of a stream."""

    offset: int
    tag: int  # the delivery's
    properties: BasicProperties
    body: bytes


class Consume(NamedTuple):
    """Be handed messages from `place` on, told apart by `name`."""

    name: str
    place: Place
    ahead: int


class Acknowledge(NamedTuple):
    """All that came by this name and is not acknowledged."""

    name: str


class Turn(NamedTuple):
    """Wait for the answer to a question: what the broker had to hand out before has come."""


Step = Consume | Acknowledge | Turn
Steps = Generator[Step, None, T]


class Came:
    """What came, by the consumer's name."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Entry]] = defaultdict(list)
        self.unacknowledged: dict[str, list[int]] = defaultdict(list)

    def add(self, name: str, offset: int, tag: int, properties: BasicProperties, body: bytes) -> None:
        self.entries[name].append(Entry(offset, tag, properties, body))
        self.unacknowledged[name].append(tag)


def bounds(came: Came) -> Steps[tuple[int, int]]:
    """The first offset that is held, and the one behind the last; 0, 0 of an empty stream."""
    yield Consume("first", "first", 1)
    yield from _begin(came, Consume("last", "last", AHEAD))
    first = came.entries["first"]
    if not first:
        return 0, 0
    name = "last"
    if not came.entries[name]:  # the newest file holds nothing but the broker's own notes
        name = yield from _near_the_end(came)
    yield from _to_the_end(came, name)
    return first[0].offset, came.entries[name][-1].offset + 1


def entries(came: Came, place: Place, count: int) -> Steps[list[Entry]]:
    """Up to so many messages from `place` on."""
    found = came.entries["read"]
    yield from _begin(came, Consume("read", place, min(count, AHEAD)))
    known = 0
    while known < len(found) < count:
        known = len(found)
        yield Acknowledge("read")
        yield Turn()
    return found[:count]


def first_since(came: Came, us: int) -> Steps[int | None]:
    """The offset of the first message that was accepted at or after `us`; none: there is none. Chunks carry the
    broker's time, asked in whole seconds, messages their producer's: both must be reached."""
    found = came.entries["since"]
    moment = datetime.fromtimestamp(min(max(us // 1_000_000, 0), LATEST_S), UTC)
    yield from _begin(came, Consume("since", moment, AHEAD))
    while found:
        for entry in found:
            stamp = stamped_us(entry.properties)
            if stamp >= us or not stamp:
                return entry.offset
        found.clear()
        yield Acknowledge("since")
        yield Turn()
    return None


def _begin(came: Came, asked: Consume) -> Steps[None]:
    """Be handed what is there. The stream's process tells the channel of it as soon as it hears of the consumer; that
    it answered for another one after it shows that it has told, however late it is."""
    yield asked
    yield Consume(f"behind {asked.name}", "next", 1)
    for _ in range(TURNS):
        yield Turn()
        if came.entries[asked.name]:
            return


def _near_the_end(came: Came) -> Steps[str]:
    """Begin a second ago, two, four: until something comes. The name of the consumer that it came by."""
    now = datetime.now(UTC).timestamp()
    for doubling in range(DOUBLINGS):
        name = f"back-{doubling}"
        yield from _begin(came, Consume(name, datetime.fromtimestamp(max(0, int(now - 2**doubling)), UTC), AHEAD))
        if came.entries[name]:
            return name
    return "first"


def _to_the_end(came: Came, name: str) -> Steps[None]:
    """What was there at the beginning is passed when fewer come than were asked for."""
    found = came.entries[name]
    while True:
        known = len(found)
        yield Acknowledge(name)
        yield Turn()
        if len(found) - known < AHEAD:
            return
        del found[: known - 1]
