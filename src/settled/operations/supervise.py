"""Several workers as processes of their own under one parent: started, told to stop, started again when they die.

The parent's signals go to the children: the first asks them to stop in good order, the second stops them at once.
A child that dies is started again after a growing wait. A child whose parent is gone notices (its standard input
ends) and stops in good order.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from settled.signals import on_signals

FIRST_S, MOST_S = 0.5, 30.0
SOUND_S = 60.0  # a child that ran so long starts again without a wait that grew
LOOK_S = 0.2
INTERRUPTED = 130  # what the command ends with on SIGINT while nothing minds it
FINAL = frozenset({2, 3})  # exit codes that a restart does not mend: what was asked is wrong, or refused


class _Child(msgspec.Struct):
    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    starts: int = 0
    due: float = 0.0
    done: bool = False


class Supervisor:
    """Call `run` from the main thread. `say` tells people what happens to the children."""

    def __init__(
        self, commands: Sequence[tuple[str, Sequence[str]]], *, drain: bool, say: Callable[[str], None]
    ) -> None:
        self._children = [_Child(name, command) for name, command in commands]
        self._drain, self._say = drain, say
        self._signals = 0
        self._lock = threading.Lock()
        self._passed_on = 0
        self._code = 0
        self._wake = threading.Event()

    def run(self) -> int:
        """Until told to stop, or (draining) until all children ended. Returns the exit code: 0 when all ended well."""
        with on_signals(self._told):
            try:
                while not all(child.done for child in self._children):
                    self._pass_signals_on()
                    for child in self._children:
                        self._look_after(child)
                    self._wake.wait(LOOK_S)
                    self._wake.clear()
            finally:
                for child in self._children:
                    if child.process is not None and child.process.poll() is None:
                        child.process.kill()
                        child.process.wait()
                    _forget(child)
        return self._code

    @property
    def _stopping(self) -> bool:
        return self._signals > 0

    def _told(self) -> None:
        """Stop the children; told a second time, at once. Any thread."""
        with self._lock:
            self._signals += 1
        self._wake.set()

    def _pass_signals_on(self) -> None:
        while self._passed_on < min(self._signals, 2):
            self._passed_on += 1
            running = [child for child in self._children if child.process is not None]
            self._say(f"stopping {len(running)} workers" if self._passed_on == 1 else "stopping them at once")
            # Two of one signal may arrive as one where the first is not handled yet; two different ones never do.
            number = signal.SIGTERM if self._passed_on == 1 else signal.SIGINT
            for child in running:
                assert child.process is not None
                child.process.send_signal(number)

    def _look_after(self, child: _Child) -> None:
        if child.done:
            return
        if child.process is None:
            if self._stopping:
                child.done = True
            elif time.monotonic() >= child.due:
                self._start(child)
            return
        code = child.process.poll()
        if code is not None:
            lived = time.monotonic() - child.started
            pid = child.process.pid
            _forget(child)
            self._ended(child, pid, code, lived)

    def _start(self, child: _Child) -> None:
        child.process = subprocess.Popen(child.command, stdin=subprocess.PIPE, process_group=0)
        child.started = time.monotonic()
        child.starts += 1

    def _ended(self, child: _Child, pid: int, code: int, lived: float) -> None:
        if self._stopping and code in (-signal.SIGTERM, -signal.SIGINT, INTERRUPTED):
            code = 0  # it had not begun to work, or was done
        if self._stopping or (self._drain and code >= 0) or code in FINAL:
            child.done = True
            if code and not self._code:
                self._code = code if code > 0 else 1
            if code:
                self._say(f"{child.name} (pid {pid}) ended with {_words(code)}")
            if code in FINAL and not self._stopping:
                self._told()
            return
        if lived >= SOUND_S:
            child.starts = 1
        wait = min(MOST_S, FIRST_S * 2 ** (child.starts - 1))
        child.due = time.monotonic() + wait
        self._say(f"{child.name} (pid {pid}) ended with {_words(code)}; it is started again in {wait:g} s")


def stop_with_parent(stdin: int, stop: Callable[[], None]) -> None:
    """In a child: call `stop` when the parent is gone, which is when its end of the pipe `stdin` closes."""

    def watch() -> None:
        import os

        while os.read(stdin, 1024):
            pass
        stop()

    threading.Thread(target=watch, name="settled-parent", daemon=True).start()


def _forget(child: _Child) -> None:
    if child.process is not None and child.process.stdin is not None:
        child.process.stdin.close()
    child.process = None


def _words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
