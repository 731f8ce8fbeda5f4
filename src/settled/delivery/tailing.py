"""Reading a topic without a group, record by record: an ephemeral subscription, told how much passed it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from settled.engine import Tail
from settled.errors import Unavailable
from settled.record import Record

log = logging.getLogger("settled.delivery")

TOGETHER = 1_000
TOGETHER_BYTES = 4 * 1024 * 1024
REST_S = 5.0
AGAIN_S = 2.0  # the longest wait before an engine that was away is asked again


class Tailing:
    """Iterate over it for records as they come; close it, or use it in a `with`. One thread reads; `stop` may be called
    from any. An engine that is away is waited for."""

    def __init__(
        self, tail: Tail, *, idle_s: float | None = None, lost: Callable[[int, int], object] | None = None
    ) -> None:
        """`idle_s`: the iteration ends when nothing came for so long; none: it goes on until `stop`. `lost` is told of
        records that passed: how many, and how often there may have been more, both since it was told last."""
        self._tail, self._idle_s, self._lost = tail, idle_s, lost
        self._given: list[Record] = []  # of the batch: those that the reader has
        self._waiting: deque[Record] = deque()
        self._before = tail.position  # of the batch
        self._stopped = threading.Event()

    @property
    def missed(self) -> int:
        """How many records passed that it was not given, see `Tail.missed`."""
        return self._tail.missed

    @property
    def interruptions(self) -> int:
        """How often records may have passed that `missed` does not count, see `Tail.interruptions`."""
        return self._tail.interruptions

    @property
    def position(self) -> str:
        """Behind the record that was given last. Open the next tail `after` it: what passed in between is counted."""
        return self._tail.moved(self._before, self._given) if self._waiting else self._tail.position

    def poll(self, timeout: float) -> Record | None:
        """The next record, none when none came within `timeout` seconds, or records were passed over. Raises what
        `Tail.poll` raises."""
        if not self._waiting:
            self._before, self._given = self._tail.position, []
            missed, interruptions = self._tail.missed, self._tail.interruptions
            self._waiting.extend(self._tail.poll(timeout, records=TOGETHER, bytes=TOGETHER_BYTES))
            lost = self._tail.missed - missed, self._tail.interruptions - interruptions
            if self._lost is not None and any(lost):
                self._lost(*lost)
        if not self._waiting:
            return None
        self._given.append(self._waiting.popleft())
        return self._given[-1]

    def __iter__(self) -> Iterator[Record]:
        last, outages = time.monotonic(), 0
        while not self._stopped.is_set():
            left = REST_S if self._idle_s is None else self._idle_s - (time.monotonic() - last)
            try:
                record = self.poll(min(REST_S, max(0.0, left)))
            except Unavailable as error:
                if not outages:
                    log.warning("waiting for the engine: %s", error)
                outages += 1
                self._stopped.wait(random.uniform(0.05, min(AGAIN_S, 0.1 * 2 ** min(outages, 10))))
                continue
            outages = 0
            if record is not None:
                yield record
                last = time.monotonic()
            elif left <= 0:
                return

    def stop(self) -> None:
        """Any thread. The iteration ends with the record that it is at."""
        self._stopped.set()
        self._tail.wakeup()

    def close(self) -> None:
        self._tail.close()

    def __enter__(self) -> Tailing:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
