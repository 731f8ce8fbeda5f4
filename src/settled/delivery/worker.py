"""Worker: one member of a group, from joining to leaving. One thread at a time owns the delivery state: it holds the
baton. An executor that ends a group takes the baton, reckons, and takes its next group along; the worker's own thread
does the rest, and alone waits for records. So a busy worker hands nothing from thread to thread.

Reading order: `run`, then `_turn` and its steps in the order in which they happen, then stopping.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from settled import windows
from settled.delivery.attempt import Attempt
from settled.delivery.binding import Binding
from settled.delivery.dispatch import Dispatch
from settled.delivery.executor import Executor
from settled.delivery.flow import InFlight
from settled.delivery.group import Group, Report
from settled.delivery.judge import Judge
from settled.delivery.ownership import Ownership, due_in
from settled.delivery.pool import Pool
from settled.delivery.reckoning import Reckoning
from settled.delivery.subscription import Subscription
from settled.delivery.telling import Telling
from settled.delivery.upkeep import Upkeep
from settled.engine import Assigned, Consumer, Delivery, Engine, Fetched, Lost, Revoking, Stopped
from settled.errors import Fenced, HistoryLost, SettledError, Unavailable
from settled.events import Events, GapFound
from settled.store import Store

log = logging.getLogger("settled.delivery")

HOUSEKEEPING_S = 1.0  # how often redrives are looked for, marks pruned and the state told
IDLE_POLL_S = 5.0
BUSY_TICK_S = 0.1  # how often a busy worker looks for news of its membership
FETCH_AHEAD = 3  # groups' worth of ready records to hold, at most
MOST_SIDE_BY_SIDE = 4  # executors where the contract leaves the number open and the store runs transactions in parallel
STUCK_S = 0.05  # a record that runs longer holds up nobody but its key
OUTAGE_FIRST_S, OUTAGE_MOST_S = 0.05, 5.0


class Worker:
    """Runs a subscription until it is stopped or drained. `stop` and `abandon` may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        subscription: Subscription,
        bind: Callable[[], Binding],
        *,
        events: Events | None = None,
    ) -> None:
        self.events = events or Events()
        self._engine, self._store, self._subscription, self._bind = engine, store, subscription, bind
        self._name = subscription.consumer.consumer
        self._stopping, self._abandoning = threading.Event(), threading.Event()
        horizon_s = subscription.horizon_s if subscription.consumer.inbox else None
        self._upkeep = Upkeep(engine, store, self._name, horizon_s)
        self._baton = threading.Lock()
        self._wake = threading.Event()  # for the owner while it does not poll
        self._polling = False  # the owner waits in the engine's poll, without the baton
        self._crash: BaseException | None = None
        self._fault: Exception | None = None  # why a drain ended without coming through
        self._deliveries: deque[Delivery] = deque()  # polled and not taken yet
        self._consumer: Consumer | None = None
        self._binding: Binding | None = None
        self._executors: list[Executor] = []
        self._outages = 0
        self._not_before = 0.0  # during an outage: when to try again
        self._outage = ""
        self._housekept = 0.0

    @property
    def stopping(self) -> bool:
        """Any thread. Whether it was told to stop."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Take no more records; end what runs within the grace time, save the frontier, leave. A flag and a wake-up."""
        self._stopping.set()
        self._nudge()

    def abandon(self) -> None:
        """Stop at once: what runs is not committed, and will run again elsewhere with no attempt charged."""
        self._abandoning.set()
        self.stop()

    def run(self, *, drained: Callable[[], bool] | None = None) -> None:
        """Work until `stop`, or until `drained` says that nothing is left (asked when there is nothing to do).

        Raises HistoryLost when log and store do not belong together any more; Damaged when a partition cannot be read
        and a drain cannot end for it; SettledError when a drain gives up since the eviction budget is spent and nothing
        succeeds, or what is left is paused. Outages of engine or store are waited out, not raised, once it joined.
        """
        try:
            self._start()
            while not self._stopping.is_set():
                self._turn()
                if drained is not None and self._is_over(drained):
                    break
            self._end()
        finally:
            self._leave()
        if self._crash is not None:
            raise self._crash
        if self._fault is not None:
            raise self._fault

    def _start(self) -> None:
        subscription, store = self._subscription, self._store
        count = subscription.concurrency or (MOST_SIDE_BY_SIDE if store.parallel else 1)
        if subscription.mode == "at-most-once":  # side by side, a frontier would pass one group and not the other
            count = 1
        self._in_flight = InFlight(subscription.in_flight_records, subscription.in_flight_bytes)
        self._consumer = self._engine.consumer(subscription.group)
        self._telling = Telling(store, self.events, self._name, self._consumer.member)
        self._judge = Judge(subscription.retry, store, self.events, self._name)
        self._ownership = Ownership(
            self._consumer, store, subscription, self._in_flight, self.events, concurrency=count
        )
        self._executors = [Executor(f"settled-{n}", self._attempt, self._next_group) for n in range(count)]
        self._binding = self._bind()
        patience_s = 2 * subscription.target_s if self._binding.batch else STUCK_S  # of a batch nothing is heard
        self._pool = Pool(self._executors, adaptive=subscription.concurrency is None, patience_s=patience_s)
        self._dispatch = Dispatch(
            self._ownership,
            self._pool,
            self._judge,
            subscription,
            self._in_flight,
            batch=self._binding.batch,
        )
        self._reckoning = Reckoning(
            self._ownership, self._dispatch, self._judge, self._in_flight, subscription, self.events, store
        )
        self._upkeep.start()
        self._telling.tell("starting")

    def _attempt(self) -> Attempt:
        """On an executor's thread."""
        session = self._store.session(self._subscription.consumer)
        return Attempt(session, self._bind(), self._subscription.mode, self._subscription.retry)

    def _turn(self) -> None:
        """One round of the owner: give out work, then wait for something to happen."""
        try:
            with self._baton:
                now = time.monotonic()
                self._take_deliveries()
                if now >= self._not_before:
                    self._ownership.acquire()
                    self._dispatch.relieve(now)
                    self._dispatch.fill(now)
                    self._ownership.release_revoked()
                    if now - self._housekept >= HOUSEKEEPING_S:
                        self._housekeep(now)
                timeout, (records, size) = self._timeout(now), self._room(now)
                self._polling = self._dispatch.idle(now)
            self._wait(timeout, records, size)
        except Unavailable as error:
            self._wait_out(error)
            self._stopping.wait(max(0.0, self._not_before - time.monotonic()))  # the poll may be what fails: never spin

    def _wait(self, timeout: float, records: int, size: int) -> None:
        """For records, news of the membership or an idle executor. While all that may work are busy the engine is only
        asked for news: records that would have to wait are not fetched."""
        assert self._consumer is not None
        if not self._polling:
            self._wake.wait(min(timeout, BUSY_TICK_S))
            self._wake.clear()
            with self._baton:
                self._deliveries += self._consumer.poll(0.0, records=0, bytes=0)
            return
        found: list[Delivery] = []
        try:
            found = self._consumer.poll(timeout, records=records, bytes=size)
        finally:
            with self._baton:  # together: an executor that fetches ahead in between would overtake what was found
                self._polling = False
                self._deliveries += found

    def _nudge(self) -> None:
        """Any thread. The owner looks at once."""
        self._wake.set()
        if self._polling and self._consumer is not None:
            self._consumer.wakeup()

    def _next_group(self, executor: Executor, report: Report) -> Group | None:
        """On an executor's thread: reckon its report and take the next group along."""
        group = None
        try:
            with self._baton:
                executor.group = None
                self._pool.ended(report.seconds)
                self._take_report(report)
                now = time.monotonic()
                if now >= self._not_before and not self._stopping.is_set():
                    if not self._polling:
                        self._fetch_ahead(now)
                    group = self._dispatch.next_for(executor, now)
        except Unavailable as error:
            self._wait_out(error)
        except BaseException as error:  # noqa: BLE001 - raised by `run`, on the worker's own thread
            self._crash = error
            self._stopping.set()
        if group is None or group.apart:
            self._nudge()
        return group

    def _fetch_ahead(self, now: float) -> None:
        assert self._consumer is not None
        records, size = self._room(now)
        if records and self._dispatch.ready() < self._group_records:
            self._deliveries += self._consumer.poll(0.0, records=records, bytes=size)
            self._take_deliveries()

    def _take_report(self, report: Report) -> None:
        if isinstance(report.fault, Fenced):
            self._let_go()
        elif isinstance(report.fault, Unavailable):
            self._wait_out(report.fault)
        elif report.fault is not None:
            raise report.fault
        else:
            self._outages, self._outage = 0, ""
        self._reckoning.reckon(report)

    def _let_go(self) -> None:
        try:
            self._ownership.fenced()
        except Unavailable as error:  # the next group is fenced again
            self._wait_out(error)

    def _take_deliveries(self) -> None:
        """In order; one that the store's outage interrupts is taken again, for what was fetched comes only once."""
        while self._deliveries:
            self._take(self._deliveries[0])
            self._deliveries.popleft()

    def _room(self, now: float) -> tuple[int, int]:
        """What may be fetched: nothing during an outage, nor while enough is ready."""
        if now < self._not_before:
            return 0, 0
        ahead = FETCH_AHEAD * self._group_records - self._dispatch.ready()
        records, size = self._in_flight.room()
        return (min(records, ahead), size) if ahead > 0 else (0, 0)

    @property
    def _group_records(self) -> int:
        """How large a group may be: of a queue, as large as groups are now."""
        return self._dispatch.size.size if self._subscription.shared else self._subscription.group_records

    def _timeout(self, now: float) -> float:
        """How long to wait for something to happen; executors wake the owner when they have nothing to do."""
        wait = HOUSEKEEPING_S if self._ownership.assignments or self._ownership.paused else IDLE_POLL_S
        if now < self._not_before:
            return min(wait, self._not_before - now)
        if not self._dispatch.running and self._dispatch.ready() and not self._subscription.linger_s:
            return 0.0
        due = self._dispatch.next_due(now)
        return wait if due is None else min(wait, due)

    def _take(self, delivery: Delivery) -> None:
        ownership = self._ownership
        match delivery:
            case Assigned():
                ownership.assigned(delivery)
            case Revoking(topic=topic, partition=partition):
                ownership.revoke((topic, partition))
            case Lost(topic=topic, partition=partition):
                ownership.lose((topic, partition), "the engine gave it to another member")
            case Stopped(topic=topic, partition=partition, error=error):
                ownership.stop((topic, partition), error)
            case Fetched():
                self._take_records(delivery)

    def _take_records(self, fetched: Fetched) -> None:
        place = (fetched.topic, fetched.partition)
        found = self._ownership.assignments.get(place)
        if found is None or found.stopped:
            return
        if fetched.gap_from is not None:
            first = fetched.records[0].offset if fetched.records else fetched.next_offset
            self._store.note_gap(self._name, *place, fetched.gap_from, first)
            self.events.tell(GapFound(self._name, *place, fetched.gap_from, first))
            if self._subscription.on_gap == "stop":
                self._ownership.stop(place, _gap(place, fetched.gap_from, first))
                return
        if fetched.again:
            self._ownership.recognise(found, fetched)
        now_us = self._store.clock_us() if found.attempts else 0
        self._in_flight.add(place, len(fetched.records), fetched.size)
        failed = found.receive(fetched)
        for record in failed:  # they wait for the time that was set when they failed, under an earlier owner
            attempts = found.attempts[record.offset]
            found.hold(record, attempts, due_in(attempts, now_us))

    def _wait_out(self, error: Exception) -> None:
        """An outage is not a failure: nothing is charged, nothing fetched; try again after a growing, jittered time."""
        self._outages += 1
        delay = min(OUTAGE_MOST_S, OUTAGE_FIRST_S * 2 ** min(self._outages - 1, 10))
        self._not_before = time.monotonic() + random.uniform(delay / 2, delay)
        if not self._outage:
            log.warning("waiting for the store or the engine: %s", error)
        self._outage = str(error)
        self._telling.tell("waiting", self._outage)

    def _housekeep(self, now: float) -> None:
        self._housekept = now
        self._pool.adapt(now)
        self._ownership.commit()
        self._ownership.look_for_resumed()
        self._reckoning.look_for_redrives()
        self._telling.tell(*self._describe())

    def _describe(self) -> tuple[str, str]:
        if self._outage:
            return "waiting", self._outage
        if self._judge.starved:
            return "paused", self._judge.starved
        owned = self._ownership.assignments
        stopped = [f"{found.topic}/{found.partition}" for found in owned.values() if found.stopped]
        if stopped:
            return "running", "stopped partitions: " + ", ".join(stopped)
        if self._ownership.paused:
            return "running", "paused partitions: " + ", ".join(f"{t}/{p}" for t, p in self._ownership.paused)
        if not owned:
            return "idle", "no partition is free for this member: there are as many members as partitions, or more"
        return "running", ""

    # Draining and stopping.

    def _is_quiet(self) -> bool:
        with self._baton:
            return not (self._dispatch.running or self._deliveries or self._in_flight.records)

    def _is_over(self, drained: Callable[[], bool]) -> bool:
        """Whether a drain ends here; `_fault` says what it could not come past."""
        if self._judge.hopeless:
            self._fault = _given_up(self._judge.hopeless)
        elif self._is_quiet():
            owned = self._ownership.assignments.values()
            self._fault = next((found.stopped for found in owned if found.stopped is not None), None)
            try:
                return self._fault is not None or drained()
            except Unavailable as error:
                self._wait_out(error)
            except SettledError as error:
                self._fault = error
        return self._fault is not None

    def _end(self) -> None:
        """Let what runs end within the grace time, save all frontiers, give the partitions back."""
        self._telling.tell("stopping")
        windows.reach("stopping")
        deadline = time.monotonic() + self._subscription.grace_s
        with self._baton:
            for executor in self._executors:
                if executor.group is not None:
                    self._dispatch.give_back(executor.group, executor.group.withdraw())
        while self._dispatch.running and not self._abandoning.is_set() and time.monotonic() < deadline:
            self._wait_while_stopping(min(0.2, max(0.0, deadline - time.monotonic())))
        for executor in self._executors:
            if executor.group is not None:
                executor.abandon()
        with self._baton:
            saving = not self._abandoning.is_set() and self._dispatch.save()
        while saving and self._dispatch.saving and time.monotonic() < deadline + 1:
            self._wait_while_stopping(0.2)
        with self._baton:
            try:
                self._ownership.commit()
                for place in list(self._ownership.assignments):
                    self._ownership.release(place, clean=True)
            except Unavailable as error:  # the lease ends by itself; the next owner takes it for an unclean end
                log.warning("partitions were not given back: %s", error)

    def _wait_while_stopping(self, timeout: float) -> None:
        """For an executor to end, or for the loss of a partition."""
        assert self._consumer is not None
        self._wake.wait(timeout)
        self._wake.clear()
        try:
            with self._baton:
                for delivery in self._consumer.poll(0.0, records=0, bytes=0):
                    if isinstance(delivery, Lost):
                        self._take(delivery)
        except Unavailable as error:
            log.warning("while stopping: %s", error)

    def _leave(self) -> None:
        self._upkeep.stop()
        for executor in self._executors:
            executor.abandon()
        for executor in self._executors:
            executor.close(0.0 if executor.group is not None else 5.0)
        if self._binding is not None:
            self._binding.close()
        if self._consumer is not None:
            self._telling.tell("stopped")
            self._consumer.close()


def _given_up(why: str) -> SettledError:
    return SettledError(f"the drain gives up: {why}", hint="nothing is lost: mend it and run the drain again")


def _gap(place: tuple[str, int], first: int, next_offset: int) -> HistoryLost:
    return HistoryLost(
        f"{place[0]}/{place[1]}: offsets {first} to {next_offset - 1} ({next_offset - first} records) were removed by "
        "retention before this group settled them",
        hint="lengthen retention.age; to go on with what is left, set retention.on_gap: continue",
    )
