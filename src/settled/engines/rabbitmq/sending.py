"""A message on its way, where it goes, and why it may not."""

from __future__ import annotations

from typing import Protocol

import msgspec
from pika.spec import BasicProperties

from settled import scheduling
from settled.engine import Receipt
from settled.errors import ContractError, InvalidMessage, SettledError, TooLarge, Unsupported
from settled.record import Message


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
