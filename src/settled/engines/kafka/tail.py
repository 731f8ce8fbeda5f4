"""A reader without a group: partitions are assigned by hand at their ends, and nothing is committed for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, TopicPartition

from settled import tail_form
from settled.engines.kafka.announcing import Look
from settled.engines.kafka.config import Settings
from settled.engines.kafka.faults import is_absent
from settled.engines.kafka.reader import NAME, passing
from settled.engines.kafka.records import records_of
from settled.errors import ContractError, HistoryLost, SettledError, Unavailable
from settled.record import Record

TOGETHER = 1_000  # messages taken from librdkafka at a time
REST_S = 0.2  # how long a poll of librdkafka waits: it cannot be woken
AWAY_S = 0.5  # an owner that comes back after so long may be far behind: the ends are asked for
LOOK_S = 5.0  # how often a waiting tail looks for new partitions


class KafkaTail:
    """One thread owns it; only `wakeup` may be called from others."""

    def __init__(
        self,
        topic: str,
        settings: Settings,
        look: Callable[[], Look],
        translated: Callable[[KafkaError, str], SettledError],
        *,
        after: str | None,
        behind: int,
        closed: Callable[[KafkaTail], None],
    ) -> None:
        """`look` tells where the topic's partitions begin and end."""
        self._topic, self._look, self._translated = topic, look, translated
        self._behind, self._on_close = behind, closed
        found = look()
        self._identity = found.identity
        before = None if after is None else tail_form.read(after, topic, found.identity)
        ends = [found.ends[number] for number in range(found.partitions)]
        self.missed = 0 if before is None else tail_form.passed(topic, before, ends)
        self._standing = ends
        self._waiting: deque[tuple[Record, int] | tuple[int, int]] = deque()  # also (partition, offset) of an end
        self._looked = 0.0
        self._fault: SettledError | None = None
        self._woken = threading.Event()
        self._ended = self._polling = False
        self._lock = threading.Lock()  # of the end, which may come from another thread
        self._client = Client(settings.consumer(**_PROPERTIES, error_cb=self._on_error))
        self._assign()

    @property
    def position(self) -> str:
        return tail_form.write(self._topic, self._identity, self._standing)

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
            if records <= 0 or bytes <= 0:
                self._woken.wait(max(0.0, timeout))
                self._woken.clear()
                self._require_open()
                return []
            return self._poll(time.monotonic() + timeout, records, bytes)
        finally:
            with self._lock:
                self._polling = False
                if self._ended:  # by another thread, which left the rest to this one
                    self._client.close()

    def _poll(self, deadline: float, records: int, bytes: int) -> list[Record]:
        before, first = self.missed, True
        while True:
            self._look_around(AWAY_S if first else LOOK_S)
            first = False
            left = deadline - time.monotonic()
            if not self._waiting and self.missed == before:
                self._fetch(0.0 if self._woken.is_set() else min(max(0.0, left), REST_S))
            found = self._hand_out(records, bytes)
            if found or self.missed > before:
                return found
            if self._fault is not None:
                raise self._fault
            self._require_open()
            if self._woken.is_set() or left <= 0:
                self._woken.clear()
                return []

    def wakeup(self) -> None:
        self._woken.set()

    def close(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if self._polling:
                self._woken.set()
            else:
                self._client.close()
        self._on_close(self)

    def _require_open(self) -> None:
        if self._ended:
            raise ContractError("this tail is closed", hint="open another with engine.tail(...)")

    def _assign(self) -> None:
        """Read on from where it stands, whatever waited before."""
        self._waiting.clear()
        self._client.assign(
            [TopicPartition(self._topic, number, offset) for number, offset in enumerate(self._standing)]
        )

    def _look_around(self, every_s: float) -> None:
        """Take up partitions that are new; pass over everything when that is too much to catch up with."""
        now = time.monotonic()
        if now - self._looked < every_s:
            return
        found = self._look()
        self._looked = now
        if found.identity != self._identity:
            self._fault = HistoryLost(
                f"topic {self._topic!r} was made anew", hint="open another tail, and read afresh what it tells of"
            )
            raise self._fault
        new = found.partitions - len(self._standing)
        self._standing += [0] * new
        late = sum(max(0, found.ends[number] - offset) for number, offset in enumerate(self._standing))
        if late > self._behind:
            self.missed += late
            self._standing = [max(offset, found.ends[number]) for number, offset in enumerate(self._standing)]
        if late > self._behind or new:
            self._assign()

    def _fetch(self, wait_s: float) -> None:
        first = self._client.poll(wait_s)
        if first is None:
            return
        run: list[Any] = []
        for message in [first, *self._client.consume(TOGETHER, timeout=0)]:
            if message.error() is not None:
                self._take(run)
                run = []
                if self._take_error(message):
                    return
            else:
                if run and message.partition() != run[-1].partition():
                    self._take(run)
                    run = []
                run.append(message)
        self._take(run)

    def _take(self, run: list[Any]) -> None:
        if run:
            self._waiting.extend(zip(*records_of(run, self._topic, run[0].partition()), strict=True))

    def _take_error(self, message: Any) -> bool:
        """Whether what was fetched after it is to be forgotten: it stands elsewhere now."""
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            self._waiting.append((message.partition(), message.offset()))
            return False
        if passing(error) or is_absent(error):  # a topic that is gone is found by the next look around
            return False
        found = self._translated(error, f"reading the end of topic {self._topic!r}")
        if not isinstance(found, HistoryLost):
            self._on_error(error)
            return False
        look = self._look()
        for number, offset in enumerate(self._standing):
            if offset > look.ends[number]:
                self._fault = tail_form.gone_back(self._topic, number, offset, look.ends[number])
            elif offset < look.begins[number]:  # retention was faster
                self.missed += look.begins[number] - offset
                self._standing[number] = look.begins[number]
        self._assign()
        return True

    def _hand_out(self, records: int, size: int) -> list[Record]:
        found: list[Record] = []
        while self._waiting:
            one, extent = self._waiting[0]
            if isinstance(one, int):
                self._standing[one] = max(self._standing[one], extent)
                self._waiting.popleft()
                continue
            if found and (len(found) >= records or extent > size):
                break
            self._waiting.popleft()
            found.append(one)
            size -= extent
            self._standing[one.partition] = one.offset + 1
        return found

    def _on_error(self, error: KafkaError) -> None:
        """What the client cannot go on from; brokers that are away come back."""
        found = self._translated(error, f"reading the end of topic {self._topic!r}")
        if error.fatal() or not (isinstance(found, Unavailable) or is_absent(error)):
            self._fault = found


_PROPERTIES: dict[str, Any] = {
    "group_id": NAME,  # the client demands a group's name; it is never joined
    "enable_auto_commit": False,
    "enable_auto_offset_store": False,
    "auto_offset_reset": "error",
    "isolation_level": "read_committed",
    "enable_partition_eof": True,
    "check_crcs": True,
    "queued_max_messages_kbytes": 2 * 1024,
    "fetch_queue_backoff_ms": 5,
}
