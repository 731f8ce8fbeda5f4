"""The named instants at which a process may die. Production pays one call of a nearly empty function at each, per
group and not per record; a drill installs a hook that kills, stops or waits when a window is reached.
"""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[str], None]

_hook: Hook | None = None


def reach(window: str) -> None:
    """Called where a process may die. Does nothing unless a drill installed a hook."""
    if _hook is not None:
        _hook(window)


def install(hook: Hook | None) -> None:
    """Let `hook` be called at every window; None takes it away. For drills and tests only."""
    global _hook
    _hook = hook
