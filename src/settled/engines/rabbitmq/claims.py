"""The claims of one topic, on the connection's thread: find a free slot, hold its lock, take messages, acknowledge.

How much the broker hands out ahead is its prefetch, which only a new consumer can be given: once all that one was
allowed is handed out and more is wanted, or other sizes came than were expected, it is cancelled and another one takes
its place on the same channel; where order counts the whole slot is given back instead. A channel's delivery tags die
with it: nothing is acknowledged on another one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from settled import windows
from settled.engine import Assigned
from settled.engines.rabbitmq import faults
from settled.engines.rabbitmq.handoff import BUDGET, Claim, HandOff, Slot
from settled.engines.rabbitmq.records import deliveries_before, record_of
from settled.engines.rabbitmq.topology import Source
from settled.errors import Unavailable

log = logging.getLogger("settled.engines.rabbitmq")

FIRST = 16  # messages asked for before their size is known
MOST_CLAIMS = 50_000  # not acknowledged, at most: a record that waits for its retry holds up the others' end
LOOK_S = 1.0  # between two looks for a free slot
AGAIN_S = 0.3  # until a slot that was given back is looked for again


class Claims:
    """`refused` translates what the broker said; `identity` names the topic."""

    def __init__(
        self,
        source: Source,
        group: str,
        hand: HandOff[Slot],
        prefetch: int,
        identity: str,
        refused: Callable[[BaseException, str], Exception],
    ) -> None:
        self._source, self._group, self._hand, self._prefetch = source, group, hand, prefetch
        self._identity, self._refused = identity, refused
        self._connection: Any = None
        self._epochs: dict[int, int] = {}
        self._mine: dict[str, int] = {}  # event id -> deliveries before, of claims that were lost with a connection
        self._look_at = 0.0
        self._average = 0.0  # expanded bytes of a message, as far as seen in earlier slots
        self._reset()

    def _reset(self) -> None:
        self._slot: Slot | None = None
        self._looking = False
        self._channel: Any = None  # that messages come on
        self._consumer: str | None = None
        self._changing = False  # a consumer is being cancelled or made
        self._allowed = 0  # the prefetch of the consumer
        self._first = 0  # the number of its first claim
        self._acknowledged = False  # since the last tick

    def up(self, connection: SelectConnection) -> None:
        self._reset()
        self._connection = connection
        self._look(0)

    def down(self) -> None:
        slot = self._slot
        self._connection = None
        if slot is not None:
            self._remember(slot)
            self._hand.lost(slot)
        self._reset()

    def tick(self, now: float) -> None:
        if self._acknowledged:
            self._acknowledged = False
            windows.reach("claims-acknowledged")
        if self._connection is not None and self._slot is None and not self._looking and now >= self._look_at:
            self._look(0)

    # Finding a slot.

    def _look(self, number: int) -> None:
        """Try to lock the slot, then the next ones."""
        connection: Any = self._connection
        if connection is None or not connection.is_open:
            return
        if number >= self._source.slots:
            self._again(LOOK_S)
            return
        self._looking = True
        lock = self._source.lock(self._group, number)

        def opened(channel: Channel) -> None:
            channel.add_on_close_callback(closed)
            channel.queue_declare(
                lock, exclusive=True, auto_delete=True, callback=lambda _: self._gain(channel, number)
            )

        def closed(channel: Channel, error: Exception) -> None:
            if self._channel is channel:
                self._channel_closed(channel, error)
            elif self._connection is connection and connection.is_open:
                if faults.code_of(error) == faults.LOCKED:
                    self._look(number + 1)
                else:
                    self._trouble(error, "looking for a slot")

        connection.channel(on_open_callback=opened)

    def _again(self, seconds: float) -> None:
        self._looking = False
        self._look_at = time.monotonic() + seconds

    def _trouble(self, error: BaseException, what: str) -> None:
        found = self._refused(error, f"{what} of topic {self._source.topic!r}")
        log.warning("%s", found)
        with self._hand.lock:
            self._hand.fault = Unavailable(str(found), hint="it is tried again")
            self._hand.stir.notify_all()
        self._again(LOOK_S)

    def _gain(self, channel: Channel, number: int) -> None:
        windows.reach("slot-locked")
        epoch = self._epochs.get(number, 0) + 1
        slot = Slot(self._source.topic, number, epoch)
        self._slot, self._channel, self._looking = slot, channel, False
        channel.add_on_cancel_callback(lambda _: self._cancelled(channel))
        with self._hand.lock:
            self._hand.fault = None
        self._hand.gained(
            slot,
            Assigned(
                topic=slot.topic,
                partition=number,
                epoch=epoch,
                clean=True,
                identity=self._identity,
                begin=0,
                end=0,
                original=True,
                renumbered=True,
            ),
        )

    # Losing it, giving it back.

    def _channel_closed(self, channel: Channel, error: Exception) -> None:
        """By the broker: it waited too long for an acknowledgement, or the queue is gone; or by `release`."""
        slot, connection = self._slot, self._connection
        self._channel = None
        if slot is not None:
            self._remember(slot)
            self._hand.lost(slot)
        self._reset()
        if connection is None or not connection.is_open or slot is None:
            return
        self._looking = True
        code = faults.code_of(error)
        if code >= 300:
            self._trouble(error, "taking messages")
        self._unlock(connection, slot.number, LOOK_S if code >= 300 else AGAIN_S)

    def _cancelled(self, channel: Channel) -> None:
        """The broker ended the consumer: the queue was deleted."""
        if self._channel is channel and channel.is_open:
            channel.close()

    def release(self, slot: Slot) -> None:
        """Give it back: what is not acknowledged is free again, then the lock."""
        if self._slot is slot and self._channel is not None and self._channel.is_open:
            self._channel.close()

    def _unlock(self, connection: SelectConnection, number: int, seconds: float) -> None:
        def opened(channel: Channel) -> None:
            def unlocked(_: Any) -> None:
                channel.close()
                self._again(seconds)

            channel.queue_delete(self._source.lock(self._group, number), callback=unlocked)

        connection.channel(on_open_callback=opened)

    def _remember(self, slot: Slot) -> None:
        """Which claims this process had in hand: when they come again with one more delivery, nobody died of them."""
        with self._hand.lock:
            self._mine = {claim.record.id: claim.before for claim in slot.unended}
            self._average = slot.average or self._average
            self._epochs[slot.number] = slot.epoch

    # Messages.

    def wanted(self, *, hungry: bool = False) -> None:
        """The owner asks for records; `hungry`: and got none. See that the broker hands out more, once it handed out
        all that it may. Of large helpings the next is asked for when half of the last one is taken."""
        slot, channel = self._slot, self._channel
        if slot is None or channel is None or self._changing or not channel.is_open:
            return
        with self._hand.lock:
            if slot.next < 0 or slot.paused:
                return
            wanted = self._wanted(slot)
            first = slot.unended[0].number if slot.unended else slot.next
            out = slot.next - max(first, self._first)
            claims, waiting = len(slot.unended), slot.waiting_bytes
            left = len(slot.waiting) > self._allowed // 2 or (self._allowed <= FIRST and not hungry)
        if self._source.single and self._consumer is not None:
            return  # one consumer's claims come back in order, those of two would not
        if self._consumer is None:
            if waiting <= BUDGET // 2 and claims < MOST_CLAIMS:
                self._consume(channel, wanted)
        elif out >= self._allowed and claims < MOST_CLAIMS and not left:
            self._cancel(channel)

    def _wanted(self, slot: Slot) -> int:
        """How many messages may be handed out ahead."""
        average = slot.average or self._average
        if self._source.single:  # nobody else waits for what is handed out ahead
            return max(1, min(self._prefetch, int(BUDGET / average))) if average else self._prefetch
        asked = self._hand.asked_records or FIRST
        most = min(self._prefetch, asked if asked < FIRST else 2 * asked)
        budget = min(BUDGET, self._hand.asked_bytes or BUDGET)
        return max(1, min(most, int(budget / average))) if average else min(FIRST, most)

    def _consume(self, channel: Channel, wanted: int) -> None:
        slot = self._slot
        assert slot is not None
        self._changing, self._allowed, self._first = True, wanted, slot.next
        channel.basic_qos(prefetch_count=wanted)  # per consumer: of those that follow

        def made(_: Any) -> None:
            self._changing = False

        self._consumer = channel.basic_consume(
            self._source.queue, lambda *message: self._take(slot, *message), callback=made
        )

    def _cancel(self, channel: Channel) -> None:
        self._changing = True

        def ended(_: Any) -> None:
            self._consumer, self._changing = None, False
            self.wanted()

        assert self._consumer is not None
        channel.basic_cancel(self._consumer, callback=ended)

    def _take(
        self, slot: Slot, channel: Channel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        if self._channel is not channel or self._slot is not slot:
            return
        hand = self._hand
        number, before = slot.next, deliveries_before(properties, bool(method.redelivered))
        record, size = record_of(slot.topic, slot.number, number, properties, body)
        mine = bool(before and self._mine) and self._mine.pop(record.id, before) == before - 1
        assert method.delivery_tag is not None
        with hand.lock:
            slot.add(Claim(number, method.delivery_tag, record, size, before, mine=mine))
            heavy = slot.waiting_bytes > 2 * BUDGET
            if hand.idle:
                hand.stir.notify_all()
        if heavy and self._consumer is not None and not self._changing:
            self._hold_back(channel)

    def _hold_back(self, channel: Channel) -> None:
        """More bytes came than were expected. What is on its way goes back; where order counts, all that is out does,
        since it comes back in order only together."""
        if self._source.single:
            channel.close()
        else:
            self._cancel(channel)

    def acknowledge(self, slot: Slot) -> None:
        """All claims below the slot's frontier, if its channel is still there."""
        if self._slot is not slot or self._channel is None or not self._channel.is_open:
            return
        with self._hand.lock:
            tag = slot.end(slot.frontier)
        if tag:
            windows.reach("claims-unacknowledged")
            self._channel.basic_ack(tag, multiple=True)
            self._acknowledged = True
            self.wanted()
