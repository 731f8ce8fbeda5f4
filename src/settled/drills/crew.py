"""The crew: the drill's hold on its processes. One fork server does the forking; a thread takes its answers."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from settled.drills import order as orders
from settled.drills.order import Order
from settled.errors import Unavailable

COMMAND = (sys.executable, "-m", "settled.drills.worker")
START_S = 60.0


class Process:
    """One process of the drill. Any thread."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.pid = 0
        self.started = time.monotonic()
        self.ended = 0.0  # monotonic; 0 while it runs
        self.stopped = False  # by SIGSTOP
        self.status: int | None = None
        self.told = False  # it was sent SIGTERM

    @property
    def alive(self) -> bool:
        return self.status is None

    @property
    def killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def code(self) -> int:
        """The exit code; minus the signal if one ended it; none yet: -1000."""
        return -1000 if self.status is None else os.waitstatus_to_exitcode(self.status)


class Crew:
    """Starts processes and sees them end. Close it. `command` starts the fork server."""

    def __init__(self, command: Sequence[str] = COMMAND, *, env: dict[str, str] | None = None) -> None:
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
        )
        self._numbers = itertools.count(1)
        self._processes: dict[int, Process] = {}
        self._news = threading.Condition()
        self._gone = False
        self._thread = threading.Thread(target=self._listen, name="drill-crew", daemon=True)
        self._thread.start()

    def start(self, **fields: Any) -> Process:
        """Start a process (see `order.Order` for the fields) and wait until it has its pid."""
        order = Order(number=next(self._numbers), **fields)
        process = Process(order)
        with self._news:
            self._processes[order.number] = process
            self._write(orders.encode(order) + b"\n")
            if not self._news.wait_for(lambda: process.pid or self._gone, START_S) or not process.pid:
                raise Unavailable("the drill's fork server does not answer", hint="look at what it printed above")
        return process

    def wait(self, processes: Sequence[Process], seconds: float) -> None:
        """Until one of them that runs has ended or stopped, or the time is over."""
        before = [(each.alive, each.stopped) for each in processes]
        with self._news:
            self._news.wait_for(lambda: [(each.alive, each.stopped) for each in processes] != before, seconds)

    def wait_ended(self, process: Process, seconds: float) -> bool:
        with self._news:
            return self._news.wait_for(lambda: not process.alive, seconds)

    def wait_stopped(self, process: Process, seconds: float) -> bool:
        """Whether it stopped (or ended) in time."""
        with self._news:
            return self._news.wait_for(lambda: process.stopped or not process.alive, seconds)

    def send(self, process: Process, number: signal.Signals) -> None:
        """Send a signal to a process that has not been seen to end."""
        with self._news:
            if process.alive:
                if number == signal.SIGCONT:
                    process.stopped = False
                process.told = process.told or number == signal.SIGTERM
                try:
                    os.kill(process.pid, number)
                except ProcessLookupError:
                    return

    def terminate(self, process: Process) -> None:
        """Ask it to end."""
        self.send(process, signal.SIGTERM)

    def end(self, process: Process, seconds: float = 10.0) -> None:
        """Kill it and see it gone."""
        self.send(process, signal.SIGKILL)
        self.wait_ended(process, seconds)

    def close(self) -> None:
        with self._news:
            if self._server.stdin is not None:
                self._server.stdin.close()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._thread.join()
        if self._server.stdout is not None:
            self._server.stdout.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(line)
        self._server.stdin.flush()

    def _listen(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            answer = orders.answer_of(line)
            with self._news:
                process = self._processes[answer.number]
                process.pid = answer.pid
                if answer.status is not None and os.WIFSTOPPED(answer.status):
                    process.stopped = True
                elif answer.status is not None:
                    process.status, process.ended = answer.status, time.monotonic()
                self._news.notify_all()
        with self._news:
            self._gone = True
            for process in self._processes.values():
                if process.status is None:
                    process.status, process.ended = signal.SIGKILL, time.monotonic()
            self._news.notify_all()
