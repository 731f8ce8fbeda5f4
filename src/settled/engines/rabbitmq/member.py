"""One member of a group, as its owner sees it: news first, then records. Members of queues (`consumer`) and of logs
(`stream_consumer`) have this in common; the connection's thread works beside it.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Generic

from pika.adapters.select_connection import SelectConnection

from settled.engine import ConsumerGroup, Delivery, Fetched, Partition
from settled.engines.rabbitmq.connection import Link
from settled.engines.rabbitmq.handoff import H, HandOff
from settled.engines.rabbitmq.settings import Settings
from settled.errors import ContractError, Fenced, SettledError, Unavailable

LOOK_S = 1.0  # the longest wait without a look around


class Member(Generic[H]):
    """One thread owns it; only `wakeup` may be called from others. Who derives from it starts the link."""

    def __init__(self, group: ConsumerGroup, settings: Settings, closed: Callable[[], None]) -> None:
        """`closed` is called at the end."""
        self.member = group.member or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.group = group.group
        self._on_close = closed
        heartbeat_s = max(1, int(group.lease_s / 2))
        self._hand: HandOff[H] = HandOff(max(group.lease_s, 2 * heartbeat_s))  # two are waited for
        self._ended = False
        self._link = Link(settings, self.member, self, heartbeat_s=heartbeat_s)

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
                    self._took(found)
                    if found:
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

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._set_held(partitions, True)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._set_held(partitions, False)

    def wakeup(self) -> None:
        with self._hand.lock:
            self._hand.woken = True
            self._hand.stir.notify_all()

    def close(self) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self._leave()
            self._link.close()
        finally:
            self._on_close()

    def _took(self, found: list[Fetched]) -> None:
        """With the lock. The owner looked for records, and took these."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Before the connection is closed."""

    def _own(self, topic: str, partition: int) -> H:
        """With the lock. Raises Fenced for what is another's by now."""
        self._require_open()
        own = self._hand.slots.get((topic, partition))
        if own is None or own.place not in self._hand.told:
            raise gone(topic, partition)
        return own

    def _give_up(self, topic: str, partition: int) -> H | None:
        """From now on it is not the owner's any more; none: it was not."""
        with self._hand.lock:
            own = self._hand.slots.get((topic, partition))
            if own is None or own.place not in self._hand.told:
                return None
            del self._hand.slots[own.place]
            self._hand.told.discard(own.place)
            return own

    def _set_held(self, partitions: Iterable[Partition], held: bool) -> None:
        with self._hand.lock:
            for place in partitions:
                own = self._hand.slots.get(place)
                if own is not None:
                    own.held = held

    def _require_open(self) -> None:
        if self._ended:
            raise ContractError("this consumer is closed", hint="join again with engine.consumer(...)")

    # The connection's thread.

    def up(self, connection: SelectConnection) -> None:
        with self._hand.lock:
            self._hand.fault = None

    def down(self, error: SettledError) -> None:
        with self._hand.lock:
            self._hand.fault = Unavailable(f"not consuming: {error.message}", hint=error.hint)
            self._hand.stir.notify_all()

    def tick(self) -> None:
        self._hand.beat()


def gone(topic: str, partition: int) -> Fenced:
    return Fenced(f"{topic}/{partition} is no longer this member's", hint="stop working on it")
