"""Judge: what follows a failed run. It draws on the retry policy and the eviction budget; its verdicts become durable
with the next group. The owner thread alone uses it.
"""

from __future__ import annotations

import random
import time

from settled import windows
from settled.delivery.assignment import Assignment
from settled.delivery.retry import EvictionBudget, RetryPolicy, decide
from settled.events import AttemptFailed, Events
from settled.outcome import Attempts, Ending, Failure, FailureClass, Outcome
from settled.record import Record
from settled.store import Store


class Judge:
    """Decides on failures of one consumer's records."""

    def __init__(self, policy: RetryPolicy, store: Store, events: Events, consumer: str) -> None:
        self._policy, self._store, self._events, self._consumer = policy, store, events, consumer
        self._budget = EvictionBudget(policy.eviction_burst, policy.eviction_per_successes)
        self._chance = random.Random()
        self._refused = 0  # evictions refused since the last that was granted
        self._fruitless = 0.0  # monotonic: since when evictions are refused and nothing succeeds; 0 while neither

    @property
    def starved(self) -> str:
        """Why records that should be in quarantine are not; empty when none are."""
        if not self._refused or not self._budget.empty:
            return ""
        return (
            f"the eviction budget is spent ({self._policy.eviction_burst} evictions without "
            f"{self._policy.eviction_per_successes} successes each): records that used up their attempts keep being "
            "retried instead of going to quarantine; mend the handler or what it depends on"
        )

    @property
    def hopeless(self) -> str:
        """The same once nothing succeeded for as long as the slowest retry waits; before, empty."""
        waited = self._fruitless and time.monotonic() - self._fruitless >= self._policy.most_s
        return self.starved if waited else ""

    def succeeded(self, records: int) -> None:
        self._budget.earn(records)
        if records:
            self._fruitless = 0.0

    def failed(self, found: Assignment, record: Record, failure: Failure) -> None:
        """Hold the record for its next run, or send it to quarantine."""
        now_us = self._store.clock_us()
        before = found.attempts.get(record.offset)
        if before is not None and before.first is None:
            before = None  # it was suspected and never failed: what was presumed is not charged
        verdict = decide(self._policy, before, failure, now_us, self._chance)
        self._events.tell(AttemptFailed(self._consumer, record, failure, verdict.attempts.count))
        if verdict.quarantine and self._evict(found, record, verdict.attempts):
            return
        delay_us = verdict.attempts.due_us - now_us
        if verdict.quarantine:  # it should go and may not: probe at the slowest pace
            delay_us = max(delay_us, int(self._policy.most_s * 1e6))
        found.hold(record, verdict.attempts, time.monotonic() + delay_us / 1e6)
        found.charges.append((record, verdict.attempts))

    def lost(self, found: Assignment, record: Record) -> bool:
        """Whether the record killed its worker too often; then its quarantine is decided here."""
        attempts = found.attempts.get(record.offset)
        if (
            attempts is None
            or attempts.last is None
            or attempts.last.kind is not FailureClass.WORKER_LOST
            or attempts.count < self._policy.allowed(FailureClass.WORKER_LOST)
        ):
            return False
        self._events.tell(AttemptFailed(self._consumer, record, attempts.last, attempts.count))
        return self._evict(found, record, attempts)

    def _evict(self, found: Assignment, record: Record, attempts: Attempts) -> bool:
        if not self._budget.spend():
            self._refused += 1
            self._fruitless = self._fruitless or time.monotonic()
            return False
        self._refused, self._fruitless = 0, 0.0
        found.held.pop(record.offset, None)
        found.lanes.hold(record.key)  # until the quarantine is durable
        found.endings.append(Ending(record, Outcome.QUARANTINED, attempts.last, attempts))
        if self._policy.then == "park" and record.key is not None:
            found.parked.add(record.key)
        windows.reach("quarantine-decided")
        return True
