"""A message on its way, where it goes, and why it may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec
from pika.spec import BasicProperties

from settled import scheduling
from settled.engine import Receipt
from settled.errors import ContractError, InvalidMessage, SettledError, TooLarge, Unsupported
from settled.partition import partition_of
from settled.record import Message

PASSED, SILENT = 32, 100  # looks at the same eldest message, while later ones are confirmed, and while none is


class Waiting(Protocol):
    """A producer, as its messages know it."""

    def wait(self, sent: Sent, timeout: float | None) -> bool: ...


class Route(msgspec.Struct, frozen=True):
    """Where messages of a topic go. `limit`: bytes of a message; `mandatory`: one that no queue takes has failed;
    `numbered`: for readers without a group, see `sessions`; `partitions`: of a log, the routing key of each."""

    exchange: str
    routing_key: str
    limit: int
    until: float  # monotonic
    mandatory: bool = True
    numbered: bool = False
    partitions: tuple[str, ...] = ()
    scheduled: bool = False  # a queue, which would have to obey what `settled.scheduling` asks


class Sent(msgspec.Struct, gc=False):
    """A message on its way."""

    _home: Waiting
    topic: str
    id: str
    route: Route
    properties: BasicProperties
    body: bytes
    size: int
    deadline: float
    to: str  # the routing key
    partition: int = 0
    ended: bool = False
    error: SettledError | None = None

    def done(self) -> bool:
        return self.ended

    def result(self, timeout: float | None = None) -> Receipt:
        """The offset is -1: neither a queue nor a stream tells the place of a message."""
        if not self.ended and not self._home.wait(self, timeout):
            raise TimeoutError(f"message {self.id!r} is not yet accepted after {timeout} s")
        if self.error is not None:
            raise self.error
        return Receipt(self.topic, self.partition, -1, self.id)


class Eldest:
    """The message that waits longest for its confirm on a channel. A stream whose leader went may never confirm what it
    was sent then; looks are counted and no seconds, so that a process that stood still suspects nobody."""

    def __init__(self) -> None:
        self.latest = 0  # the highest tag that was confirmed
        self._tag = self._seen = 0

    def is_stuck(self, tag: int) -> bool:
        """Whether it should go again on another channel. Asked four times a second; 0: there is none."""
        self._seen = self._seen + 1 if tag == self._tag else 0
        self._tag = tag
        return bool(tag) and self._seen > (PASSED if self.latest > tag else SILENT)


def placed(message: Message, route: Route, turn: Iterator[int]) -> tuple[int, str]:
    """The partition that the message goes to, and its routing key. Of a log, those without a key go to all in turn."""
    if not route.partitions:
        return 0, route.routing_key
    if message.key is None:
        partition = next(turn) % len(route.partitions)
    else:
        partition = partition_of(message.key, len(route.partitions))
    return partition, route.partitions[partition]


def refuse_scheduling(message: Message) -> None:
    asked = scheduling.asked(message.headers)
    if asked == scheduling.NOTHING:
        return
    name = next(name for name, _ in message.headers if name in scheduling.NAMES)
    raise InvalidMessage(
        f"message {message.id!r} asks for {name}: a queue on RabbitMQ obeys neither times, priorities nor tenants",
        field=name,
        hint="leave it out, or use the embedded queue",
    )


def too_large(message: Message, limit: int) -> TooLarge:
    return TooLarge(
        f"message {message.id!r} has {message.size} bytes, above topic {message.topic!r}'s limit of {limit}",
        field="value",
        hint="store large content elsewhere and publish a reference, or raise the topic's max_message_bytes",
    )


def unroutable(topic: str) -> ContractError:
    return ContractError(
        f"unroutable: no queue takes messages of topic {topic!r}, and this one is not stored",
        field="topic",
        value=topic,
        hint="make the queue, or of pub/sub a first subscription (a worker does), and send it again",
    )


def no_sequences() -> Unsupported:
    return Unsupported(
        "producers on RabbitMQ keep no sequences across restarts",
        field="identity",
        hint="publish again under the same event ids: the inbox refuses the second effect",
    )
