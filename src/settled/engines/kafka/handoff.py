"""What the member's owner and its fetcher share: news, and lanes with what was fetched. One lock guards it all."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from settled.engine import Assigned, Fetched, Lost, Partition, Revoking, Stopped
from settled.engines.kafka.lane import Lane
from settled.errors import SettledError

MOST_RECORDS, MOST_BYTES = 4_000, 4 * 1024 * 1024  # fetched and not handed out, beyond which nothing is fetched

News = Assigned | Revoking | Lost | Stopped


class HandOff:
    """Methods that say "locked" are called with `lock` held.

    beat        when the fetcher last knew that this is a member, on the monotonic clock
    fault       why nothing comes for now; none when the brokers answer
    fatal       why nothing will come any more
    """

    def __init__(self, lease_s: float) -> None:
        self.lock = threading.RLock()
        self.stir = threading.Condition(self.lock)  # tells the owner
        self.drained = threading.Condition(self.lock)  # tells the fetcher
        self.lanes: dict[Partition, Lane] = {}
        self.news: deque[News] = deque()
        self.beat = time.monotonic()
        self.fault: SettledError | None = None
        self.fatal: SettledError | None = None
        self.woken = False
        self._lease_s = lease_s
        self._turn = 0

    def stale(self) -> bool:
        """The fetcher stood still for so long that the group may have given everything to others."""
        return time.monotonic() - self.beat > self._lease_s / 2

    def full(self) -> bool:
        """Locked."""
        chunks = [chunk for lane in self.lanes.values() for chunk in lane.chunks]
        return sum(len(one.records) for one in chunks) >= MOST_RECORDS or sum(one.size for one in chunks) >= MOST_BYTES

    def tell(self, news: News) -> None:
        """Locked."""
        self.news.append(news)
        self.stir.notify_all()

    def assigned(self, places: Iterable[Partition]) -> None:
        with self.lock:
            for place in places:
                self.lanes[place] = Lane(place)

    def revoke(self, places: Iterable[Partition]) -> None:
        """The owner is asked to give these back; those that it never heard of are given back at once."""
        with self.lock:
            for place in places:
                lane = self.lanes.get(place)
                if lane is None:
                    continue
                lane.revoking = True
                lane.shut()
                if self._unheard(place) or not lane.told:
                    lane.returned = True
                else:
                    self.tell(Revoking(topic=place[0], partition=place[1]))

    def lose(self, places: Iterable[Partition]) -> None:
        with self.lock:
            for place in places:
                lane = self.lanes.pop(place, None)
                if lane is not None:
                    lane.lost = True
                    if lane.told and not self._unheard(place):
                        self.tell(Lost(topic=place[0], partition=place[1]))

    def _unheard(self, place: Partition) -> bool:
        """Locked. Take back an `Assigned` that waits among the news; whether there was one."""
        for one in self.news:
            if isinstance(one, Assigned) and (one.topic, one.partition) == place:
                self.news.remove(one)
                return True
        return False

    def stop(self, lane: Lane, error: Exception) -> None:
        """Locked. It cannot be read further; told once."""
        if not lane.stopped:
            lane.stopped = True
            lane.open = False
            self.tell(Stopped(topic=lane.place[0], partition=lane.place[1], error=error))

    def take(self, records: int, size: int) -> list[Fetched]:
        """Locked. Up to so much of what waits, partitions in turn."""
        waiting = [lane for lane in self.lanes.values() if lane.chunks and lane.wanted]
        if not waiting:
            return []
        self._turn = (self._turn + 1) % len(waiting)
        found: list[Fetched] = []
        for lane in waiting[self._turn :] + waiting[: self._turn]:
            one = lane.take(records, size)
            if one is not None:
                found.append(one)
                records -= len(one.records)
                size -= one.size
            if records <= 0 or size <= 0:
                break
        self.drained.notify_all()
        return found
