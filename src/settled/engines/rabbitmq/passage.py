"""What came to a tail and waits for its owner, and what passed. The connection's thread and the owner share it, under
`changed`.

Which number of a session is news is decided when a message comes. Where the tail stands, as its position tells, follows
when the owner takes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from pika.spec import BasicProperties

from settled.engines.rabbitmq.records import record_of
from settled.engines.rabbitmq.sessions import MOST, Sessions, said
from settled.record import Record

BYTES = 32 * 1024 * 1024  # expanded, that wait at most


class Came:
    """A record; its session was heard to before `following`, empty: it has none."""

    __slots__ = ("following", "record", "session", "size")

    def __init__(self, record: Record, size: int, session: str, following: int) -> None:
        self.record, self.size, self.session, self.following = record, size, session, following


class Passed:
    """Records that the owner is not given, and how far sessions were heard with them. `interrupted`: there may have
    been others, which nobody counted."""

    __slots__ = ("count", "interrupted", "reached")

    def __init__(self) -> None:
        self.count, self.interrupted = 0, False
        self.reached: dict[str, int] = {}

    def move(self, session: str, following: int) -> None:
        if session:
            self.reached.pop(session, None)
            self.reached[session] = following
            if len(self.reached) > MOST:
                del self.reached[next(iter(self.reached))]


class Passage:
    """Of a tail that stood at `sessions`. With more than `behind` records waiting, all of them pass."""

    def __init__(self, topic: str, sessions: Sessions, behind: int, now: Callable[[], int]) -> None:
        self.changed = threading.Condition()
        self.missed = self.interruptions = 0  # as the owner knows
        self.standing = sessions
        self._topic, self._behind, self.now = topic, behind, now
        self._heard = Sessions(sessions.since_us, sessions.reached, whole=sessions.whole)
        self._waiting: deque[Came | Passed] = deque()
        self._records = self._bytes = 0  # waiting
        self._over: Passed | None = None  # too much waited: what comes passes until the owner is back
        self._count = 0  # records that were given, wait, or passed
        self._given: list[Came] = []

    def __bool__(self) -> bool:
        """With the lock. Whether the owner has something to take."""
        return bool(self._waiting)

    # The connection's thread.

    def come(self, properties: BasicProperties, body: bytes) -> None:
        now = self.now()
        place = said(properties.headers, now)
        with self.changed:
            session, following = "", 0
            if place is not None:
                passed = self._heard.passed(place)
                if passed is None:
                    return
                session, following = place.session, place.number + 1
                if passed:
                    self._pass(passed, session, place.number)
                self._heard.move(session, following, now)
            self._add(properties, body, session, following)
            self.changed.notify()

    def interrupt(self) -> None:
        with self.changed:
            self._heard.whole = False
            self._passed().interrupted = True
            self.changed.notify()

    def _add(self, properties: BasicProperties, body: bytes, session: str, following: int) -> None:
        if self._over is None and (self._records >= self._behind or self._bytes + len(body) > BYTES):
            self._pass_over()
        if self._over is not None:
            self._pass(1, session, following)
            return
        record, size = record_of(self._topic, 0, self._count, properties, body)
        self._waiting.append(Came(record, size, session, following))
        self._count += 1
        self._records += 1
        self._bytes += size

    def _passed(self) -> Passed:
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, Passed):
            return last
        found = Passed()
        self._waiting.append(found)
        return found

    def _pass(self, count: int, session: str, following: int) -> None:
        found = self._passed()
        found.count += count
        found.move(session, following)
        self._count += count

    def _pass_over(self) -> None:
        """All that waits."""
        over = Passed()
        for one in self._waiting:
            if isinstance(one, Came):
                over.count += 1
                over.move(one.session, one.following)
            else:
                over.count += one.count
                over.interrupted = over.interrupted or one.interrupted
                for session, following in one.reached.items():
                    over.move(session, following)
        self._waiting = deque([over])
        self._records = self._bytes = 0
        self._over = over

    # The owner, with the lock.

    def take(self, records: int, size: int) -> list[Record]:
        """The next records, in order; none: some passed, or it was interrupted."""
        now = self.now()
        self._given = []
        first = self._waiting[0]
        if isinstance(first, Passed):
            self._waiting.popleft()
            self._over = None
            self.missed += first.count
            self.interruptions += first.interrupted
            for session, following in first.reached.items():
                self.standing.move(session, following, now)
            return []
        while self._waiting and isinstance(one := self._waiting[0], Came):
            if self._given and (len(self._given) >= records or one.size > size):
                break
            self._waiting.popleft()
            self._records -= 1
            self._bytes -= one.size
            size -= one.size
            self._given.append(one)
            if one.session:
                self.standing.move(one.session, one.following, now)
        return [one.record for one in self._given]

    def places(self, records: Sequence[Record]) -> list[Came]:
        """Of the first records that were taken last."""
        return self._given[: len(records)]
