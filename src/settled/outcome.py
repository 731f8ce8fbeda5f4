"""How a record ends. An ending is one value, made once and matched once; it becomes durable in the effect store."""

from __future__ import annotations

import enum

import msgspec

from settled.record import Record


class Outcome(enum.IntEnum):
    """The endings of a record. The numbers are stored; never renumber."""

    APPLIED = 1  # the handler's effect is committed
    DUPLICATE = 2  # its event id was settled before
    STALE = 3  # its version is not above the last one applied for its key
    QUARANTINED = 4  # kept with evidence for a person
    DISCARDED = 5  # dropped by policy, deadline or decree


class FailureClass(enum.StrEnum):
    """Why a run of the handler did not end in an effect, and so what happens next."""

    TRANSIENT = "transient"  # retry with backoff inside the deadline
    PERMANENT = "permanent"  # quarantine at once
    DEFECT = "defect"  # the handler's own fault: bounded attempts
    WORKER_LOST = "worker-lost"  # the process died while it ran alone: bounded attempts


class Failure(msgspec.Struct, frozen=True):
    """One failed run, in a form that can always be stored: bounded text, no live objects."""

    kind: FailureClass
    error: str  # qualified class name, at most 200 characters
    message: str  # at most 2,000 characters
    trace: str  # at most 8,000 characters, the innermost frames
    fingerprint: str  # groups equal failures: class and place, not the text
    retry_after: float | None = None  # seconds, when the handler asked for it


class Attempts(msgspec.Struct, frozen=True):
    """What is durable about a record that failed or is suspected: it survives restarts and redrives."""

    count: int  # runs charged so far
    first_us: int  # first failure, store's clock, microseconds since 1970
    due_us: int  # not before, store's clock
    suspect: bool = False  # a worker may have died on it: its next start is on record before it starts
    alone: bool = False  # a worker died while it ran with others on record: it runs alone
    last: Failure | None = None
    first: Failure | None = None


class Ending(msgspec.Struct, frozen=True, gc=False):
    """A record and how it ended. `failure` and `attempts` come with QUARANTINED and, where there are any, DISCARDED."""

    record: Record
    outcome: Outcome
    failure: Failure | None = None
    attempts: Attempts | None = None
    parked: bool = False  # quarantined only because an earlier record of its key is
