"""What follows a failed run, and what can be stored of anything that a handler may raise."""

from __future__ import annotations

import asyncio
import random
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.delivery.retry import EvictionBudget, RetryPolicy, UndecodableError, decide, failure_of
from settled.errors import Reject, Retry
from settled.outcome import Attempts, Failure, FailureClass

NOW = 1_700_000_000_000_000


def failure(kind: FailureClass = FailureClass.DEFECT, **fields: object) -> Failure:
    return Failure(kind, "app.Broken", "no", "trace", "f1", **fields)  # type: ignore[arg-type]


def raised(error: BaseException) -> BaseException:
    """The error as a handler leaves it behind, with its frames."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - whatever it is, it is given back
        return caught


# The verdict.


@given(st.integers(0, 500), st.floats(0.001, 5), st.floats(1, 4), st.floats(0.01, 60), st.integers())
def test_the_delay_is_drawn_within_its_bounds(count: int, first: float, factor: float, most: float, seed: int) -> None:
    policy = RetryPolicy(defect=10**6, first_s=first, factor=factor, most_s=most)
    before = Attempts(count=count, first_us=NOW - 1, due_us=0) if count else None
    verdict = decide(policy, before, failure(), NOW, random.Random(seed))
    delay = verdict.attempts.due_us - NOW
    assert 0 <= delay <= min(most, first * factor ** min(count, 64)) * 1e6 + 1
    assert verdict.attempts.count == count + 1
    assert not verdict.quarantine


def test_jitter_is_full() -> None:
    chance = random.Random(1)
    policy = RetryPolicy(first_s=1, most_s=1)
    delays = [decide(policy, None, failure(), NOW, chance).attempts.due_us - NOW for _ in range(500)]
    assert min(delays) < 50_000
    assert max(delays) > 950_000


def test_the_handlers_own_delay_goes_first() -> None:
    verdict = decide(RetryPolicy(most_s=1), None, failure(retry_after=90.0), NOW, random.Random())
    assert verdict.attempts.due_us == NOW + 90_000_000


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [(FailureClass.PERMANENT, 1), (FailureClass.DEFECT, 4), (FailureClass.WORKER_LOST, 2), (FailureClass.TRANSIENT, 7)],
)
def test_runs_are_bounded_by_class(kind: FailureClass, allowed: int) -> None:
    policy = RetryPolicy(defect=4, worker_lost=2, transient=7)
    attempts, verdicts = None, []
    for _ in range(allowed):
        verdict = decide(policy, attempts, failure(kind), NOW, random.Random())
        attempts = verdict.attempts
        verdicts.append(verdict.quarantine)
    assert verdicts == [False] * (allowed - 1) + [True]


def test_transient_failures_end_with_the_deadline_alone() -> None:
    policy = RetryPolicy(deadline_s=60)
    before = Attempts(count=10**9, first_us=NOW - 59_999_999, due_us=0)
    transient = failure(FailureClass.TRANSIENT)
    assert not decide(policy, before, transient, NOW, random.Random()).quarantine
    assert decide(policy, before, transient, NOW + 1, random.Random()).quarantine


def test_the_first_failure_is_kept_and_starts_the_deadline() -> None:
    one = decide(RetryPolicy(), None, failure(), NOW, random.Random()).attempts
    other = msgspec.structs.replace(failure(), error="app.Other")
    two = decide(RetryPolicy(), one, other, NOW + 5_000_000, random.Random()).attempts
    assert (two.first_us, two.first, two.last) == (NOW, failure(), other)
    assert not two.suspect


def test_a_suspects_mark_is_gone_after_a_failure_of_its_own() -> None:
    suspected = Attempts(count=1, first_us=0, due_us=0, suspect=True)
    attempts = decide(RetryPolicy(), suspected, failure(), NOW, random.Random()).attempts
    assert (attempts.count, attempts.first_us, attempts.suspect) == (2, NOW, False)


# The eviction budget.


@given(st.integers(0, 20), st.integers(1, 50), st.lists(st.one_of(st.none(), st.integers(0, 300)), max_size=80))
def test_the_budget_never_grants_more_than_was_earned(burst: int, per: int, steps: list[int | None]) -> None:
    budget = EvictionBudget(burst, per)
    granted = earned = 0
    for step in steps:
        if step is None:
            empty = budget.empty
            spent = budget.spend()
            assert spent is not empty
            granted += spent
        else:
            budget.earn(step)
            earned += step
        assert granted <= burst + earned / per + 1e-6


def test_the_budgets_arithmetic() -> None:
    budget = EvictionBudget(2, 10)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    assert budget.empty
    budget.earn(9)
    assert not budget.spend()
    budget.earn(1)
    assert budget.spend()
    budget.earn(10_000)
    assert [budget.spend() for _ in range(3)] == [True, True, False]


def test_without_a_burst_nothing_is_evicted() -> None:
    budget = EvictionBudget(0, 1)
    budget.earn(1000)
    assert not budget.spend()


# Classes.


class Animal(Exception): ...


class Dog(Animal): ...


class Puppy(Dog): ...


def test_the_nearest_listed_type_decides() -> None:
    classes = {
        f"{__name__}.Animal": FailureClass.TRANSIENT,
        f"{__name__}.Dog": FailureClass.PERMANENT,
        "OSError": FailureClass.TRANSIENT,
    }
    assert failure_of(Animal(), classes).kind is FailureClass.TRANSIENT
    assert failure_of(Puppy(), classes).kind is FailureClass.PERMANENT
    assert failure_of(ConnectionResetError(), classes).kind is FailureClass.TRANSIENT
    assert failure_of(ValueError(), classes).kind is FailureClass.DEFECT


def test_settleds_own_exceptions_have_their_class() -> None:
    assert failure_of(Reject("bad"), {}).kind is FailureClass.PERMANENT
    assert failure_of(UndecodableError("bad"), {}).kind is FailureClass.PERMANENT
    found = failure_of(Retry("later", after=3.5), {})
    assert (found.kind, found.retry_after) == (FailureClass.TRANSIENT, 3.5)


# B027: anything that can be raised can be stored.


class NeedsTwo(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class NoTextForGood(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class WrongText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Own(BaseException): ...


class HoldsALock(Exception):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    raise ValueError("at the bottom")


@pytest.mark.parametrize(
    "error",
    [
        NeedsTwo(1, 2),
        NoText(),
        NoTextForGood(),
        WrongText(),
        Own("own"),
        HoldsALock(),
        SystemExit(0),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        ExceptionGroup("several", [ValueError("a"), NoText()]),
        BaseExceptionGroup("several", [SystemExit(1)]),
        ValueError("nul \0 and lone \ud800 surrogate"),
        ValueError("x" * 100_000),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        type("Ünïcode" * 100, (Exception,), {})("strange name"),
    ],
    ids=lambda error: type(error).__name__[:20],
)
def test_b027_anything_raised_can_be_stored(error: BaseException) -> None:
    found = failure_of(raised(error), {})
    assert found.kind is FailureClass.DEFECT
    assert 0 < len(found.error) <= 200
    assert len(found.message) <= 2000
    assert 0 < len(found.trace) <= 8000
    for text in (found.error, found.message, found.trace):
        assert "\0" not in text
        text.encode()  # no lone surrogate
    assert msgspec.json.decode(msgspec.json.encode(found), type=Failure) == found


def test_the_trace_keeps_the_innermost_frames() -> None:
    with pytest.raises(ValueError, match="bottom") as caught:
        deep(50)
    found = failure_of(caught.value, {})
    assert "at the bottom" in found.trace
    assert len(found.trace) <= 8000


def test_a_long_cause_does_not_crowd_out_the_error_itself() -> None:
    try:
        try:
            raise ValueError("c" * 100_000)
        except ValueError as cause:
            raise KeyError("the last straw") from cause
    except KeyError as error:
        found = failure_of(error, {})
    assert "the last straw" in found.trace
    assert len(found.trace) <= 8000


def test_a_long_text_says_that_it_was_cut() -> None:
    found = failure_of(ValueError("x" * 100_000), {})
    assert len(found.message) == 2000
    assert found.message.endswith("…")


def fail(text: str) -> None:
    raise ValueError(text)


def test_equal_failures_have_equal_fingerprints() -> None:
    def caught(call: object, *arguments: str) -> Failure:
        try:
            call(*arguments)  # type: ignore[operator]
        except ValueError as error:
            return failure_of(error, {})
        raise AssertionError("it did not fail")

    one, two = caught(fail, "order 1"), caught(fail, "order 2")
    assert one.fingerprint == two.fingerprint
    assert one.message != two.message
    assert caught(int, "x").fingerprint != one.fingerprint
    assert failure_of(raised(Animal()), {}).fingerprint != failure_of(raised(Dog()), {}).fingerprint
