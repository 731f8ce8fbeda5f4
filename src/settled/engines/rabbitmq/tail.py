"""A reader without a group: an exclusive queue of its own, bound to the topic's exchange for as long as its connection
lives. The broker holds no more for it than `behind` records and `QUEUE_BYTES`, and drops the oldest beyond that.

Whatever the broker drops it puts into a second queue, of one message: seeing one there says that there was some. After
a lost connection the tail has a new queue, and says that it was interrupted once that is bound.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from settled.engines.rabbitmq import faults, sessions
from settled.engines.rabbitmq.connection import Link
from settled.engines.rabbitmq.passage import Passage
from settled.engines.rabbitmq.sessions import Sessions
from settled.engines.rabbitmq.settings import Settings
from settled.errors import ContractError, SettledError, Unavailable
from settled.record import Record

QUEUE_BYTES = 64 * 1024 * 1024
MOST_BEHIND = 10_000_000
BIND_S = 30.0  # how often the queue is bound again: the exchange may have been deleted, or made anew
LOOK_S = 1.0  # between two attempts to bind a queue, and between two looks at what was dropped


class RabbitTail:
    """One thread owns it; only `wakeup` may be called from others."""

    def __init__(
        self,
        topic: str,
        exchange: str,
        identity: str,
        settings: Settings,
        *,
        after: str | None,
        behind: int,
        closed: Callable[[RabbitTail], None],
    ) -> None:
        """Back when its queue is bound."""
        self._topic, self._exchange, self._identity, self._settings = topic, exchange, identity, settings
        self._behind, self._on_close = max(1, min(behind, MOST_BEHIND)), closed
        now = sessions.steady()
        before = Sessions(now()) if after is None else sessions.read(after, topic, identity)
        self._passage = Passage(topic, before, self._behind, now)
        self._passage.interruptions = 0 if after is None else 1
        self._fault: SettledError | None = None
        self._woken = self._ended = False
        self._bound = threading.Event()
        # The connection's thread alone:
        self._connection: Any = None
        self._channel: Channel | None = None
        self._again_at = self._bind_at = 0.0
        self._queue = ""  # that is bound
        self._dropped: tuple[int, float] | None = None  # a message of the second queue, and when it is acknowledged
        self._link = Link(settings, "tail", self)
        self._link.start()
        self._wait_bound()

    @property
    def missed(self) -> int:
        return self._passage.missed

    @property
    def interruptions(self) -> int:
        return self._passage.interruptions

    @property
    def position(self) -> str:
        return self._passage.standing.written(self._topic, self._identity)

    def moved(self, position: str, records: Sequence[Record]) -> str:
        found = sessions.read(position, self._topic, self._identity)
        for one in self._passage.places(records):
            if one.session:
                found.move(one.session, one.following, self._passage.now())
        return found.written(self._topic, self._identity)

    def poll(self, timeout: float, *, records: int, bytes: int) -> list[Record]:
        deadline = time.monotonic() + timeout
        passage, wanted = self._passage, records > 0 and bytes > 0
        with passage.changed:
            while True:
                self._require_open()
                if wanted and passage:
                    return passage.take(records, bytes)
                if wanted and self._fault is not None and not isinstance(self._fault, Unavailable):
                    raise self._fault
                if self._woken:
                    self._woken = False
                    return []
                left = deadline - time.monotonic()
                if left <= 0:
                    if wanted and self._fault is not None:
                        raise self._fault
                    return []
                passage.changed.wait(left)

    def wakeup(self) -> None:
        with self._passage.changed:
            self._woken = True
            self._passage.changed.notify()

    def close(self) -> None:
        with self._passage.changed:
            if self._ended:
                return
            self._ended = True
            self._passage.changed.notify()
        self._link.close()
        self._on_close(self)

    def _require_open(self) -> None:
        if self._ended:
            raise ContractError("this tail is closed", hint="open another with engine.tail(...)")

    def _wait_bound(self) -> None:
        """Raises what kept it from being bound, within the time that connecting may take."""
        deadline = time.monotonic() + self._settings.connect_s * len(self._settings.addresses)
        while not self._bound.wait(0.02):
            with self._passage.changed:
                fault = self._fault
            late = time.monotonic() > deadline
            if late or (fault is not None and not isinstance(fault, Unavailable)):
                self.close()
                raise fault or Unavailable(
                    f"no queue was bound to topic {self._topic!r} in time", hint="it is safe to try again"
                )

    # The connection's thread.

    def up(self, connection: SelectConnection) -> None:
        self._connection = connection
        self._open_channel()

    def down(self, error: SettledError) -> None:
        self._connection = self._channel = self._dropped = None
        self._queue = ""
        self._failed(error)

    def tick(self) -> None:
        now, channel = time.monotonic(), self._channel
        if self._dropped is not None and channel is not None and now >= self._dropped[1]:
            channel.basic_ack(self._dropped[0])
            self._dropped = None
        if self._queue and channel is not None and now >= self._bind_at:
            self._bind_at = now + BIND_S
            channel.queue_bind(self._queue, self._exchange)
        if channel is None and self._again_at and now >= self._again_at:
            self._open_channel()

    def _failed(self, error: SettledError) -> None:
        with self._passage.changed:
            self._fault = error
            self._passage.changed.notify()

    def _open_channel(self) -> None:
        connection, self._again_at = self._connection, 0.0
        if connection is None or not connection.is_open:
            return
        name = f"{self._topic}::tail:{uuid.uuid4().hex[:12]}"

        def opened(channel: Channel) -> None:
            self._channel = channel
            channel.add_on_close_callback(self._channel_closed)
            channel.add_on_cancel_callback(lambda _: channel.close())
            own = {"exclusive": True, "auto_delete": True}
            channel.queue_declare(f"{name}:dropped", arguments={"x-queue-type": "classic", "x-max-length": 1}, **own)
            channel.queue_declare(name, arguments=self._arguments(f"{name}:dropped"), **own)
            channel.queue_bind(name, self._exchange, callback=lambda _: self._begin(channel, name))

        connection.channel(on_open_callback=opened)

    def _arguments(self, dropped: str) -> dict[str, Any]:
        return {
            "x-queue-type": "classic",
            "x-max-length": self._behind,
            "x-max-length-bytes": QUEUE_BYTES,
            "x-overflow": "drop-head",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dropped,
        }

    def _begin(self, channel: Channel, name: str) -> None:
        """It is bound: whatever is published from now on comes, or is noticed."""
        if self._bound.is_set():
            self._passage.interrupt()
        with self._passage.changed:
            self._fault = None
        channel.basic_consume(name, self._take, auto_ack=True)
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(f"{name}:dropped", self._take_dropped)
        self._queue, self._bind_at = name, time.monotonic() + BIND_S
        self._bound.set()

    def _take(self, channel: Channel, _: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        if channel is self._channel:
            self._passage.come(properties, body)

    def _take_dropped(self, channel: Channel, method: Basic.Deliver, _: BasicProperties, __: bytes) -> None:
        if channel is self._channel and method.delivery_tag is not None:
            self._dropped = method.delivery_tag, time.monotonic() + LOOK_S
            self._passage.interrupt()

    def _channel_closed(self, channel: Channel, error: Exception) -> None:
        """By the broker, or since its queue is gone; or with the connection."""
        if self._channel is not channel:
            return
        self._channel = self._dropped = None
        self._queue = ""
        if self._connection is not None and self._connection.is_open:
            what = f"listening to topic {self._topic!r}"
            if faults.code_of(error) >= 300:
                self._failed(faults.translate(error, what, self._settings, topic=self._topic))
            self._again_at = time.monotonic() + LOOK_S
