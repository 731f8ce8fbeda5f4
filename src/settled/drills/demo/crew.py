"""The worker processes of the demo: started, watched, killed, stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from settled.errors import SettledError

LOOK_EVERY_S = 0.02
STOP_S = 20.0


class Crew:
    """Worker processes that run in `folder`. Leaving ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def start(self) -> str:
        self._started += 1
        name = f"w{self._started}"
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "settled.drills.demo.worker", str(self.folder), name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return name

    def name_of(self, pid: int) -> str:
        return next(name for name, process in self._running.items() if process.pid == pid)

    def kill(self, name: str) -> int:
        """SIGKILL; the process is gone when this returns its id."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        return process.pid

    def until(
        self, done: Callable[[], bool], patience_s: float, failure: str, *, progress: Callable[[], int] = lambda: 0
    ) -> None:
        """Look again and again until `done`. Raises when a worker ended, or nothing moved for `patience_s`."""
        moved, seen = time.monotonic(), -1
        while not done():
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise SettledError(
                        f"worker {name} ended with {process.returncode}:\n{self._last_words(name)}",
                        hint="run it again with --keep DIR and read the logs in DIR",
                    )
            now, found = time.monotonic(), progress()
            if found != seen:
                moved, seen = now, found
            if now - moved > patience_s:
                raise SettledError(
                    f"{failure} for {patience_s:.0f} s", hint="run it again with --keep DIR and read the logs in DIR"
                )
            time.sleep(LOOK_EVERY_S)

    def _last_words(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """SIGTERM to all, then wait for them."""
        for process in self._running.values():
            process.terminate()
        for name, process in self._running.items():
            if process.wait(STOP_S) != 0:
                raise SettledError(f"worker {name} ended with {process.returncode}:\n{self._last_words(name)}")
        self._running.clear()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
