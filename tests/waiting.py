"""Waiting for what other threads and processes do, with a deadline and without guessing how long it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], timeout: float = 40.0, *, every: float = 0.02) -> T:
    """What `condition` returns, once it is true; TimeoutError when it never was."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {timeout:g} s; the last answer was {found!r}")
        pause.wait(every)
