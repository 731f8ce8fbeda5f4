"""What follows a failed run: again later, or quarantine. No I/O; the clock and chance come in as arguments."""

from __future__ import annotations

import math
import random
import traceback
import zlib
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from settled.errors import ContractError, Reject, Retry
from settled.outcome import Attempts, Failure, FailureClass


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The contract's poison policy. Times in seconds.

    transient, defect, worker_lost   runs allowed by class; permanent is always 1; transient none: the deadline alone
    first, factor, most   exponential backoff with full jitter: a delay is drawn from 0 to min(most, first*factor^n)
    deadline_s   from the first failure; past it a record is quarantined at its next failure
    classes      exception type (dotted name, of the raised class or any of its parents) -> class
    """

    transient: int | None = None
    defect: int = 5
    worker_lost: int = 3
    first_s: float = 0.2
    factor: float = 2.0
    most_s: float = 30.0
    deadline_s: float = 3600.0
    classes: Mapping[str, FailureClass] = msgspec.field(default_factory=dict)
    then: Literal["continue", "park"] = "continue"
    eviction_burst: int = 10
    eviction_per_successes: int = 10

    def allowed(self, kind: FailureClass) -> float:
        """Runs before quarantine."""
        return {
            FailureClass.PERMANENT: 1,
            FailureClass.TRANSIENT: math.inf if self.transient is None else self.transient,
            FailureClass.DEFECT: self.defect,
            FailureClass.WORKER_LOST: self.worker_lost,
        }[kind]


class Verdict(msgspec.Struct, frozen=True):
    """What follows: `attempts` as they now stand, and whether the record goes to quarantine."""

    attempts: Attempts
    quarantine: bool


def decide(
    policy: RetryPolicy, before: Attempts | None, failure: Failure, now_us: int, chance: random.Random
) -> Verdict:
    """The verdict on one failed run, at `now_us` by the store's clock."""
    count = (before.count if before else 0) + 1
    first_us = before.first_us if before and before.first_us else now_us
    exhausted = count >= policy.allowed(failure.kind)
    late = now_us - first_us >= policy.deadline_s * 1e6
    delay = failure.retry_after
    if delay is None:
        delay = chance.uniform(0, min(policy.most_s, policy.first_s * policy.factor ** min(count - 1, 64)))
    attempts = Attempts(
        count=count,
        first_us=first_us,
        due_us=now_us + int(delay * 1e6),
        last=failure,
        first=before.first if before and before.first else failure,
    )
    return Verdict(attempts, exhausted or late)


class EvictionBudget:
    """Law 8: an eviction into quarantine costs a token, and tokens are earned by successes.

    So a bad deployment or an unseen outage, where nothing succeeds, never drains a topic into quarantine.
    """

    def __init__(self, burst: int, per_successes: int) -> None:
        self._burst, self._per = burst, per_successes
        self._tokens = float(burst)

    @property
    def empty(self) -> bool:
        return self._tokens < 1

    def earn(self, successes: int) -> None:
        self._tokens = min(float(self._burst), self._tokens + successes / self._per)

    def spend(self) -> bool:
        """Take a token; false when there is none."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def failure_of(error: BaseException, classes: Mapping[str, FailureClass]) -> Failure:
    """What can be stored of anything that a handler raised, however badly it behaves when looked at."""
    retry_after = error.after if isinstance(error, Retry) else None
    trace = _text(
        lambda: "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-20)), 10**9
    )
    return Failure(
        kind=_classify(error, classes),
        error=qualified(type(error))[:200],
        message=_text(lambda: str(error), 2000),
        trace=trace if len(trace) <= 8000 else f"{trace[:2000]}\n…\n{trace[-5900:]}",
        fingerprint=_fingerprint(error),
        retry_after=retry_after,
    )


def qualified(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _classify(error: BaseException, classes: Mapping[str, FailureClass]) -> FailureClass:
    for parent in type(error).__mro__:
        found = classes.get(qualified(parent))
        if found is not None:
            return found
    if isinstance(error, Retry):
        return FailureClass.TRANSIENT
    if isinstance(error, (Reject, UndecodableError)):
        return FailureClass.PERMANENT
    return FailureClass.DEFECT


def _text(make: Callable[[], str], limit: int) -> str:
    """The text, cut to `limit` characters, without what a database cannot hold; a description if making it fails."""
    try:
        text = make()
    except BaseException as failed:  # noqa: BLE001 - __str__ of a user's exception may raise anything
        text = f"(no text: making it raised {type(failed).__name__})"
    text = str(text).replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _fingerprint(error: BaseException) -> str:
    """Equal for equal failures: the class and the place of the innermost frame, not the text."""
    place = ""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    if frames:
        place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].name}"
    return f"{zlib.crc32(f'{qualified(type(error))}|{place}'.encode()):08x}"


class UndecodableError(ContractError):
    """The value does not decode as the handler's annotation asks. Permanent: the bytes will not change."""
