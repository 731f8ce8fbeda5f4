"""The producer: librdkafka gathers and sends the batches. Whoever waits for a receipt serves the delivery reports, and
so does a sender now and then; there is no thread of our own that would take the interpreter's lock from a busy sender.

Durability `memory` is acks=1, the leader alone; `local` and `committed` are acks=all with idempotence, so that retries
store nothing twice and keep the order. What the topic must have for that is checked before its first record.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from settled import at_exit, windows
from settled.engine import ProducerSpec, Receipt
from settled.engines.kafka.config import Settings
from settled.engines.kafka.faults import translate
from settled.engines.kafka.records import headers_of
from settled.errors import Refused, SettledError, TooLarge, Unavailable, Unsupported
from settled.partition import partition_of
from settled.record import Message, checked

if TYPE_CHECKING:
    from confluent_kafka import Message as KafkaMessage

DELIVERY_S = 60.0  # how long librdkafka tries to send a message, after its linger
SERVE_EVERY = 128  # messages between two looks at the delivery reports, by a sender
SLICE_S = 0.2  # the longest time in librdkafka without a look around
FRESH_S = 60.0  # how long a topic's facts are taken for true
LINGER_MOST_S = 900.0  # librdkafka's own bound
SMALL = 256  # bytes that a message is taken for, when the buffer's bound is turned into a number of messages


class Target(msgspec.Struct, frozen=True):
    """What a producer must know of a topic. `batch_most`: bytes of a batch that the brokers take."""

    name: str
    partitions: int
    limit: int
    batch_most: int


class Sent(msgspec.Struct, gc=False):
    """A message on its way. The client calls it with the delivery report."""

    _home: KafkaProducer
    _topic: str
    _partition: int
    _id: str
    _offset: int = -1
    _ended: bool = False
    _error: SettledError | None = None

    def __call__(self, error: KafkaError | None, message: KafkaMessage) -> None:
        windows.reach("append-committed")
        if error is None:
            offset = message.offset()
            if offset is not None and offset >= 0:  # a repeat that the brokers recognised comes without one
                self._offset = offset
        else:
            self._error = self._home.failed(error, self._topic)
        self._ended = True

    def done(self) -> bool:
        if not self._ended:
            self._home.serve(0.0)
        return self._ended

    def result(self, timeout: float | None = None) -> Receipt:
        """The offset is -1 when the brokers recognised a repeat of a batch whose first answer was lost."""
        if not self._ended and not self._home.wait(self, timeout):
            raise TimeoutError(f"message {self._id!r} is not yet accepted after {timeout} s")
        if self._error is not None:
            raise self._error
        return Receipt(self._topic, self._partition, self._offset, self._id)


class _Route:
    """A topic as one producer uses it."""

    __slots__ = ("client", "limit", "partitions", "spread", "until")

    def __init__(self, target: Target, client: Client) -> None:
        self.client, self.partitions, self.limit = client, target.partitions, target.limit
        self.spread = 0
        self.until = time.monotonic() + FRESH_S


class KafkaProducer:
    """Any thread may call it."""

    def __init__(
        self,
        spec: ProducerSpec,
        settings: Settings,
        target: Callable[[str], Target],
        closed: Callable[[KafkaProducer], None],
    ) -> None:
        """`target` finds a topic by name and refuses one that cannot keep the durability."""
        self.spec = spec
        self._settings, self._target, self._on_close = settings, target, closed
        self._routes: dict[str, _Route] = {}
        self._clients: dict[int, Client] = {}  # by the size of their batches
        self._lock = threading.Lock()
        self._turn = threading.Condition()
        self._leading = False  # some thread serves the reports
        self._failure: tuple[SettledError, int] | None = None
        self._since = 0  # messages since a sender last served
        self._ended = False
        self._fatal: KafkaError | None = None  # why a client sends nothing any more, e.g. a right that is missing
        at_exit.add(self)

    def send(self, message: Message, *, sequence: int | None = None) -> Sent:
        if sequence is not None:
            raise _no_sequences()
        checked(message)
        route = self._routes.get(message.topic) or self._route(message.topic)
        key = message.key
        if message.size > route.limit:
            raise _too_large(message, route.limit)
        if key is None:
            route.spread += 1
            partition = route.spread % route.partitions
        else:
            partition = partition_of(key, route.partitions)
        if self._ended:
            raise Refused("this producer is closed", hint="open another one")
        sent = Sent(self, message.topic, partition, message.id)
        headers = headers_of(message)
        while True:
            try:
                route.client.produce(message.topic, message.value, key, partition, on_delivery=sent, headers=headers)
                break
            except BufferError:  # full: send what is there, whatever its linger
                windows.reach("batch-closed")
                self._served(route.client.flush, SLICE_S)
            except KafkaException as error:
                raise translate(error, "publishing", settings=self._settings, topic=message.topic) from error
        self._since += 1
        if self._since >= SERVE_EVERY:
            self._since = 0
            self._tend(message.topic, route)
        return sent

    def flush(self, timeout: float | None = None) -> None:
        windows.reach("batch-closed")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        for client in list(self._clients.values()):
            while self._served(client.flush, max(0.0, min(SLICE_S, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"not all messages were accepted within {timeout} s")
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            error, count = failure
            raise type(error)(f"{count} messages are not confirmed: {error.message}", hint=error.hint) from error

    def resume_point(self) -> int | None:
        raise _no_sequences()

    def close(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        try:
            self.flush()
        finally:
            with self._turn:
                self._turn.notify_all()
            at_exit.remove(self)
            self._on_close(self)
            self._clients.clear()
            self._routes.clear()

    # What `Sent` calls.

    def wait(self, sent: Sent, timeout: float | None) -> bool:
        """Serve the reports, or let another waiting thread do so, until this message ended. False: not in time."""
        windows.reach("batch-closed")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not sent._ended:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._turn:
                if self._leading:
                    self._turn.wait(min(left, SLICE_S))
                    continue
                self._leading = True
            try:
                self.serve(min(left, SLICE_S))
            finally:
                with self._turn:
                    self._leading = False
                    self._turn.notify_all()
        return True

    def serve(self, seconds: float) -> None:
        """Take the delivery reports that are there, waiting so long for the first one."""
        clients = list(self._clients.values())
        for client in clients:
            self._served(client.poll, seconds / len(clients))

    def failed(self, error: KafkaError, topic: str) -> SettledError:
        """What a failed message's sender is told; `flush` tells it too. After a fatal error, that one."""
        error = self._fatal or error
        found = translate(error, "publishing", settings=self._settings, topic=topic, operation="Write")
        with self._lock:
            first, count = self._failure or (found, 0)
            self._failure = (first, count + 1)
        return found

    # Steps of `send`.

    def _route(self, topic: str) -> _Route:
        """The way to a topic that is used for the first time, or again after a while."""
        target = self._target(topic)
        with self._lock:
            size = min(self.spec.batch_bytes, target.batch_most)
            client = self._clients.get(size)
            if client is None:
                client = self._clients[size] = Client(self._settings.producer(**self._properties(size, target)))
            route = self._routes[topic] = _Route(target, client)
        return route

    def _served(self, serve: Callable[[float], int], seconds: float) -> int:
        """Poll or flush. A client that ended for good raises why in between, and fails its messages."""
        try:
            return serve(seconds)
        except KafkaException as error:
            self._fatal = error.args[0]
            return 1  # look again: the reports follow

    def _tend(self, topic: str, route: _Route) -> None:
        self._served(route.client.poll, 0)
        if time.monotonic() > route.until:
            try:
                self._route(topic)
            except Unavailable:
                route.until = time.monotonic() + FRESH_S

    def _properties(self, size: int, target: Target) -> dict[str, Any]:
        spec = self.spec
        linger_ms = min(spec.linger_s, LINGER_MOST_S) * 1000
        replicated = spec.durability != "memory"
        order: dict[str, Any] = {"enable_idempotence": True, "acks": "all"}
        if not replicated:
            order = {"acks": 1, "max_in_flight_requests_per_connection": 1}  # a retry would overtake
        return {
            **order,
            "linger_ms": linger_ms,
            "batch_size": max(1, size),
            "batch_num_messages": spec.batch_records,
            "message_max_bytes": max(1_000_000, target.batch_most),
            "compression_type": spec.compression,
            "queue_buffering_max_kbytes": -(-max(spec.buffer_bytes, 2 * target.batch_most) // 1024),
            "queue_buffering_max_messages": max(2 * spec.batch_records, spec.buffer_bytes // SMALL),
            "delivery_timeout_ms": round(linger_ms + DELIVERY_S * 1000),
            "client_id": spec.identity or "settled",
        }


def _too_large(message: Message, limit: int) -> TooLarge:
    return TooLarge(
        f"message {message.id!r} has {message.size} bytes, above topic {message.topic!r}'s limit of {limit}",
        field="value",
        hint="store large content elsewhere and publish a reference, or raise the topic's max_message_bytes",
    )


def _no_sequences() -> Unsupported:
    return Unsupported(
        "producers on Kafka keep no sequences across restarts",
        field="identity",
        hint="publish again under the same event ids: the inbox refuses the second effect",
    )
