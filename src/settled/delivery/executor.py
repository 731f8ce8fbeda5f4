"""Executor: a thread that runs groups one by one on a store session of its own and reports what became of them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from settled.delivery.attempt import Attempt
from settled.delivery.group import Group, Report
from settled.errors import SettledError


class Executor:
    """Whoever holds the baton (see worker.py) submits; the executor's own thread runs.

    `next_group` is called there with each report and returns what to run next, none: wait to be given something.
    """

    def __init__(
        self, name: str, attempt: Callable[[], Attempt], next_group: Callable[[Executor, Report], Group | None]
    ) -> None:
        self.group: Group | None = None  # what it was given and has not reported; set and cleared under the baton
        self._make, self._next_group = attempt, next_group
        self._attempt: Attempt | None = None
        self._abandoned = False
        self._queue: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def submit(self, group: Group) -> None:
        self._queue.put(group)

    def abandon(self) -> None:
        """What runs now will not be committed. Any thread."""
        self._abandoned = True
        if self._attempt is not None:
            self._attempt.abandon()

    def close(self, timeout: float) -> bool:
        """End the thread once it is idle; false if it is still in a handler after `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        group = self._queue.get()
        while group is not None:
            group = self._next_group(self, self._run(group)) or self._queue.get()
        if self._attempt is not None:
            self._attempt.close()

    def _run(self, group: Group) -> Report:
        try:
            if self._attempt is None:
                self._attempt = self._make()
            if self._abandoned:
                self._attempt.abandon()
            return self._attempt.run(group)
        except SettledError as error:
            return Report(group, [], [], group.close(), error, written=False)
        except Exception as error:  # noqa: BLE001 - whatever it is: the worker ends with it instead of trying for ever
            fault = SettledError(
                f"a group could not be run: {type(error).__name__}: {error}",
                hint="this is a defect in settled; please report it with the traceback",
            )
            fault.__cause__ = error
            return Report(group, [], [], group.close(), fault, written=False)
