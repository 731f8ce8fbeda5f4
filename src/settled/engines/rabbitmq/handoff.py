"""What a consumer's owner and the connection's thread share, under one lock: news, slots, and claims that wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Generic, Protocol, TypeVar

from settled.engine import Assigned, Fetched, Lost, Partition, Revoking, Stopped
from settled.errors import SettledError
from settled.record import Record

News = Assigned | Revoking | Lost | Stopped
BUDGET = 8 * 1024 * 1024  # expanded bytes of claims that wait in one slot, about
EPOCH_BITS = 32  # claims of an epoch are numbered from its own beginning: no number is ever given twice


class Claim:
    """A message that the broker handed out and that is not acknowledged. `before`: how often it was handed out before
    without an end; `mine`: all of these were in this process, which lives."""

    __slots__ = ("before", "mine", "number", "record", "size", "tag")

    def __init__(self, number: int, tag: int, record: Record, size: int, before: int, *, mine: bool) -> None:
        self.number, self.tag, self.record, self.size = number, tag, record, size
        self.before, self.mine = before, mine


class Slot:
    """A slot from its lock to its loss or release; another object after that. Under the hand-off's lock.

    next        the number of the next claim
    held        the owner wants nothing of it for now
    waiting     claims that the owner has not fetched
    unended     claims that are not acknowledged, numbers rising
    average     expanded bytes of a message, as far as seen
    """

    def __init__(self, topic: str, number: int, epoch: int) -> None:
        self.topic, self.number, self.epoch = topic, number, epoch
        self.next = -1  # not started
        self.began = 0
        self.frontier = 0
        self.held = False
        self.waiting: deque[Claim] = deque()
        self.waiting_bytes = 0
        self.unended: deque[Claim] = deque()
        self.average = 0.0

    @property
    def place(self) -> Partition:
        return self.topic, self.number

    @property
    def paused(self) -> bool:
        return self.held

    def start(self, offset: int) -> None:
        self.next = max(offset, self.epoch << EPOCH_BITS)
        self.began = self.next
        self.frontier = offset

    def add(self, claim: Claim) -> None:
        self.waiting.append(claim)
        self.unended.append(claim)
        self.waiting_bytes += claim.size
        self.next += 1
        self.average = claim.size if not self.average else self.average + (claim.size - self.average) / 16

    def take(self, records: int, size: int) -> Fetched | None:
        """Up to so many claims and bytes, one at least."""
        taken: list[Record] = []
        again: dict[int, int] = {}
        total = 0
        while self.waiting and len(taken) < records:
            claim = self.waiting[0]
            if taken and total + claim.size > size:
                break
            self.waiting.popleft()
            self.waiting_bytes -= claim.size
            taken.append(claim.record)
            total += claim.size
            if claim.before:
                again[claim.number] = 0 if claim.mine else claim.before
        if not taken:
            return None
        return Fetched(
            topic=self.topic,
            partition=self.number,
            records=taken,
            next_offset=taken[-1].offset + 1,
            size=total,
            again=again,
        )

    def end(self, frontier: int) -> int:
        """Forget the claims below the frontier; the last one's delivery tag, 0: there was none."""
        tag = 0
        while self.unended and self.unended[0].number < frontier:
            tag = self.unended.popleft().tag
        return tag


class Held(Protocol):
    """A slot or a lane, as the hand-off knows it. `waiting`: what the owner has not fetched, with sizes."""

    topic: str
    number: int
    held: bool
    waiting: deque[Any]

    @property
    def place(self) -> Partition: ...

    @property
    def paused(self) -> bool: ...

    def take(self, records: int, size: int) -> Fetched | None: ...


H = TypeVar("H", bound=Held)


class HandOff(Generic[H]):
    """`fault`: why nothing comes at the moment. `asked`: the most records and bytes that a poll asked for."""

    def __init__(self, lease_s: float) -> None:
        self.lock = threading.Lock()
        self.stir = threading.Condition(self.lock)
        self.news: deque[News] = deque()
        self.slots: dict[Partition, H] = {}
        self.told: set[Partition] = set()  # whose Assigned the owner has seen
        self.asked_records = self.asked_bytes = 0
        self.woken = self.idle = False
        self.fault: SettledError | None = None
        self._lease_s = lease_s
        self._beat = self._looked = time.monotonic()
        self._turn = 0

    def beat(self) -> None:
        """The connection's thread works. The first beat after it stood still does not count: what happened meanwhile
        is seen by the next."""
        now = time.monotonic()
        if now - self._looked < self._lease_s / 2:
            self._beat = now
        self._looked = now

    def stale(self) -> bool:
        """The connection's thread stood still for so long that slots may be others' by now."""
        return time.monotonic() - self._beat > self._lease_s

    def gained(self, slot: H, assigned: Assigned) -> None:
        with self.lock:
            self.slots[slot.place] = slot
            self.told.discard(slot.place)
            self.news.append(assigned)
            self.stir.notify_all()

    def lost(self, slot: H) -> None:
        """It is not this member's any more. An announcement that nobody has seen is taken back."""
        with self.lock:
            if self.slots.get(slot.place) is not slot:
                return
            del self.slots[slot.place]
            if slot.place in self.told:
                self.told.discard(slot.place)
                self.news.append(Lost(topic=slot.topic, partition=slot.number))
            else:
                self.news = deque(
                    news for news in self.news if not (isinstance(news, Assigned) and _place(news) == slot.place)
                )
            self.stir.notify_all()

    def take_news(self) -> list[News]:
        """With the lock."""
        news = list(self.news)
        self.news.clear()
        self.told |= {_place(each) for each in news if isinstance(each, Assigned)}
        return news

    def take(self, records: int, size: int) -> list[Fetched]:
        """With the lock. Claims of the slots, each time beginning with another one."""
        self.asked_records, self.asked_bytes = max(records, self.asked_records), max(size, self.asked_bytes)
        slots = [slot for slot in self.slots.values() if slot.waiting and not slot.paused]
        self._turn += 1
        found: list[Fetched] = []
        for number in range(len(slots)):
            slot = slots[(number + self._turn) % len(slots)]
            if records <= 0 or (found and size <= 0):
                break
            if found and slot.waiting[0].size > size:
                continue
            fetched = slot.take(records, size)
            if fetched is not None:
                found.append(fetched)
                records -= len(fetched.records)
                size -= fetched.size
        return found


def _place(news: News) -> Partition:
    return news.topic, news.partition
