"""A reader without a group: it stands at the end, is woken by whoever appends, and writes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from settled import tail_form
from settled.engine import Fetched, Stopped
from settled.engines.sqlite import reading, topics
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.reading import Cursor
from settled.engines.sqlite.topics import Topic
from settled.engines.sqlite.wake import Waiter, wake_folder
from settled.errors import ContractError
from settled.record import Record


class SqliteTail:
    """One thread owns it; only `wakeup` may be called from others."""

    def __init__(
        self,
        topic: Topic,
        database: Database,
        *,
        after: str | None,
        behind: int,
        limit: int,
        look_s: float,
        closed: Callable[[SqliteTail], None],
    ) -> None:
        """`look_s`: how often to look at the log without having been woken."""
        self._database, self._topic, self._limit = database, topic, limit
        self._behind, self._look_s, self._on_close = behind, look_s, closed
        before = None if after is None else tail_form.read(after, topic.name, topic.identity)
        with database.reading() as connection:
            ends = self._ends(connection)
        self.missed = 0 if before is None else tail_form.passed(topic.name, before, ends)
        self._cursors = [Cursor(topic, number, end) for number, end in enumerate(ends)]
        self._fault: Exception | None = None
        self._turn = 0
        self._woken = self._ended = self._polling = False
        self._lock = threading.Lock()  # of the end, which may come from another thread
        self._waiter = Waiter(wake_folder(database.path), "records")

    @property
    def position(self) -> str:
        return tail_form.write(self._topic.name, self._topic.identity, [cursor.position for cursor in self._cursors])

    @property
    def interruptions(self) -> int:
        return 0  # offsets count all that passes

    def moved(self, position: str, records: Sequence[Record]) -> str:
        return tail_form.moved(position, records)

    def poll(self, timeout: float, *, records: int, bytes: int) -> list[Record]:
        with self._lock:
            self._require_open()
            self._polling = True
        try:
            return self._poll(time.monotonic() + timeout, records, bytes)
        finally:
            with self._lock:
                self._polling = False
                if self._ended:  # by another thread, which left the rest to this one
                    self._waiter.close()

    def _poll(self, deadline: float, records: int, bytes: int) -> list[Record]:
        while True:
            self._require_open()
            self._waiter.drain()
            before = self.missed
            found = self._fetch(records, bytes) if records > 0 and bytes > 0 else []
            if found or self.missed > before:
                return found
            if self._woken:
                self._woken = False
                return []
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            self._waiter.wait(min(left, self._look_s))

    def wakeup(self) -> None:
        with self._lock:
            if not self._ended:
                self._woken = True
                self._waiter.wake()

    def close(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if self._polling:
                self._waiter.wake()
            else:
                self._waiter.close()
        self._on_close(self)

    def _require_open(self) -> None:
        if self._ended:
            raise ContractError("this tail is closed", hint="open another with engine.tail(...)")

    def _fetch(self, records: int, size: int) -> list[Record]:
        if self._fault is not None:
            raise self._fault
        self._keep_up()
        self._turn = (self._turn + 1) % len(self._cursors)
        turned = self._cursors[self._turn :] + self._cursors[: self._turn]
        found: list[Record] = []
        missed = self.missed
        while not (found or self._fault or self.missed > missed):  # holes of compaction are passed over
            fetched = reading.fetch(self._database, turned, records=records, size=size)
            for one in fetched:
                match one:
                    case Fetched(gap_from=gap):
                        found += one.records
                        if gap is not None:
                            self.missed += (one.records[0].offset if one.records else one.next_offset) - gap
                    case Stopped(error=error):
                        self._fault = error
            if not fetched:
                break
        if self._fault is not None and not found:
            raise self._fault
        return found

    def _keep_up(self) -> None:
        """Take up partitions that are new, and pass over everything when that is too much to catch up with."""
        with self._database.reading() as connection:
            ends = self._ends(connection)
        for number in range(len(self._cursors), len(ends)):
            self._cursors.append(Cursor(self._topic, number, 0))
        standing = [cursor.position for cursor in self._cursors]
        late = tail_form.passed(self._topic.name, standing, ends)
        if late > self._behind:
            self.missed += late
            self._cursors = [Cursor(self._topic, number, end) for number, end in enumerate(ends)]

    def _ends(self, connection: Connection) -> list[int]:
        """Where each partition ends now; the topic is known with all of them after that."""
        rows = connection.execute(
            "SELECT next FROM log_partition WHERE topic = ? ORDER BY number", (self._topic.id,)
        ).fetchall()
        if len(rows) != len(self._topic.parts):
            self._topic = topics.find(connection, self._topic.name, self._limit) or self._topic
        return [end for (end,) in rows]
