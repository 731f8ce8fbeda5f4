"""Pace: so many rows a second, evenly. What a pause of the work left undone is not made up for by a burst."""

from __future__ import annotations

import time
from collections.abc import Callable

MAKE_UP_S = 0.25  # lateness up to this much is made up for
STEP_S = 0.05


class Pace:
    """`wait` is given seconds and may return early, when all should stop. One thread uses it."""

    def __init__(self, rate: float | None, wait: Callable[[float], object]) -> None:
        self._rate, self._wait = rate, wait
        self._next = 0.0

    @property
    def step(self) -> int | None:
        """How many rows may go at once; none: as many as there are."""
        return None if self._rate is None else max(1, int(self._rate * STEP_S))

    def take(self, rows: int) -> None:
        """Wait until `rows` more may go."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._next < now - MAKE_UP_S:
            self._next = now
        if self._next > now:
            self._wait(self._next - now)
        self._next += rows / self._rate
