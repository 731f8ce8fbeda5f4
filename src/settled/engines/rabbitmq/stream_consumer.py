"""A member of a group on logs: news of partitions first, then records. The connection's thread works beside it
(`membership`, `fetch`).

Losing the connection loses all partitions, whatever the broker has noticed: nothing of the old ones is acknowledged or
noted any more, and the member joins again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from pika.adapters.select_connection import SelectConnection

from settled.engine import ConsumerGroup, Fetched, Partition
from settled.engines.rabbitmq import faults
from settled.engines.rabbitmq.facts import Facts
from settled.engines.rabbitmq.lane import Lane
from settled.engines.rabbitmq.member import Member, gone
from settled.engines.rabbitmq.membership import Membership
from settled.engines.rabbitmq.settings import Settings
from settled.errors import HistoryLost, SettledError, Unavailable

log = logging.getLogger("settled.engines.rabbitmq")

LAGS_S = 30.0  # so long a node's copy may be behind before it is taken for all there is
PASSED_S = 3.0  # after a refusal, by when it has passed
ANSWER_S = 10.0  # the broker's time to answer the owner


class StreamConsumer(Member[Lane]):
    """See `member`."""

    def __init__(
        self,
        group: ConsumerGroup,
        topics: Mapping[str, Facts],
        settings: Settings,
        closed: Callable[[StreamConsumer], None],
    ) -> None:
        """`closed` is called at the end."""
        super().__init__(group, settings, lambda: closed(self))
        self._settings = settings
        self._memberships = {
            topic: Membership(
                topic,
                facts,
                group.group,
                self.member,
                group.lease_s,
                self._hand,
                settings.prefetch,
                self._trouble,
                elsewhere=len(settings.addresses) > 1,
            )
            for topic, facts in topics.items()
        }
        self._refused_at = 0.0  # when the broker last refused something, the connection being up; 0: it is not
        self._link.start()

    def _took(self, found: list[Fetched]) -> None:
        if found:
            self._link.call(self._taken)

    def start(self, topic: str, partition: int, offset: int, *, witness: tuple[int, bytes] | None = None) -> None:
        with self._hand.lock:
            lane = self._own(topic, partition)
            beyond, looks = offset > lane.end, lane.looks
        if beyond:
            self._answered(lane, lambda then: self._memberships[topic].look(lane, then))
        with self._hand.lock:
            if self._own(topic, partition) is not lane:
                raise gone(topic, partition)
            if offset > lane.end:
                if lane.looks == looks:
                    raise Unavailable(f"{topic}/{partition} cannot be looked at now", hint="it is tried again")
                self._require_caught_up(lane)
                raise HistoryLost(
                    f"{topic}/{partition} ends at {lane.end}, before the position {offset} that was reached in it",
                    hint="the stream was deleted and made anew, or went back with its node",
                )
            lane.start(offset)
            self._hand.stir.notify_all()
        self._link.call(lambda: self._memberships[topic].open(lane))

    def release(self, topic: str, partition: int, *, clean: bool = True) -> None:
        lane = self._give_up(topic, partition)
        if lane is not None:
            self._link.call(lambda: self._memberships[topic].give_back(lane, clean=clean))

    def raise_epoch(self, topic: str, partition: int, at_least: int) -> int:
        """Noted on the board when it returns."""
        with self._hand.lock:
            lane = self._own(topic, partition)
            lane.epoch = max(lane.epoch + 1, at_least)
            epoch = lane.epoch
        self._answered(lane, self._memberships[topic].say)
        return epoch

    def commit(self, frontiers: Mapping[Partition, int]) -> None:
        """Noted on the board, without waiting."""
        moved: set[str] = set()
        with self._hand.lock:
            for place, frontier in frontiers.items():
                lane = self._hand.slots.get(place)
                if lane is not None and place in self._hand.told and lane.position is not None:
                    lane.frontier = frontier
                    moved.add(place[0])
        for topic in moved:
            self._link.call(self._memberships[topic].moved)

    def _leave(self) -> None:
        for membership in self._memberships.values():
            self._link.call(membership.leave)

    def _answered(self, lane: Lane, ask: Callable[[Callable[[], None]], None]) -> None:
        """Ask on the connection's thread and wait. Raises Unavailable; Fenced when the partition was lost meanwhile."""
        come = threading.Event()
        self._link.call(lambda: ask(come.set))
        deadline = time.monotonic() + ANSWER_S
        while not come.wait(0.05):
            with self._hand.lock:
                if self._hand.slots.get(lane.place) is not lane:
                    raise gone(*lane.place)
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{lane.topic}/{lane.number}: the broker does not answer", hint="it is safe to try again"
                )

    def _require_caught_up(self, lane: Lane) -> None:
        """Raises Unavailable while the copy that this node has of the stream may lag behind the others."""
        now = time.monotonic()
        lane.behind_since = lane.behind_since or now
        if len(self._settings.addresses) > 1 and now - lane.behind_since < LAGS_S:
            raise Unavailable(
                f"{lane.topic}/{lane.number} ends at {lane.end} on this node, before the position that was reached",
                hint="the node's copy may be catching up: it is looked at again",
            )

    # The connection's thread.

    def up(self, connection: SelectConnection) -> None:
        super().up(connection)
        self._refused_at = time.monotonic()
        for membership in self._memberships.values():
            membership.up(connection)

    def down(self, error: SettledError) -> None:
        self._refused_at = 0.0
        for membership in self._memberships.values():
            membership.down()
        super().down(error)

    def tick(self) -> None:
        super().tick()
        now = time.monotonic()
        if self._refused_at and now - self._refused_at > PASSED_S:  # what stays is refused again each second
            with self._hand.lock:
                self._hand.fault = None
        for membership in self._memberships.values():
            membership.tick(now)

    def _taken(self) -> None:
        for membership in self._memberships.values():
            membership.taken()

    def _trouble(self, error: BaseException, what: str) -> None:
        if faults.code_of(error) == faults.PRECONDITION_FAILED:
            found: SettledError = Unavailable(
                f"{what}: the broker ends it, since its node has no copy of the stream now, or waited too long for an "
                "acknowledgement"
            )
        else:
            found = faults.translate(error, what, self._settings)
        log.warning("%s", found)
        if self._refused_at:
            self._refused_at = time.monotonic()
        with self._hand.lock:
            self._hand.fault = Unavailable(str(found), hint="it is tried again")
            self._hand.stir.notify_all()
