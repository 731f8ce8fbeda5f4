"""The producer: messages wait in an outbox, the connection's thread publishes them with `mandatory` and takes the
broker's confirms. A message has ended when the broker confirmed it, or returned it since no queue takes it.

After a lost connection what has no confirm is published again, in order, under the same ids; so is what the broker
could not store, as while a quorum chooses its leader, until the message's time is over. A refusal that closes the
channel does not say which message it is about: from then on messages go one by one until the guilty one is found.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from settled import at_exit, clock, windows
from settled.engine import ProducerSpec
from settled.engines.rabbitmq import faults
from settled.engines.rabbitmq.connection import Link
from settled.engines.rabbitmq.records import properties_of
from settled.engines.rabbitmq.sending import (
    Eldest,
    Route,
    Sent,
    no_sequences,
    placed,
    refuse_scheduling,
    too_large,
    unroutable,
)
from settled.engines.rabbitmq.sessions import Numbers
from settled.engines.rabbitmq.settings import Settings
from settled.errors import Refused, SettledError, Unavailable
from settled.record import Message, checked

FRESH_S = 60.0  # how long a topic's facts are taken for true
REST_S = 0.2  # after the broker could not store a message
TOGETHER = 256  # messages published without a look at what came in
OVERHEAD = 400  # bytes that a message on its way takes beside its own


class RabbitProducer:
    """Any thread may call it."""

    def __init__(
        self,
        spec: ProducerSpec,
        settings: Settings,
        find: Callable[[str], Route],
        closed: Callable[[RabbitProducer], None],
    ) -> None:
        """`find` finds a topic by name."""
        self.spec = spec
        self._settings, self._find, self._on_close = settings, find, closed
        self._routes: dict[str, Route] = {}
        self._lock = threading.Lock()  # guards what follows
        self._moved = threading.Condition(self._lock)
        self._outbox: deque[Sent] = deque()
        self._numbers = Numbers()
        self._turn = itertools.count()
        self._buffered = 0
        self._open = 0  # messages that have not ended
        self._waiting = 0  # threads that wait for messages to end
        self._pumping = False
        self._failure: tuple[SettledError, int] | None = None
        self._ended = False
        # The connection's thread alone:
        self._channel: Channel | None = None
        self._flying: dict[int, Sent] = {}  # by delivery tag
        self._tag = 0
        self._returned = 0  # the tag of the last message that came back
        self._careful = 0  # so many messages are published one by one
        self._blocked = False
        self._refused = 0.0  # monotonic: when the broker last could not store a message
        self._fault = ""
        self._eldest = Eldest()
        self._link = Link(settings, spec.identity or "producer", self)
        self._link.start()
        at_exit.add(self)

    def send(self, message: Message, *, sequence: int | None = None) -> Sent:
        if sequence is not None:
            raise no_sequences()
        checked(message)
        topic = message.topic
        route = self._routes.get(topic)
        now = time.monotonic()
        if route is None or now > route.until:
            route = self._route(topic, route)
        if message.headers and route.scheduled:
            refuse_scheduling(message)
        size = message.size
        if size > route.limit:
            raise too_large(message, route.limit)
        deadline = now + self._settings.publish_s
        body = message.value or b""
        partition, to = placed(message, route, self._turn)
        properties = properties_of(message, clock.wall_us() if route.partitions else None)
        sent = Sent(self, topic, message.id, route, properties, body, size + OVERHEAD, deadline, to, partition)
        with self._lock:
            if self._ended:
                raise Refused("this producer is closed", hint="open another one")
            if self._buffered + sent.size > self.spec.buffer_bytes and self._open:
                self._wait_for_room(sent.size)
            if route.numbered and properties.headers is not None:
                self._numbers.stamp(topic, properties.headers, now)
            self._outbox.append(sent)
            self._buffered += sent.size
            self._open += 1
            if self._pumping:
                return sent
            self._pumping = True
        self._link.call(self._pump)
        return sent

    def flush(self, timeout: float | None = None) -> None:
        windows.reach("batch-closed")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._waiting += 1
            try:
                while self._open:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"{self._open} messages were not accepted within {timeout} s")
                    self._moved.wait(min(left, 1.0))
            finally:
                self._waiting -= 1
            failure, self._failure = self._failure, None
        if failure is not None:
            error, count = failure
            raise type(error)(f"{count} messages are not confirmed: {error.message}", hint=error.hint) from error

    def resume_point(self) -> int | None:
        raise no_sequences()

    def close(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        try:
            self.flush()
        finally:
            self._link.close()
            at_exit.remove(self)
            self._on_close(self)

    def wait(self, sent: Sent, timeout: float | None) -> bool:
        """Until this message ended. False: not in time."""
        windows.reach("batch-closed")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._waiting += 1
            try:
                while not sent.ended and (left := deadline - time.monotonic()) > 0:
                    self._moved.wait(min(left, 1.0))
            finally:
                self._waiting -= 1
        return sent.ended

    # Steps of `send`.

    def _route(self, topic: str, known: Route | None) -> Route:
        try:
            found = self._find(topic)
        except Unavailable:
            if known is None:
                raise
            found = msgspec.structs.replace(known, until=time.monotonic() + FRESH_S)
        self._routes[topic] = found
        return found

    def _wait_for_room(self, size: int) -> None:
        """With the lock. Messages end, if only by their own deadlines."""
        until = time.monotonic() + 2 * self._settings.publish_s
        self._waiting += 1
        try:
            while self._open and self._buffered + size > self.spec.buffer_bytes:
                if time.monotonic() > until or self._ended:
                    raise Unavailable(f"the buffer stays full: {self._fault}", hint="it is safe to try again")
                self._moved.wait(1.0)
        finally:
            self._waiting -= 1

    # The connection's thread.

    def up(self, connection: SelectConnection) -> None:
        connection.add_on_connection_blocked_callback(lambda *_: self._alarm(True))
        connection.add_on_connection_unblocked_callback(lambda *_: self._alarm(False))
        self._blocked = False
        self._open_channel(connection)

    def down(self, error: SettledError) -> None:
        self._channel = None
        self._fault = error.message
        self._publish_again()

    def tick(self) -> None:
        """End what is overdue."""
        now = time.monotonic()
        with self._lock:
            late = [sent for sent in self._outbox if sent.deadline < now] if self._overdue(now) else []
            for sent in late:
                self._outbox.remove(sent)
        late += [self._flying.pop(tag) for tag, sent in list(self._flying.items()) if sent.deadline < now]
        self._look_for_stuck()
        if late:
            self._end_all([(sent, self._unconfirmed(now)) for sent in late])
        if self._outbox and self._channel is not None:
            self._pump()

    def _look_for_stuck(self) -> None:
        first = next(iter(self._flying), 0)
        streams = bool(first) and bool(self._flying[first].route.partitions)
        if self._eldest.is_stuck(first if streams and not self._blocked else 0):
            self._leave_channel()

    def _unconfirmed(self, now: float) -> Unavailable:
        why = self._fault
        if self._blocked:
            why = "it takes no messages now, for a memory or disk alarm"
        elif now - self._refused < self._settings.publish_s:
            why = "it could not store it: the queue is full, or has no leader"
        return Unavailable(
            f"the broker did not confirm it within {self._settings.publish_s:g} s{': ' if why else ''}{why}",
            hint="it may be stored: sending it again under its id is safe",
        )

    def _overdue(self, now: float) -> bool:
        return bool(self._outbox) and self._outbox[0].deadline < now

    def _open_channel(self, connection: SelectConnection) -> None:
        def opened(channel: Channel) -> None:
            self._tag, self._returned, self._eldest = 0, 0, Eldest()
            channel.add_on_close_callback(lambda closed, error: self._channel_closed(connection, closed, error))
            channel.add_on_return_callback(self._take_back)
            channel.confirm_delivery(self._confirmed, lambda _: self._ready(channel))

        connection.channel(on_open_callback=opened)

    def _ready(self, channel: Channel) -> None:
        self._channel, self._fault = channel, ""
        self._pump()

    def _leave_channel(self) -> None:
        """A channel goes on refusing after a queue has found another leader."""
        channel, self._channel = self._channel, None
        self._publish_again()
        if channel is not None and channel.is_open:
            channel.close()

    def _channel_closed(self, connection: SelectConnection, channel: Channel, error: Exception) -> None:
        """By the broker, for a message that it cannot take, or by `_leave_channel`, or with the connection."""
        if not connection.is_open:
            self._channel = None
            return
        if self._channel is not channel:
            self._open_channel(connection)
            return
        self._channel = None
        if len(self._flying) == 1:
            guilty = next(iter(self._flying.values()))
            self._flying.clear()
            found = faults.translate(error, "publishing", self._settings, topic=guilty.topic)
            self._end_all([(guilty, found)])
        else:
            self._careful = len(self._flying)
            self._publish_again()
        self._open_channel(connection)

    def _publish_again(self) -> None:
        """What has no confirm is next, in its order."""
        with self._lock:
            self._outbox.extendleft(reversed(self._flying.values()))
        self._flying.clear()

    def _alarm(self, on: bool) -> None:
        self._blocked = on

    def _pump(self) -> None:
        """Publish what waits. Called again while more does."""
        channel = self._channel
        while True:
            with self._lock:
                count = min(len(self._outbox), TOGETHER)
                waits = (self._careful and self._flying) or time.monotonic() - self._refused < REST_S
                if channel is None or not count or waits or channel is not self._channel:
                    self._pumping = False
                    return
                if self._careful:
                    count = 1
                    self._careful -= 1
                batch = [self._outbox.popleft() for _ in range(count)]
            self._publish(channel, batch)
            if count == TOGETHER:
                self._link.call(self._pump)  # confirms that came in are taken first
                return

    def _publish(self, channel: Channel, batch: list[Sent]) -> None:
        """All of them are on their way before the first one is handed over: a channel that has closed takes none."""
        self._flying.update(enumerate(batch, self._tag + 1))
        self._tag += len(batch)
        publish = channel.basic_publish
        for sent in batch:
            route = sent.route
            publish(route.exchange, sent.to, sent.body, sent.properties, route.mandatory)

    def _take_back(self, channel: Channel, method: Basic.Return, properties: BasicProperties, _: bytes) -> None:
        """A message that no queue takes. Its confirm follows; messages come back in the order in which they went."""
        for tag, sent in self._flying.items():
            if (
                tag > self._returned
                and sent.properties.message_id == properties.message_id
                and (sent.route.exchange, sent.to) == (method.exchange, method.routing_key)
            ):
                self._returned = tag
                sent.error = unroutable(sent.topic)
                return

    def _confirmed(self, frame: Any) -> None:
        method, flying = frame.method, self._flying
        tag, ended = method.delivery_tag, []
        self._eldest.latest = max(self._eldest.latest, tag)
        if method.multiple:
            for known in flying:
                if known > tag:
                    break
                ended.append(known)
        elif tag in flying:
            ended = [tag]
        found = [flying.pop(each) for each in ended]
        if isinstance(method, Basic.Nack):
            self._refused = time.monotonic()
            again = [sent for sent in found if sent.error is None]
            with self._lock:
                self._outbox.extendleft(reversed(again))
            found = [sent for sent in found if sent.error is not None]
            self._leave_channel()
        windows.reach("append-committed")
        self._end_all([(sent, sent.error) for sent in found])
        if self._careful:
            self._pump()

    def _end_all(self, ended: list[tuple[Sent, SettledError | None]]) -> None:
        if not ended:
            return
        with self._lock:
            for sent, error in ended:
                sent.error, sent.ended = error, True
                self._buffered -= sent.size
                if error is not None:
                    first, count = self._failure or (error, 0)
                    self._failure = (first, count + 1)
            self._open -= len(ended)
            if self._waiting:
                self._moved.notify_all()
