"""Messages of one partition on their way to a lane, on the connection's thread.

Acknowledgements are credit here, and no more: they are given as the owner fetches, so that what waits is bounded. How
many messages that is can only be set for a new consumer, so another one takes over when their size is known better. A
jump of the offsets is a hole, or what retention removed: the stream is asked which, before anything beyond it is given
to the owner.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from settled.engines.rabbitmq.handoff import HandOff
from settled.engines.rabbitmq.lane import BUDGET, Lane
from settled.engines.rabbitmq.looking import Looking, offset_of
from settled.engines.rabbitmq.records import record_of
from settled.engines.rabbitmq.stream_steps import OFFSET, Came, Entry, bounds

FIRST = 8  # messages asked for before their size is known
AGAIN_S = 1.0


class Fetch:
    """`most`: messages on their way; `refused` is told what the broker said, and how often in turn."""

    def __init__(
        self,
        lane: Lane,
        stream: str,
        hand: HandOff[Lane],
        most: int,
        refused: Callable[[BaseException, str, int], None],
    ) -> None:
        self.lane, self._stream, self._hand, self._most, self._refused = lane, stream, hand, most, refused
        self._connection: Any = None
        self._channel: Channel | None = None
        self._ahead = 0  # the prefetch of the consumer
        self._came = 0  # messages that it was handed
        self._beyond: deque[Entry] | None = None  # what came after a jump that is being looked at
        self._again_at = 0.0
        self._refusals = 0
        self._turn = 0  # how often it was opened or closed

    def open(self, connection: Any) -> None:
        """Fetch from where the lane expects, whatever was under way."""
        self.close()
        if not connection.is_open:
            return
        self._connection = connection
        lane, turn = self.lane, self._turn
        with self._hand.lock:
            lane.taken_tag = lane.taken = 0
            for item in lane.waiting:
                item.tag = 0
            place = lane.expected
            self._ahead, self._came = self._fitting(), 0

        def opened(channel: Channel) -> None:
            if turn != self._turn:
                channel.close()
                return
            self._channel = channel
            channel.add_on_close_callback(self._closed)
            channel.add_on_cancel_callback(lambda _: channel.close())
            channel.basic_qos(prefetch_count=self._ahead)
            channel.basic_consume(self._stream, self._take, arguments={OFFSET: place})

        connection.channel(on_open_callback=opened)

    def close(self) -> None:
        channel, self._channel, self._beyond = self._channel, None, None
        self._turn += 1
        self._again_at = 0.0
        if channel is not None and channel.is_open:
            channel.close()

    def tick(self, now: float) -> None:
        if self._again_at and now >= self._again_at and self._connection.is_open:
            self._again_at = 0.0
            self.open(self._connection)

    def taken(self) -> None:
        """The owner fetched something: let more come."""
        channel, lane = self._channel, self.lane
        if channel is None or not channel.is_open or self._beyond is not None:
            return
        with self._hand.lock:
            tag = lane.taken_tag if lane.taken * 2 >= self._ahead or not lane.waiting else 0
            if tag:
                lane.taken_tag = lane.taken = 0
            fitting = self._fitting()
            other = not lane.waiting and (fitting >= 2 * self._ahead or fitting * 4 <= self._ahead)
        if tag and other:
            self.open(self._connection)
        elif tag:
            channel.basic_ack(tag, multiple=True)

    def _look_at_size(self) -> None:
        """All that was asked for has come: more is, once it is known how small messages are."""
        with self._hand.lock:
            small = self.lane.waiting_bytes < BUDGET // 2 and self._fitting() >= 2 * self._ahead
        if small:
            self.open(self._connection)

    def _fitting(self) -> int:
        """With the lock. How many messages may be on their way."""
        average = self.lane.average
        return max(1, min(self._most, int(BUDGET / average))) if average else min(FIRST, self._most)

    def _take(self, channel: Channel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        if channel is not self._channel:
            return
        assert method.delivery_tag is not None
        self._refusals = 0
        entry = Entry(offset_of(properties), method.delivery_tag, properties, body)
        if self._beyond is not None:
            self._beyond.append(entry)
        elif entry.offset > self.lane.expected:
            self._beyond = deque([entry])
            self._look_at_jump()
        else:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        lane, hand = self.lane, self._hand
        if entry.offset < lane.expected:
            return
        record, size = record_of(lane.topic, lane.number, entry.offset, entry.properties, entry.body)
        with hand.lock:
            lane.add(record, size, entry.tag)
            if hand.idle:
                hand.stir.notify_all()
        self._came += 1
        if self._came == self._ahead:
            self._look_at_size()

    def _look_at_jump(self) -> None:
        came, channel = Came(), self._channel

        def seen(found: tuple[int, int]) -> None:
            beyond = self._beyond
            if self._channel is not channel or beyond is None:
                return
            self._beyond = None
            with self._hand.lock:
                self.lane.begin, self.lane.end = found
                if found[0] > self.lane.expected:
                    self.lane.add_gap(min(found[0], beyond[0].offset))
            for entry in beyond:
                if self._channel is channel:  # else what is left of it comes again on another one
                    self._add(entry)

        def failed(error: Exception) -> None:
            if self._channel is channel and self._connection.is_open:
                self._trouble(error)

        Looking(self._connection, self._stream, came, bounds(came), seen, failed)

    def _closed(self, channel: Channel, error: Exception) -> None:
        if self._channel is channel and self._connection.is_open:
            self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        """By the broker: it waited too long for an acknowledgement, or the stream has no copy here now."""
        self.close()
        self._refusals += 1
        self._refused(error, f"reading {self.lane.topic}/{self.lane.number}", self._refusals)
        self._again_at = time.monotonic() + AGAIN_S
