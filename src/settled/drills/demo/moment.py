"""The instant at which the demo kills: the effects and marks of a group are written, and nothing is committed.

The parent asks with a file, the worker answers with one and stands still at that instant until it is killed.
"""

from __future__ import annotations

import threading
from pathlib import Path

from settled import windows

WINDOW = "marks-written"


def ask(folder: Path, name: str) -> None:
    """In the parent: let the worker stand still when it gets there."""
    (folder / f"{name}.asked").touch()


def is_there(folder: Path, name: str) -> bool:
    """In the parent: whether it stands there."""
    return (folder / f"{name}.there").exists()


def stand_still_when_asked(folder: Path, name: str) -> None:
    """In the worker, before it runs."""
    asked, there = folder / f"{name}.asked", folder / f"{name}.there"

    def hook(window: str) -> None:
        if window == WINDOW and asked.exists():
            there.touch()
            threading.Event().wait()

    windows.install(hook)
