"""SIGTERM and SIGINT, minded where they can do no harm: on a thread of their own, or between two records.

A handler in Python runs between any two steps of the main thread: while that holds the lock inside a threading.Event on
which it waits, or in the middle of starting a thread; and not at all while it waits in the operating system, if the
signal came just before. So nothing is done in a handler. The interpreter's own, in C, writes the signal's number to a
pipe the moment it comes (signal.set_wakeup_fd).
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, BinaryIO, cast

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class _Pipe:
    """What the interpreter writes signals to. The main thread only: `open` says whether this is it."""

    def open(self, handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return False
        self.read, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write, False)
        self._replaced = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before: dict[int, Any] = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return True

    def shut(self) -> None:
        """No more comes; what was there before is back. The reader reads to the end, then calls `close`."""
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._replaced)
        os.close(self._write)

    def close(self) -> None:
        os.close(self.read)


class on_signals:
    """While inside, `act` is called once for each SIGTERM or SIGINT, one after the other, on a thread of its own. Only
    the main thread can mind signals: elsewhere this does nothing."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._pipe = _Pipe()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._pipe.open(dict.fromkeys(NUMBERS, _heard)):
            self._thread = threading.Thread(target=self._listen, name="settled-signals", daemon=True)
            self._thread.start()

    def __exit__(self, *exc: object) -> None:
        if self._thread is not None:
            self._pipe.shut()
            self._thread.join()
            self._pipe.close()

    def _listen(self) -> None:
        while number := os.read(self._pipe.read, 1):
            if number[0] in NUMBERS:
                self._act()


def _heard(number: int, frame: FrameType | None) -> None:
    """The pipe has it."""


class interruptible:
    """While inside, the first SIGINT is raised as KeyboardInterrupt by `check`, or while a file of `reads` waits for
    data, and nowhere else; a second one at once, wherever that is. Not on the main thread, it does nothing."""

    def __init__(self) -> None:
        self._pipe = _Pipe()
        self._minding = self._noted = False

    def __enter__(self) -> interruptible:
        self._minding = self._pipe.open({signal.SIGINT: self._heard})
        return self

    def __exit__(self, *exc: object) -> None:
        if self._minding:
            self._pipe.shut()
            self._pipe.close()

    def check(self) -> None:
        if self._noted:
            raise KeyboardInterrupt

    def reads(self, file: BinaryIO) -> BinaryIO:
        """The same bytes, of a pipe or a terminal that may keep its reader waiting."""
        with contextlib.suppress(OSError):
            if self._minding:
                return cast(BinaryIO, io.BufferedReader(_Waiting(file.fileno(), self._pipe.read, self.check)))
        return file

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True


class _Waiting(io.RawIOBase):
    def __init__(self, file: int, signals: int, check: Callable[[], None]) -> None:
        self._file, self._signals, self._check = file, signals, check

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            ready, _, _ = select.select([self._file, self._signals], [], [])
            self._check()
            if self._file in ready:
                return os.readv(self._file, [buffer])
            os.read(self._signals, 1)
