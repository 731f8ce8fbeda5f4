"""Waiting for endings: one thread for each store looks for all who wait, on a connection of its own, and only while
somebody waits. A look is one indexed query; on SQLite none is made before another connection has committed something.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from settled.errors import ContractError, Unavailable
from settled.outcome import Outcome
from settled.store import Asked, Seen

LEAST_S, MOST_S, GROWTH = 0.002, 0.01, 1.25  # from one look to the next, growing while nothing happens
OUTAGE_S = 0.1  # while the store is out of reach
IDLE_S = 10.0  # after so long without anybody who waits, thread and connection end
FIRST_LOOK_S = 2.0  # for the first look at least, however short the caller's bound


def seen_from(row: Sequence[Any]) -> Seen:
    """From a row: identity, frontier, the mark's outcome, whether the mark is the record's own, whether it is held."""
    identity, frontier, outcome, own, quarantined = row
    return Seen(
        identity=identity,
        frontier=frontier,
        outcome=None if outcome is None else Outcome(outcome),
        own=bool(own),
        quarantined=bool(quarantined),
    )


class Watch(Protocol):
    """A store's connection for looking. The watcher's thread alone uses it."""

    def changed(self) -> bool:
        """Whether anything may have been committed since the last call; true where that cannot be known."""
        ...

    def look(self, asked: Sequence[Asked]) -> list[Seen]:
        """What is committed now about each. Raises Unavailable."""
        ...

    def close(self) -> None: ...


class _Waiter:
    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.seen = Seen()
        self.error: Exception | None = None
        self.looked, self.done = threading.Event(), threading.Event()

    def tell(self, seen: Seen) -> None:
        self.seen = seen
        self.looked.set()
        if seen.ended(self.asked):
            self.done.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.looked.set()
        self.done.set()


class Watcher:
    """Any thread may wait; the looking is done by the watcher's own."""

    def __init__(self, watch: Callable[[], Watch]) -> None:
        self._open = watch
        self._changed = threading.Condition()
        self._waiters: set[_Waiter] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    def wait(self, asked: Asked, timeout: float) -> Seen:
        """Return what is seen once the record has ended, or after `timeout` seconds; at least one look is made."""
        waiter = _Waiter(asked)
        deadline = time.monotonic() + timeout
        with self._changed:
            self._require_open()
            self._waiters.add(waiter)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="settled-watcher", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            waiter.looked.wait(max(timeout, FIRST_LOOK_S))
            waiter.done.wait(max(0.0, deadline - time.monotonic()))
        finally:
            with self._changed:
                self._waiters.discard(waiter)
        if waiter.error is not None:
            raise waiter.error
        return waiter.seen

    def close(self) -> None:
        """End the thread and release its connection; who still waits is told so."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _require_open(self) -> None:
        if self._closed:
            raise ContractError("the store is closed", field="store", hint="open it again")

    def _run(self) -> None:
        watch: Watch | None = None
        pause = LEAST_S
        try:
            while self._anybody():
                try:
                    watch = watch or self._open()
                    pause = LEAST_S if self._look(watch) else min(MOST_S, pause * GROWTH)
                except Unavailable as outage:
                    self._tell_outage(outage)
                    pause = OUTAGE_S
                self._pause(pause)
        except Exception as error:  # noqa: BLE001 - raised to all who wait, on their own threads
            self._fail_all(error)
        finally:
            if watch is not None:
                watch.close()

    def _anybody(self) -> bool:
        """Wait for somebody who waits; false: the thread is to end."""
        with self._changed:
            while not self._waiters and not self._closed:
                if not self._changed.wait(IDLE_S) and not self._waiters:
                    self._thread = None
                    return False
            if self._closed:
                for waiter in self._waiters:
                    waiter.fail(ContractError("the store was closed", field="store", hint="wait before closing it"))
                return False
            return True

    def _look(self, watch: Watch) -> bool:
        """One look for all who wait, or for those alone who have just come; whether any of it was news."""
        with self._changed:
            waiting = [waiter for waiter in self._waiters if not waiter.done.is_set()]
        if not watch.changed():
            waiting = [waiter for waiter in waiting if not waiter.looked.is_set()]
        news = False
        for waiter, seen in zip(waiting, watch.look([waiter.asked for waiter in waiting]), strict=True):
            news = news or not waiter.looked.is_set() or waiter.seen != seen
            waiter.tell(seen)
        return news

    def _pause(self, seconds: float) -> None:
        """Until the next look is due, or somebody comes."""
        with self._changed:
            if not self._closed and all(waiter.looked.is_set() for waiter in self._waiters):
                self._changed.wait(seconds)

    def _tell_outage(self, outage: Unavailable) -> None:
        with self._changed:
            for waiter in self._waiters:
                waiter.seen = Seen(why=outage.message)
                waiter.looked.set()

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            self._thread = None
            for waiter in self._waiters:
                waiter.fail(error)
