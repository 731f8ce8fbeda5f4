"""The receiver of the sample application's calls outside: it answers each call with a number of its own, and writes
down what it was asked. It knows nothing of settled, so that its count is evidence.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from settled.drills.history import Event, Writer

_numbers = itertools.count(1)
_writer: Writer | None = None


def opens(folder: Path) -> None:
    """In a process of a drill: write to the history in `folder`. Without it calls are answered and forgotten."""
    global _writer
    _writer = Writer(folder, "receiver")


def called(id: str, key: str) -> str:
    """A call for the event, under an idempotency key. Every call has an answer of its own, so that two are told apart
    (a receiver that knows repetitions by their key would hide them)."""
    answer = f"{os.getpid()}-{next(_numbers)}"
    _write(Event(what="call", id=id, note=key, outcome=answer))
    return answer


def told(id: str, answer: str) -> None:
    """A handler was given this answer for the event: by its own call, or as recorded before."""
    _write(Event(what="outcome", id=id, outcome=answer))


def _write(event: Event) -> None:
    if _writer is not None:
        _writer.write(event)
