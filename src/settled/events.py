"""What happened, for those who watch: metrics, logs, the console and tests. Signals carry values, never decide.

A listener runs on the thread where the event happened and must be quick; an exception in it is logged and dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from settled.outcome import Failure, Outcome
from settled.record import Record

log = logging.getLogger("settled.events")


class Event(msgspec.Struct, frozen=True):
    """The root of all events."""


class Settled(Event, frozen=True):
    """A group's endings are durable. `counts` says how many records ended how; `seconds` is the transaction."""

    consumer: str
    counts: dict[Outcome, int]
    seconds: float


class AttemptFailed(Event, frozen=True):
    """One run of the handler failed and was charged (`count` runs so far)."""

    consumer: str
    record: Record
    failure: Failure
    count: int


class PartitionChanged(Event, frozen=True):
    """`change` is assigned, paused, released, lost or stopped; `why` is set for the last two."""

    consumer: str
    topic: str
    partition: int
    epoch: int
    change: str
    why: str = ""


class GapFound(Event, frozen=True):
    """Offsets first to next-1 can no longer be read: retention passed the frontier."""

    consumer: str
    topic: str
    partition: int
    first: int
    next: int


class StateChanged(Event, frozen=True):
    """The worker's state: starting, running, idle, paused, waiting, stopping, stopped; `why` in words."""

    consumer: str
    state: str
    why: str = ""


class HintsLost(Event, frozen=True):
    """Hints that no handler will be given: `passed` went by before they were read, `dropped` were too many to hold. A
    sweep follows soon, where there is one."""

    consumer: str
    passed: int
    dropped: int


class Swept(Event, frozen=True):
    """A sweep ended; `failure` says why nothing of it was kept."""

    consumer: str
    seconds: float
    failure: Failure | None = None


class Relayed(Event, frozen=True):
    """Rows of the outbox were accepted by the engine and removed; `seconds` from reading to removal."""

    relay: str
    count: int
    seconds: float


class RelayStateChanged(Event, frozen=True):
    """A relay's state: running, waiting (for the store or the engine, `why` in words) or stopped."""

    relay: str
    state: str
    why: str = ""


class RowRefused(Event, frozen=True):
    """The engine refused a row of the outbox (`count` times by now); parked: it is kept for people."""

    relay: str
    event_id: str
    topic: str
    error: str
    count: int
    parked: bool


Listener = Callable[[Event], None]


class Events:
    """A list of listeners. Nothing is kept when nobody listens."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed on %s", type(event).__name__)
