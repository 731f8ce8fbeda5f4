"""A relay inside a worker's process, for those who run no relay of their own: it starts when there is something to
relay, at the first `tx.publish` or when the outbox holds rows already, and costs nothing before that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from settled.errors import SettledError
from settled.outbox.relay import Relay
from settled.store import Store

log = logging.getLogger("settled.outbox")


class RelayBeside:
    """While inside, what handlers publish through `store` is relayed by a thread. `make` gives a new relay.

    at_once          start now; else when there is something to relay
    drain            on leaving without an error, relay what is left first
    """

    def __init__(self, make: Callable[[], Relay], store: Store, *, at_once: bool = False, drain: bool = False) -> None:
        self._make, self._store, self._at_once, self._drain = make, store, at_once, drain
        self._lock = threading.Lock()
        self._relay: Relay | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RelayBeside:
        if self._at_once or self._holds_rows():
            self._start()
        else:
            self._store.on_publish = self._start
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._store.on_publish = _nothing
            relay, thread = self._relay, self._thread
        if relay is not None and thread is not None:
            relay.stop()
            thread.join()
            if self._drain and error is None:
                self._make().run(drain=True)

    def _holds_rows(self) -> bool:
        return bool(self._store.outbox.rows(states=("pending", "failing"), limit=1))

    def _start(self) -> None:
        with self._lock:
            self._store.on_publish = _nothing
            if self._thread is None:
                self._relay = self._make()
                self._thread = threading.Thread(target=self._run, args=(self._relay,), name="settled-relay")
                self._thread.start()

    def _run(self, relay: Relay) -> None:
        try:
            relay.run()
        except SettledError as error:
            log.error("the relay in this process ended; what is published stays in the outbox: %s", error)


def _nothing() -> None:
    """Nobody need be told."""
