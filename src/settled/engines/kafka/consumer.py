"""One member of a group, as its owner sees it: news of partitions first, then records. The fetcher works beside it.

The brokers' committed offset is a cache with a note (`marks`): which epoch committed it, and whether the partition was
given back in good order. Starting a partition notes that it is in use, and waits for the brokers to accept that.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaError

from settled.engine import ConsumerGroup, Delivery, Partition
from settled.engines.kafka.announcing import Look
from settled.engines.kafka.commits import Commits
from settled.engines.kafka.config import Settings
from settled.engines.kafka.faults import translate
from settled.engines.kafka.fetcher import Fetcher
from settled.engines.kafka.handoff import HandOff
from settled.engines.kafka.lane import Lane
from settled.errors import ContractError, Fenced, HistoryLost, SettledError

LOOK_S = 1.0  # the longest wait without a look around
AGAIN_S = 0.3  # until a partition that was given back without being asked for is offered again
REBALANCE_S = 300.0  # how long the group waits for a member that was asked to give a partition back


class KafkaConsumer:
    """One thread owns it; only `wakeup` may be called from others."""

    def __init__(
        self,
        group: ConsumerGroup,
        settings: Settings,
        look: Callable[[str, Sequence[int]], Look],
        closed: Callable[[KafkaConsumer], None],
    ) -> None:
        """`look` tells of partitions what their owner must know; `closed` is called at the end."""
        self.member = group.member or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._look, self._on_close = look, closed
        self._hand = HandOff(group.lease_s)

        def translated(error: KafkaError, what: str, topic: str) -> SettledError:
            return translate(error, what, settings=settings, topic=topic, group=group.group, operation="Read")

        self._commits = Commits(self._hand, translated)
        properties = settings.consumer(**_properties(group, self.member))
        self._fetcher = Fetcher(group, properties, self._hand, self._commits, translated, look)
        self._ended = False
        self._fetcher.start()

    def poll(self, timeout: float, *, records: int, bytes: int) -> list[Delivery]:
        hand = self._hand
        deadline = time.monotonic() + timeout
        with hand.lock:
            while True:
                self._require_open()
                if hand.news:
                    news: list[Delivery] = list(hand.news)
                    hand.news.clear()
                    return news
                if records > 0 and bytes > 0 and not hand.stale():
                    found = hand.take(records, bytes)
                    if found:
                        return list(found)
                if hand.woken:
                    hand.woken = False
                    return []
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                hand.stir.wait(min(left, LOOK_S))
            if hand.fault is not None and timeout > 0 and records > 0:
                raise hand.fault
            return []

    def start(self, topic: str, partition: int, offset: int, *, witness: tuple[int, bytes] | None = None) -> None:
        """Raises Fenced when the partition went to another member meanwhile."""
        lane = self._lane(topic, partition)
        if offset > lane.end:
            look = self._look(topic, [partition])
            lane.begin, lane.end = look.begins[partition], look.ends[partition]
        if offset > lane.end:
            raise HistoryLost(
                f"{topic}/{partition} ends at {lane.end}, before the position {offset} that was reached in it",
                hint="the topic was made anew, or records were lost in an unclean leader election",
            )
        self._commits.mark(lane, offset, lane.mark)
        with self._hand.lock:
            if lane.lost:
                raise _gone(topic, partition)
            lane.begin_at(offset)

    def release(self, topic: str, partition: int, *, clean: bool = True) -> None:
        """A partition that the group did not ask for stays this member's and is announced again."""
        with self._hand.lock:
            lane = self._hand.lanes.get((topic, partition))
            if lane is None or not lane.told:
                return
            if clean and lane.committed is not None:
                lane.committed = lane.committed[0], msgspec.structs.replace(lane.mark, clean=True)
                self._commits.tell([lane])
            if lane.revoking:
                lane.returned = True
            else:
                _offer_again(lane)

    def raise_epoch(self, topic: str, partition: int, at_least: int) -> int:
        """The brokers are asked whether this is still a member."""
        lane = self._lane(topic, partition)
        epoch = max(lane.epoch + 1, at_least)
        mark = msgspec.structs.replace(lane.mark, epoch=epoch)
        noted = lane.committed
        kept = (
            mark if noted is None or lane.position is not None else msgspec.structs.replace(mark, clean=noted[1].clean)
        )
        self._commits.mark(lane, lane.begin if noted is None else noted[0], kept)
        lane.epoch, lane.mark = epoch, mark
        return epoch

    def commit(self, frontiers: Mapping[Partition, int]) -> None:
        """Not waited for. Only for partitions that are this member's and were started; others are left alone."""
        with self._hand.lock:
            moved: list[Lane] = []
            for place, frontier in frontiers.items():
                lane = self._hand.lanes.get(place)
                if lane is not None and lane.position is not None:
                    lane.committed = frontier, lane.mark
                    moved.append(lane)
        self._commits.tell(moved)

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
            self._fetcher.close()
        finally:
            self._on_close(self)

    def _lane(self, topic: str, partition: int) -> Lane:
        self._require_open()
        with self._hand.lock:
            lane = self._hand.lanes.get((topic, partition))
            if lane is None or not lane.told:
                raise _gone(topic, partition)
            return lane

    def _set_paused(self, partitions: Iterable[Partition], paused: bool) -> None:
        with self._hand.lock:
            for place in partitions:
                lane = self._hand.lanes.get(place)
                if lane is not None:
                    lane.paused = paused

    def _require_open(self) -> None:
        if self._ended:
            raise ContractError("this consumer is closed", hint="join again with engine.consumer(...)")
        fatal: SettledError | None = self._hand.fatal
        if fatal is not None:
            raise fatal


def _offer_again(lane: Lane) -> None:
    """It stays this member's: announced again after a moment, under a higher epoch."""
    epoch, opened = lane.epoch, lane.open
    lane.reset()
    lane.epoch, lane.open = epoch, opened
    lane.announce_at = time.monotonic() + AGAIN_S


def _gone(topic: str, partition: int) -> Fenced:
    return Fenced(f"{topic}/{partition} is no longer this member's", hint="stop working on it")


def _properties(group: ConsumerGroup, member: str) -> dict[str, Any]:
    lease_ms = round(group.lease_s * 1000)
    return {
        "group_id": group.group,
        "client_id": member,
        "partition_assignment_strategy": "cooperative-sticky",
        "session_timeout_ms": lease_ms,
        "heartbeat_interval_ms": max(1, min(3000, lease_ms // 4)),
        "max_poll_interval_ms": max(round(REBALANCE_S * 1000), lease_ms),
        "enable_auto_commit": False,
        "enable_auto_offset_store": False,
        "auto_offset_reset": "error",
        "isolation_level": "read_committed",
        "enable_partition_eof": True,
        "check_crcs": True,
        "queued_max_messages_kbytes": 2 * 1024,  # held beside what is in flight, whatever the contract's budget
        "fetch_max_bytes": 1024 * 1024,  # of each broker's answer
        "fetch_queue_backoff_ms": 5,
        "topic_metadata_refresh_interval_ms": 10_000,
    }
