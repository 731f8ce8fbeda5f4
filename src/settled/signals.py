"""SIGTERM and SIGINT, minded on a thread of their own.

A signal handler runs between any two steps of the main thread, also while that holds the lock inside a threading.Event
on which it waits: setting the event there would wait for itself for ever. So the handler only writes to a pipe.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class on_signals:
    """While inside, `act` is called once for each SIGTERM or SIGINT, one after the other, on a thread of its own. Only
    the main thread can mind signals: elsewhere this does nothing."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._before: dict[int, Any] = {}
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name="settled-signals", daemon=True)
        self._thread.start()
        for number in NUMBERS:
            self._before[number] = signal.signal(number, self._heard)

    def __exit__(self, *exc: object) -> None:
        if self._thread is None:
            return
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        os.write(self._write, b"s")

    def _listen(self) -> None:
        while os.read(self._read, 1):
            self._act()
