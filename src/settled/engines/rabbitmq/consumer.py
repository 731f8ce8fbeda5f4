"""A member of a group on queues: news of slots first, then claims. The connection's thread works beside it (`claims`).

A member holds one slot of each topic at a time. Losing the connection loses all of them, whatever the broker has
noticed: the claims go back to the queue and come again to whoever is free, under new numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from pika.adapters.select_connection import SelectConnection

from settled import windows
from settled.engine import ConsumerGroup, Fetched, Partition
from settled.engines.rabbitmq import faults
from settled.engines.rabbitmq.claims import Claims
from settled.engines.rabbitmq.handoff import Slot
from settled.engines.rabbitmq.member import Member
from settled.engines.rabbitmq.settings import Settings
from settled.engines.rabbitmq.topology import Source
from settled.errors import SettledError


class RabbitConsumer(Member[Slot]):
    """See `member`."""

    def __init__(
        self,
        group: ConsumerGroup,
        sources: Sequence[Source],
        settings: Settings,
        identity: Callable[[str], str],
        closed: Callable[[RabbitConsumer], None],
    ) -> None:
        """`identity` names a topic's incarnation; `closed` is called at the end."""
        super().__init__(group, settings, lambda: closed(self))
        self.topics = frozenset(group.topics)

        def refused(error: BaseException, what: str) -> SettledError:
            return faults.translate(error, what, settings)

        self._claims = {
            source.topic: Claims(source, group.group, self._hand, settings.prefetch, identity(source.topic), refused)
            for source in sources
        }
        self._link.start()

    def _took(self, found: list[Fetched]) -> None:
        if self._hand.slots:
            self._link.call(self._taken if found else self._hungry)
        if found:
            windows.reach("claims-taken")

    def start(self, topic: str, partition: int, offset: int, *, witness: tuple[int, bytes] | None = None) -> None:
        """Claims are numbered from `offset` on, or from where the epoch's own numbers begin."""
        with self._hand.lock:
            self._own(topic, partition).start(offset)

    def release(self, topic: str, partition: int, *, clean: bool = True) -> None:
        """What is not acknowledged is free again. The slot is announced again if nobody else takes it."""
        slot = self._give_up(topic, partition)
        if slot is not None:
            self._link.call(lambda: self._claims[topic].release(slot))

    def raise_epoch(self, topic: str, partition: int, at_least: int) -> int:
        with self._hand.lock:
            slot = self._own(topic, partition)
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

    def claimed(self, topic: str) -> list[Slot]:
        """Any thread. The topic's slots that this member holds."""
        with self._hand.lock:
            return [slot for slot in self._hand.slots.values() if slot.topic == topic]

    # The connection's thread.

    def up(self, connection: SelectConnection) -> None:
        super().up(connection)
        for claims in self._claims.values():
            claims.up(connection)

    def down(self, error: SettledError) -> None:
        for claims in self._claims.values():
            claims.down()
        super().down(error)

    def tick(self) -> None:
        super().tick()
        now = time.monotonic()
        for claims in self._claims.values():
            claims.tick(now)

    def _taken(self) -> None:
        for claims in self._claims.values():
            claims.wanted()

    def _hungry(self) -> None:
        for claims in self._claims.values():
            claims.wanted(hungry=True)
