"""One member of a group, as its owner sees it: news of partitions first, then records, else a wait that costs nothing.

The heartbeat thread works beside it and speaks to it through an inbox. Records are decoded here, in the owner's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from settled import clock
from settled.engine import Assigned, ConsumerGroup, Delivery, Fetched, Lost, Partition, Revoking, Stopped
from settled.engines.sqlite import reading
from settled.engines.sqlite.database import Database
from settled.engines.sqlite.heartbeat import Heartbeat
from settled.engines.sqlite.membership import Membership
from settled.engines.sqlite.pool import next_due_us
from settled.engines.sqlite.reading import Cursor
from settled.engines.sqlite.removals import Removals
from settled.engines.sqlite.runs import Reader
from settled.engines.sqlite.slots import Slot
from settled.engines.sqlite.wake import Waiter, Waker, wake_folder
from settled.errors import ContractError, Damaged, Fenced, HistoryLost, SettledError

DUE_S = 0.005  # waited at least for what is due: it may be that it cannot be claimed just now


class _Lane:
    """An assigned partition. It is fetched while it has a cursor and nothing holds it."""

    __slots__ = ("cursor", "paused", "revoking", "stopped")

    def __init__(self) -> None:
        self.cursor: Cursor | Slot | None = None
        self.paused = self.revoking = self.stopped = False

    @property
    def flowing(self) -> bool:
        return self.cursor is not None and not (self.paused or self.revoking or self.stopped)


class SqliteConsumer:
    """One thread owns it; only `wakeup` may be called from others."""

    def __init__(
        self,
        group: ConsumerGroup,
        database: Database,
        waker: Waker,
        *,
        limit: int,
        look_s: float,
        closed: Callable[[SqliteConsumer], None],
    ) -> None:
        """`look_s`: how often to look at the log without having been woken."""
        self._database, self._waker, self._look_s, self._on_close = database, waker, look_s, closed
        self._membership = Membership(database, group, limit)
        self.member = self._membership.name
        self._lanes: dict[Partition, _Lane] = {}
        self._batches = Reader()
        self._removals = Removals(database, self._membership.owns, self._freed)
        self._turn = 0
        self._woken = self._ended = False
        folder = wake_folder(database.path)
        self._waiter = Waiter(folder, "records")
        beat = Waiter(folder, "members")
        self._beat = beat
        self._heartbeat = Heartbeat(self._membership, beat, waker, self._waiter)
        try:
            first = self._membership.join()
        except BaseException:
            self._waiter.close()
            beat.close()
            raise
        self._heartbeat.start(first)

    def poll(self, timeout: float, *, records: int, bytes: int) -> list[Delivery]:
        self._require_open()
        deadline = time.monotonic() + timeout
        while True:
            self._waiter.drain()
            news = self._news()
            if news:
                return news
            if records > 0 and bytes > 0:
                found = self._fetch(records, bytes)
                if found:
                    return found
            if self._woken:
                self._woken = False
                return []
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            self._waiter.wait(min(left, self._look_s, self._due_s() if records > 0 else left))

    def start(self, topic: str, partition: int, offset: int, *, witness: tuple[int, bytes] | None = None) -> None:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            raise Fenced(f"{topic}/{partition} is no longer this member's", hint="stop working on it")
        found = self._membership.topics[topic]
        if found.queue:
            lane.cursor = Slot(self._database, self._batches, found, partition, offset)
            self._removals.note(found.id, partition, offset)
        else:
            cursor = Cursor(found, partition, offset)
            reading.check_start(self._database, cursor, witness)
            lane.cursor = cursor
        lane.stopped = False

    def release(self, topic: str, partition: int, *, clean: bool = True) -> None:
        lane = self._lanes.pop((topic, partition), None)
        if lane is not None and isinstance(lane.cursor, Slot):
            self._removals.finish(lane.cursor.topic.id, partition)
        if self._membership.release((topic, partition), clean=clean):
            self._waker.wake("members", but=self._beat.name)
            self._heartbeat.hurry()

    def raise_epoch(self, topic: str, partition: int, at_least: int) -> int:
        return self._membership.raise_epoch((topic, partition), at_least)

    def commit(self, frontiers: Mapping[Partition, int]) -> None:
        if frontiers:
            self._membership.commit(dict(frontiers))
        for (name, number), frontier in frontiers.items():
            topic = self._membership.topics[name]
            if topic.queue:
                self._removals.note(topic.id, number, frontier)

    def pause(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            if partition in self._lanes:
                self._lanes[partition].paused = True

    def resume(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            if partition in self._lanes:
                self._lanes[partition].paused = False

    def wakeup(self) -> None:
        self._woken = True
        self._waiter.wake()

    def close(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._removals.close()
        self._heartbeat.end()
        try:
            news = self._heartbeat.inbox
            self._membership.leave({(one.topic, one.partition) for one in news if isinstance(one, Assigned)})
        finally:
            self._waker.wake("members", but=self._beat.name)
            self._waiter.close()
            self._beat.close()
            self._on_close(self)

    def _require_open(self) -> None:
        if self._ended:
            raise ContractError("this consumer is closed", hint="join again with engine.consumer(...)")
        fault = self._heartbeat.fault
        if fault is not None and not isinstance(fault, HistoryLost | Damaged):
            raise fault

    def _news(self) -> list[Delivery]:
        fault = self._heartbeat.fault
        if fault is not None:
            return self._stop_all(fault)
        news: list[Delivery] = []
        while self._heartbeat.inbox:
            one = self._heartbeat.inbox.popleft()
            news.append(one)
            if isinstance(one, Assigned):
                self._lanes[one.topic, one.partition] = _Lane()
            elif isinstance(one, Lost):
                self._lanes.pop((one.topic, one.partition), None)
            elif isinstance(one, Revoking) and (one.topic, one.partition) in self._lanes:
                self._lanes[one.topic, one.partition].revoking = True
        return news

    def _stop_all(self, fault: SettledError) -> list[Delivery]:
        """The file itself is not what it was: every partition stops, each told once."""
        stopped: list[Delivery] = []
        for (topic, number), lane in self._lanes.items():
            if not lane.stopped:
                lane.stopped = True
                stopped.append(Stopped(topic=topic, partition=number, error=fault))
        return stopped

    def _fetch(self, records: int, size: int) -> list[Delivery]:
        """From partitions of logs or from slots of queues, whose turn it is; if there is nothing, from the others."""
        cursors = [lane.cursor for lane in self._lanes.values() if lane.flowing and lane.cursor is not None]
        if not cursors:
            return []
        if self._heartbeat.stale():
            self._heartbeat.hurry()
            return []
        if self._heartbeat.inbox:  # a lease that is new again came with news: those first
            return []
        self._turn = (self._turn + 1) % len(cursors)
        cursors = cursors[self._turn :] + cursors[: self._turn]
        flowing = [cursor for cursor in cursors if isinstance(cursor, Cursor)]
        slots = [cursor for cursor in cursors if isinstance(cursor, Slot)]
        if isinstance(cursors[0], Slot):
            return self._claim(slots, records, size) or (self._read(flowing, records, size) if flowing else [])
        return self._read(flowing, records, size) or self._claim(slots, records, size)

    def _claim(self, slots: list[Slot], records: int, size: int) -> list[Delivery]:
        """From one slot after the other, until there is no more room or nothing to claim."""
        found: list[Delivery] = []
        for slot in slots:
            owns = partial(self._membership.owns, topic=slot.topic.id, number=slot.number)
            ordered = self._membership.spec.ordered
            one, passed_on = slot.fetch(self._database, owns, ordered=ordered, records=records, size=size)
            if passed_on:
                self._waker.wake("records")
            if one is None:
                continue
            found.append(one)
            if isinstance(one, Stopped):
                self._lanes[one.topic, one.partition].stopped = True
                continue
            records -= len(one.records)
            size -= one.size
            if records <= 0 or size <= 0:
                break
        return found

    def _due_s(self) -> float:
        """Seconds until the first scheduled record is due of a queue in which this member could claim it."""
        cursors = [lane.cursor for lane in self._lanes.values() if lane.flowing]
        queues = {cursor.topic.id for cursor in cursors if isinstance(cursor, Slot)}
        due_us = next_due_us(self._database, queues) if queues else None
        return float("inf") if due_us is None else max(DUE_S, (due_us - clock.wall_us()) / 1e6)

    def _freed(self) -> None:
        """Claims went: a key that was bound to one of this member's slots may be claimed by others."""
        if self._membership.spec.ordered:
            self._waker.wake("records")

    def _read(self, flowing: list[Cursor], records: int, size: int) -> list[Delivery]:
        try:
            found = reading.fetch(self._database, flowing, records=records, size=size)
        except HistoryLost as fault:
            return self._stop_all(fault)
        except Damaged:
            found = self._fetch_one_by_one(flowing, records, size)
        for one in found:
            if isinstance(one, Stopped):
                self._lanes[one.topic, one.partition].stopped = True
        return list(found)

    def _fetch_one_by_one(self, cursors: list[Cursor], records: int, size: int) -> list[Fetched | Stopped]:
        """The file's own structure is damaged somewhere: find out where, and serve the others."""
        found: list[Fetched | Stopped] = []
        for cursor in cursors:
            try:
                found += reading.fetch(self._database, [cursor], records=records, size=size)
            except Damaged as error:
                found.append(Stopped(topic=cursor.topic.name, partition=cursor.number, error=error))
            if any(isinstance(one, Fetched) for one in found):
                break
        return found
