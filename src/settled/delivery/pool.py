"""Pool: the executors of one worker, and whether one may be given work. Whoever holds the baton uses it (worker.py).

Threads of one interpreter that compute only hinder one another, so no more of them work than `flow.Width` says. One
that is stuck in a slow record, or runs the record of a key that is known to be slow, does not count: another goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from settled.delivery.executor import Executor
from settled.delivery.flow import Width
from settled.delivery.group import Group


class Pool:
    """`patience_s`: how long an executor may be silent before it counts as stuck."""

    def __init__(self, executors: Sequence[Executor], *, adaptive: bool, patience_s: float) -> None:
        self.executors, self.patience_s = executors, patience_s
        self._width = Width(len(executors), adaptive=adaptive)
        self._since, self._computed = time.monotonic(), time.process_time()
        self._busy_s = 0.0

    @property
    def width(self) -> int:
        """How many work side by side."""
        return self._width.width

    @property
    def groups(self) -> list[Group]:
        """What runs."""
        return [executor.group for executor in self.executors if executor.group is not None]

    @property
    def idle(self) -> Executor | None:
        return next((executor for executor in self.executors if executor.group is None), None)

    @property
    def last_idle(self) -> bool:
        """No more than one is idle, of several."""
        return len(self.executors) > 1 and len(self.groups) >= len(self.executors) - 1

    def room(self, now: float) -> int:
        """How many more groups may be handed out."""
        at_work = sum(not group.apart and now - group.heard < self.patience_s for group in self.groups)
        return min(len(self.executors) - len(self.groups), self.width - at_work)

    def ended(self, seconds: float) -> None:
        """A group took so long."""
        self._busy_s += seconds

    def adapt(self, now: float) -> None:
        """From time to time: judge by what the last while showed how many should work."""
        computed = time.process_time()
        self._width.observe(now - self._since, computed - self._computed, self._busy_s)
        self._since, self._computed, self._busy_s = now, computed, 0.0
