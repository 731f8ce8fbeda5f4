"""Waking other threads and processes: every waiter has a FIFO in a folder beside the log, and whoever commits writes a
byte into each. A byte stays until it is read, so a waiter that looks at the log after it emptied its FIFO misses
nothing. Where that fails (rights, a removed folder) waiters still look by themselves now and then.

Two kinds of waiter: `records` (owners that poll) and `members` (the threads that keep memberships alive).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
import uuid
from pathlib import Path
from typing import Literal

Kind = Literal["records", "members"]

_SETTLED_NS = 100_000_000  # a folder unchanged for this long when it was read needs no second look


def wake_folder(log: Path) -> Path:
    return log.with_name(log.name + "-wake")


class Waiter:
    """One thread waits; any thread or process may wake it."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.name = f"{kind}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._path = folder / self.name
        folder.mkdir(mode=0o700, exist_ok=True)
        hidden = folder / f"new-{self.name}"  # publishers remove FIFOs without a reader, so it appears with one
        os.mkfifo(hidden, 0o600)
        self._pipe = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.rename(hidden, self._path)
        self._poll = select.poll()
        self._poll.register(self._pipe, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Whether it was woken."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def drain(self) -> None:
        """Forget the wake-ups so far; look at what they may be about after this, never before."""
        try:
            while len(os.read(self._pipe, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def wake(self) -> None:
        """Any thread of this process."""
        with contextlib.suppress(BlockingIOError):  # full: it will wake anyway
            os.write(self._pipe, b"w")

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._pipe)


class Waker:
    """Writes to the FIFOs of others. Any thread. Never raises: a missed wake-up costs time, nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._pipes: dict[str, int] = {}
        self._seen_ns = -1  # the folder's change time when it was read; -1: read it again
        self._closed = False

    def wake(self, kind: Kind, *, but: str = "") -> None:
        """Wake all waiters of this kind, except the one named `but`."""
        with self._lock:
            if self._closed:
                return
            self._refresh()
            for name, pipe in list(self._pipes.items()):
                if name.startswith(kind) and name != but:
                    self._write(name, pipe)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for name in list(self._pipes):
                os.close(self._pipes.pop(name))

    def _refresh(self) -> None:
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
            if changed_ns == self._seen_ns:
                return
            names = {name for name in os.listdir(self._folder) if not name.startswith("new-")}
        except OSError:
            return
        self._seen_ns = changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else -1
        for name in self._pipes.keys() - names:
            os.close(self._pipes.pop(name))
        for name in names - self._pipes.keys():
            self._open(name)

    def _open(self, name: str) -> None:
        try:
            self._pipes[name] = os.open(self._folder / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENXIO:  # its process is gone
                self._remove(name)

    def _write(self, name: str, pipe: int) -> None:
        try:
            os.write(pipe, b"w")
        except BlockingIOError:
            pass  # full: it will wake anyway
        except OSError:  # no reader any more
            os.close(self._pipes.pop(name))
            self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(self._folder / name)
        except OSError:
            self._seen_ns = -1
