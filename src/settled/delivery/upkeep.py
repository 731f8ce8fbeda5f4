"""Upkeep: old records leave the log and old marks leave the inbox, on a thread of its own and in small steps, so that
neither publishing nor settling waits for it. Every worker does it; what one has removed the next does not find.
"""

from __future__ import annotations

import logging
import threading
import time

from settled.engine import Engine
from settled.errors import SettledError
from settled.store import Store

log = logging.getLogger("settled.delivery")

RETENTION_S = 10.0  # how often the log's retention is applied, and compaction
STOP_S = 1.0  # how long a worker that stops waits for it; what it does may be broken off at any instant
PRUNE_S = 1.0  # how often marks are looked at, for at most PRUNE_FOR_S
PRUNE_FOR_S = 0.05


class Upkeep:
    """Runs from `start` to `stop`. A failure is logged and tried again later: upkeep stops nothing else."""

    def __init__(self, engine: Engine, store: Store, consumer: str, horizon_s: float | None) -> None:
        """`horizon_s` none: no marks are removed."""
        self._engine, self._store, self._consumer, self._horizon_s = engine, store, consumer, horizon_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="settled-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def _loop(self) -> None:
        retained = time.monotonic()
        while not self._stopping.wait(PRUNE_S):
            try:
                if time.monotonic() - retained >= RETENTION_S:
                    retained = time.monotonic()
                    self._engine.maintain()
                if self._horizon_s is not None:
                    self._prune(self._horizon_s)
            except SettledError as error:
                if not self._stopping.is_set():  # else the log is closed already, and a long pass ends here
                    log.warning("upkeep is put off: %s", error)

    def _prune(self, horizon_s: float) -> None:
        until = time.monotonic() + PRUNE_FOR_S
        while not self._stopping.is_set() and time.monotonic() < until:
            if not self._store.prune(self._consumer, older_than_s=horizon_s):
                return  # a sweep is complete
