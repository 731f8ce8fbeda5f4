"""Steps that are asked of a stream (`stream_steps`), taken on a connection that never waits, or waited for; and streams
that are followed for as long as a connection lives. All on the connection's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic

from pika import BlockingConnection
from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from settled.engines.rabbitmq.stream_steps import OFFSET, Acknowledge, Came, Consume, Place, Steps, T

FEW = 50  # acknowledgements that are sent one by one: they give credit to one consumer alone
TOGETHER = 500  # messages of a followed stream that are not acknowledged


class Looking(Generic[T]):
    """Takes the steps on a channel of its own. When that is closed `done` gets what they return; `failed` what the
    broker closed it with."""

    def __init__(
        self,
        connection: Any,
        stream: str,
        came: Came,
        steps: Steps[T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._stream, self._came, self._steps, self._done, self._failed = stream, came, steps, done, failed
        self._found: list[T] = []
        connection.channel(on_open_callback=self._opened)

    def _opened(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._closed)
        self._go(channel)

    def _closed(self, _: Channel, error: Exception) -> None:
        if self._found:
            self._done(self._found[0])
        else:
            self._failed(error)

    def _go(self, channel: Channel) -> None:
        while True:
            try:
                step = next(self._steps)
            except StopIteration as end:
                self._found.append(end.value)
                channel.close()
                return
            if isinstance(step, Consume):
                channel.basic_qos(prefetch_count=step.ahead)
                taken = partial(self._add, step.name)
                channel.basic_consume(self._stream, taken, arguments={OFFSET: step.place})
            elif isinstance(step, Acknowledge):
                tags = self._came.unacknowledged.pop(step.name, [])
                if len(tags) > FEW:
                    channel.basic_ack(tags[-1], multiple=True)
                    continue
                for tag in tags:
                    channel.basic_ack(tag)
            else:
                channel.basic_qos(prefetch_count=1, callback=lambda _: self._go(channel))
                return

    def _add(self, name: str, _: Channel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        assert method.delivery_tag is not None
        self._came.add(name, offset_of(properties), method.delivery_tag, properties, body)


def waited_for(connection: BlockingConnection, stream: str, asked: Callable[..., Steps[T]], *given: Any) -> T:
    """What the steps return. Raises what the broker refuses them with."""
    found: list[T] = []
    failed: list[Exception] = []

    def ended(ends: list[Any], value: Any) -> None:
        ends.append(value)
        connection.call_later(0, lambda: None)  # ends the wait below

    came = Came()
    Looking(connection._impl, stream, came, asked(came, *given), partial(ended, found), partial(ended, failed))
    while not found and not failed:
        connection.process_data_events(time_limit=1)
    if failed:
        raise failed[0]
    return found[0]


class Following:
    """Every message of a stream, from `place` on. `lost` is called when the broker alone ends it."""

    def __init__(
        self,
        connection: Any,
        stream: str,
        place: Place,
        heard: Callable[[bytes, int], None],
        lost: Callable[[Exception], None],
    ) -> None:
        self._connection, self._stream, self._place, self._heard, self._lost = connection, stream, place, heard, lost
        self._left = TOGETHER // 2
        connection.channel(on_open_callback=self._opened)

    def _opened(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._closed)
        channel.add_on_cancel_callback(lambda _: channel.close())
        channel.basic_qos(prefetch_count=TOGETHER)
        channel.basic_consume(self._stream, self._take, arguments={OFFSET: self._place})

    def _closed(self, _: Channel, error: Exception) -> None:
        if self._connection.is_open:
            self._lost(error)

    def _take(self, channel: Channel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        self._left -= 1
        assert method.delivery_tag is not None
        if not self._left:
            self._left = TOGETHER // 2
            channel.basic_ack(method.delivery_tag, multiple=True)
        self._heard(body, offset_of(properties))


def offset_of(properties: BasicProperties) -> int:
    return int((properties.headers or {})[OFFSET])
