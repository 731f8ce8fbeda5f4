"""One member of a group, as its owner sees it: news of slots first, then claims. The connection's thread works beside
it (`claims`).

A member holds one slot of each topic at a time. Losing the connection loses all of them, whatever the broker has
noticed: the claims go back to the queue and come again to whoever is free, under new numbers.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from pika.adapters.select_connection import SelectConnection

from settled import windows
from settled.engine import ConsumerGroup, Delivery, Partition
from settled.engines.rabbitmq import faults
from settled.engines.rabbitmq.claims import Claims
from settled.engines.rabbitmq.connection import Link
from settled.engines.rabbitmq.handoff import HandOff, Slot
from settled.engines.rabbitmq.settings import Settings
from settled.engines.rabbitmq.topology import Source
from settled.errors import ContractError, Fenced, SettledError, Unavailable

LOOK_S = 1.0  # the longest wait without a look around


class RabbitConsumer:
    """One thread owns it; only `wakeup` may be called from others."""

    def __init__(
        self,
        group: ConsumerGroup,
        sources: Sequence[Source],
        settings: Settings,
        identity: Callable[[str], str],
        closed: Callable[[RabbitConsumer], None],
    ) -> None:
        """`identity` names a topic's incarnation; `closed` is called at the end."""
        self.member = group.member or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.group, self.topics = group.group, frozenset(group.topics)
        self._on_close = closed
        heartbeat_s = max(1, int(group.lease_s / 2))
        self._hand: HandOff[Slot] = HandOff(max(group.lease_s, 2 * heartbeat_s))  # two are waited for

        def refused(error: BaseException, what: str) -> SettledError:
            return faults.translate(error, what, settings)

        self._claims = {
            source.topic: Claims(source, group.group, self._hand, settings.prefetch, identity(source.topic), refused)
            for source in sources
        }
        self._ended = False
        self._link = Link(settings, self.member, self, heartbeat_s=heartbeat_s)
        self._link.start()

    def poll(self, timeout: float, *, records: int, bytes: int) -> list[Delivery]:
        hand = self._hand
        deadline = time.monotonic() + timeout
        with hand.lock:
            while True:
                self._require_open()
                if hand.news:
                    return list(hand.take_news())
                if records > 0 and bytes > 0 and not hand.stale():
                    found = hand.take(records, bytes)
                    if hand.slots:
                        self._link.call(self._taken if found else self._hungry)
                    if found:
                        windows.reach("claims-taken")
                        return list(found)
                if hand.woken:
                    hand.woken = False
                    return []
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                hand.idle = True
                hand.stir.wait(min(left, LOOK_S))
                hand.idle = False
            if hand.fault is not None and timeout > 0 and records > 0:
                raise hand.fault
            return []

    def start(self, topic: str, partition: int, offset: int, *, witness: tuple[int, bytes] | None = None) -> None:
        """Claims are numbered from `offset` on, or from where the epoch's own numbers begin."""
        with self._hand.lock:
            self._slot(topic, partition).start(offset)

    def release(self, topic: str, partition: int, *, clean: bool = True) -> None:
        """What is not acknowledged is free again. The slot is announced again if nobody else takes it."""
        hand = self._hand
        with hand.lock:
            slot = hand.slots.get((topic, partition))
            if slot is None or slot.place not in hand.told:
                return
            del hand.slots[slot.place]
            hand.told.discard(slot.place)
        self._link.call(lambda: self._claims[topic].release(slot))

    def raise_epoch(self, topic: str, partition: int, at_least: int) -> int:
        with self._hand.lock:
            slot = self._slot(topic, partition)
            slot.epoch = max(slot.epoch + 1, at_least)
            return slot.epoch

    def commit(self, frontiers: Mapping[Partition, int]) -> None:
        """Acknowledges the claims below each frontier, without waiting. What is lost of it comes again, and the inbox
        knows it."""
        for place, frontier in frontiers.items():
            with self._hand.lock:
                slot = self._hand.slots.get(place)
                if slot is None or frontier <= slot.frontier:
                    continue
                slot.frontier = frontier
            self._acknowledge(place[0], slot)

    def _acknowledge(self, topic: str, slot: Slot) -> None:
        self._link.call(lambda: self._claims[topic].acknowledge(slot))

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._set_paused(partitions, False)

    def wakeup(self) -> None:
        with self._hand.lock:
            self._hand.woken = True
            self._hand.stir.notify_all()

    def close(self) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self._link.close()
        finally:
            self._on_close(self)

    def claimed(self, topic: str) -> list[Slot]:
        """Any thread. The topic's slots that this member holds."""
        with self._hand.lock:
            return [slot for slot in self._hand.slots.values() if slot.topic == topic]

    def _slot(self, topic: str, partition: int) -> Slot:
        """With the lock."""
        self._require_open()
        slot = self._hand.slots.get((topic, partition))
        if slot is None or slot.place not in self._hand.told:
            raise Fenced(f"{topic}/{partition} is no longer this member's", hint="stop working on it")
        return slot

    def _set_paused(self, partitions: Iterable[Partition], paused: bool) -> None:
        with self._hand.lock:
            for place in partitions:
                slot = self._hand.slots.get(place)
                if slot is not None:
                    slot.paused = paused

    def _require_open(self) -> None:
        if self._ended:
            raise ContractError("this consumer is closed", hint="join again with engine.consumer(...)")

    # The connection's thread.

    def up(self, connection: SelectConnection) -> None:
        with self._hand.lock:
            self._hand.fault = None
        for claims in self._claims.values():
            claims.up(connection)

    def down(self, error: SettledError) -> None:
        for claims in self._claims.values():
            claims.down()
        with self._hand.lock:
            self._hand.fault = Unavailable(f"not consuming: {error.message}", hint=error.hint)
            self._hand.stir.notify_all()

    def tick(self) -> None:
        self._hand.beat()
        now = time.monotonic()
        for claims in self._claims.values():
            claims.tick(now)

    def _taken(self) -> None:
        for claims in self._claims.values():
            claims.wanted()

    def _hungry(self) -> None:
        for claims in self._claims.values():
            claims.wanted(hungry=True)
