"""Watcher: works on hints. A hint says that something changed and has no authority: the handler reads the store that
has. Nothing of a hint is durable; what is lost, or fails, is repaired by the sweep.

Reading order: `run`, then `_turn` and its steps; then the reader's thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from settled.delivery.binding import AsyncTx, Binding
from settled.delivery.flow import GroupSize
from settled.delivery.hints import Hints
from settled.delivery.retry import failure_of
from settled.delivery.subscription import Subscription
from settled.engine import Engine, Tail
from settled.errors import Damaged, HistoryLost, SettledError, Unavailable
from settled.events import AttemptFailed, Events, HintsLost, Settled, StateChanged, Swept
from settled.outcome import Failure, Outcome
from settled.record import Record
from settled.store import Store

log = logging.getLogger("settled.delivery")

BEHIND = 100_000  # hints further behind than that are passed over, for the sweep
TOGETHER = 10_000
IDLE_POLL_S = 5.0
LOOK_S = 0.1  # how often a watcher that stops looks whether it may
SOON_S = 1.0  # after a loss the sweep runs at once, but rests so long between two runs
FAILED_SWEEP_S = 30.0  # after a failed one, where none is due by time
OUTAGE_FIRST_S, OUTAGE_MOST_S = 0.05, 5.0


class Sweep(msgspec.Struct, frozen=True):
    """`function` takes `tx` and repairs what it finds out of date. It runs at the start, after known losses, and
    every so often; `every_s` none: not by time."""

    function: Callable[..., Any]
    every_s: float | None


class Watcher:
    """Runs a handler for the newest hint of each key until it is stopped. `stop` and `abandon` may be called from any
    thread."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        subscription: Subscription,
        bind: Callable[[], Binding],
        sweep: Sweep | None,
        *,
        events: Events | None = None,
    ) -> None:
        """`sweep` none: what is lost stays lost."""
        self.events = events or Events()
        self._engine, self._store, self._subscription, self._bind = engine, store, subscription, bind
        self._sweep = sweep
        self._name, self._topic = subscription.consumer.consumer, subscription.group.topics[0]
        self._hints = Hints(subscription.in_flight_records, subscription.in_flight_bytes)
        self._changed = threading.Condition()  # guards the hints, the tail and `_lossy`
        self._stopping, self._abandoning = threading.Event(), threading.Event()
        self._over = threading.Event()  # told to stop, or a thread ended
        self._tail: Tail | None = None
        self._lossy = False
        self._current: Record | None = None
        self._size = GroupSize(subscription.group_records, subscription.target_s)
        self._swept = self._due = 0.0
        self._outages = 0
        self._crash: BaseException | None = None
        self._state = ""

    @property
    def stopping(self) -> bool:
        """Any thread. Whether it was told to stop."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End what runs within the grace time, and stop."""
        self._stopping.set()
        self._over.set()
        with self._changed:
            if self._tail is not None:
                self._tail.wakeup()
            self._changed.notify_all()

    def abandon(self) -> None:
        """Stop, and keep nothing of what runs."""
        self._abandoning.set()
        self.stop()

    def run(self, *, drain: bool = False) -> None:
        """Work until `stop`; with `drain`, through the hints that are there and one sweep.

        Raises what makes the topic unreadable for good, and with `drain` SettledError for a sweep that failed. Outages
        of engine and store are waited out, once it runs.
        """
        self._tell("starting")
        self._tail = self._engine.tail(self._topic, behind=BEHIND)
        work = self._thread(self._drain if drain else self._watch)
        reader = self._thread(self._read)
        work.start()
        if not drain:
            reader.start()
        try:
            self._over.wait()
        finally:
            self.stop()
            self._wait_for(work)
            if not drain:
                reader.join()
            self._shut()
            self._tell("stopped")
        if self._crash is not None:
            raise self._crash

    def _wait_for(self, work: threading.Thread) -> None:
        """What runs may end within the grace time; after that nothing of it will be kept."""
        deadline = time.monotonic() + self._subscription.grace_s
        while work.is_alive() and not self._abandoning.is_set() and time.monotonic() < deadline:
            work.join(LOOK_S)
        self._abandoning.set()
        if work.is_alive():
            log.warning("a handler did not end within the grace time: nothing of its transaction is kept")

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=self._ending, args=(work,), name="settled-hints", daemon=True)

    def _ending(self, work: Callable[[], None]) -> None:
        """On a thread of its own; its end is the watcher's."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._crash = self._crash or error
        self._over.set()

    @contextmanager
    def _session_open(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._session = self._store.session(self._subscription.consumer)
            stack.callback(self._session.close)
            self._session.causes(lambda: self._current)
            self._binding = self._bind()
            stack.callback(self._binding.close)
            yield

    def _watch(self) -> None:
        with self._session_open():
            while not self._stopping.is_set():
                self._guarded(self._turn)

    def _drain(self) -> None:
        assert self._tail is not None
        failures: list[Failure | None] = []
        with self._session_open():
            while (found := self._tail.poll(0.0, records=TOGETHER, bytes=self._hints.most_bytes)) and not self.stopping:
                self._hints.add(found)
            while self._hints and not self.stopping:
                self._guarded(lambda: self._handle(self._hints.take(self._size.size)))
            while self._sweep is not None and not failures and not self.stopping:
                self._guarded(lambda: failures.append(self._run_sweep()))
        if failures and failures[0] is not None:
            raise SettledError(f"the sweep failed: {failures[0].error}: {failures[0].message}")

    def _turn(self) -> None:
        """One round: the sweep when it is due, else the next hints, else wait for either."""
        now = time.monotonic()
        if self._sweep is not None and now >= self._sweep_at():
            self._run_sweep()
            return
        with self._changed:
            group = self._hints.take(self._size.size)
            if not group and not self._stopping.is_set():
                self._tell("idle")
                self._changed.wait(min(IDLE_POLL_S, max(0.0, self._sweep_at() - now)))
        if group:
            self._tell("running")
            self._handle(group)

    def _guarded(self, step: Callable[[], object]) -> None:
        """An outage of the store is not a failure: what was taken waits again, and is tried after a growing time."""
        try:
            step()
            self._outages = 0
        except Unavailable as error:
            self._stopping.wait(self._pause(error))

    def _pause(self, error: Exception) -> float:
        self._outages += 1
        if self._outages == 1:
            log.warning("waiting for the store or the engine: %s", error)
        self._tell("waiting", str(error))
        delay = min(OUTAGE_MOST_S, OUTAGE_FIRST_S * 2 ** min(self._outages - 1, 10))
        return random.uniform(delay / 2, delay)

    # Hints.

    def _handle(self, group: Sequence[Record]) -> None:
        """In one transaction; a hint that fails undoes its own part. It was taken before the transaction began, so that
        this sees what the hint tells of."""
        began = time.perf_counter()
        try:
            self._session.begin(())
            failed = self._run_group(group)
            worked = time.perf_counter() - began
            if self._abandoning.is_set():
                self._session.rollback()
                return
            self._session.settle((), ())
        except Unavailable:
            self._session.rollback()
            with self._changed:
                self._hints.give_back(group)
            raise
        except Exception as error:  # noqa: BLE001 - a constraint checked at commit, a transaction that SQLite ended
            self._session.rollback()
            if len(group) == 1:
                self._failed(group[0], error)
                return
            for place, record in enumerate(group):
                self._one_of(group[place:], record)
            return
        self._size.observe(len(group), worked)
        counts = {Outcome.APPLIED: len(group) - failed, Outcome.DISCARDED: failed}
        told = {outcome: count for outcome, count in counts.items() if count}
        self.events.tell(Settled(self._name, told, time.perf_counter() - began))

    def _one_of(self, left: Sequence[Record], record: Record) -> None:
        """Alone; with an outage all that are left wait again."""
        try:
            self._handle([record])
        except Unavailable:
            with self._changed:
                self._hints.give_back(left)
            raise

    def _run_group(self, group: Sequence[Record]) -> int:
        """Returns how many failed."""
        if self._binding.batch and len(group) > 1:
            self._session.save()
            try:
                self._binding.call(self._session.tx, group)
                self._session.check()
                return 0
            except Unavailable:
                raise
            except Exception:  # noqa: BLE001 - found out one by one
                self._session.undo()
        failed = 0
        for record in group:
            if self._abandoning.is_set():
                break
            self._session.save()
            self._current = record
            try:
                self._binding.one(self._session.tx, record)
                self._session.check()
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the user's code raises
                self._session.undo()
                self._failed(record, error)
                failed += 1
            finally:
                self._current = None
        return failed

    def _failed(self, record: Record, error: Exception) -> None:
        """Told, and left to the sweep: there is no second attempt at a hint."""
        failure = failure_of(error, self._subscription.retry.classes)
        log.warning("hint %s/%s@%s failed: %s", record.topic, record.partition, record.offset, failure.message)
        with self._changed:
            self._hints.forget([record])
        self.events.tell(AttemptFailed(self._name, record, failure, 1))

    # The sweep.

    def _sweep_at(self) -> float:
        """When the sweep is due, on the monotonic clock."""
        if self._sweep is None:
            return float("inf")
        soon = self._swept + min(SOON_S, self._sweep.every_s or SOON_S)
        return min(self._due, soon) if self._lossy else self._due

    def _run_sweep(self) -> Failure | None:
        assert self._sweep is not None
        began = time.monotonic()
        with self._changed:
            lossy, self._lossy = self._lossy, False  # what is lost from now on may be too late for this one
        failure = None
        try:
            self._session.begin(())
            self._call(self._sweep.function)
            if self._abandoning.is_set():
                self._session.rollback()
                return None
            self._session.settle((), ())
        except Unavailable:
            self._session.rollback()
            with self._changed:
                self._lossy = self._lossy or lossy
            raise
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            self._session.rollback()
            failure = failure_of(error, self._subscription.retry.classes)
            log.warning("the sweep failed: %s", failure.message)
        self._swept = time.monotonic()
        every = self._sweep.every_s if failure is None else min(self._sweep.every_s or FAILED_SWEEP_S, FAILED_SWEEP_S)
        self._due = float("inf") if every is None else self._swept + every
        self.events.tell(Swept(self._name, self._swept - began, failure))
        return failure

    def _call(self, function: Callable[..., Any]) -> None:
        if inspect.iscoroutinefunction(function):
            asyncio.run(function(AsyncTx(self._session.tx)))
        else:
            function(self._session.tx)

    # The reader, on its thread.

    def _read(self) -> None:
        outages = 0
        while not self._stopping.is_set():
            try:
                self._read_some()
                outages = 0
            except Unavailable as error:
                outages += 1
                log.log(logging.WARNING if outages == 1 else logging.DEBUG, "hints wait for the engine: %s", error)
                self._stopping.wait(random.uniform(0.5, 1.0) * min(OUTAGE_MOST_S, 0.1 * 2 ** min(outages, 10)))
            except (Damaged, HistoryLost) as error:
                log.warning("hints are read from the end again: %s", error)
                self._shut()
                self._note_loss(0, 0, known=True)

    def _read_some(self) -> None:
        if self._tail is None:
            tail = self._engine.tail(self._topic, behind=BEHIND)
            with self._changed:
                self._tail = tail
        tail = self._tail
        passed, interruptions = tail.missed, tail.interruptions
        found = tail.poll(IDLE_POLL_S, records=TOGETHER, bytes=self._hints.most_bytes)
        with self._changed:
            dropped = self._hints.dropped
            self._hints.add(found)
            dropped = self._hints.dropped - dropped
            self._changed.notify_all()
        self._note_loss(tail.missed - passed, dropped, known=tail.interruptions > interruptions)

    def _note_loss(self, passed: int, dropped: int, *, known: bool = False) -> None:
        if passed or dropped or known:
            with self._changed:
                self._lossy = True
                self._changed.notify_all()
            self.events.tell(HintsLost(self._name, passed, dropped))

    def _shut(self) -> None:
        with self._changed:
            tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()

    def _tell(self, state: str, why: str = "") -> None:
        if state != self._state:
            self._state = state
            self.events.tell(StateChanged(self._name, state, why))
