"""Dispatch: which records go together to which executor, and when. The owner thread alone uses it.

In this order: suspects (one chunk at a time), redrives, failed records whose time has come, records of slow keys, and
then groups of ready records. A group takes along what was decided before and is not durable yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from settled.delivery.assignment import Assignment
from settled.delivery.executor import Executor
from settled.delivery.flow import GroupSize, InFlight
from settled.delivery.group import Group, LaneKey, Part
from settled.delivery.judge import Judge
from settled.delivery.ownership import Ownership
from settled.delivery.pool import Pool
from settled.delivery.subscription import Subscription
from settled.engine import Partition
from settled.outcome import Attempts, Ending, Outcome
from settled.record import Record
from settled.store import QuarantineEntry

SLOW_FACTOR = 2  # a group that takes so many times its target time is slow
SLOW_AT_LEAST_S = 0.1
PARTITIONS = 4  # a group takes no less than its share by so many from one: each costs statements of its own
SAVE_AFTER_S = 0.2  # how long a frontier, an ending or a charge waits for a group to go along with


class Dispatch:
    """Forms groups and hands them to idle executors."""

    def __init__(
        self,
        ownership: Ownership,
        pool: Pool,
        judge: Judge,
        subscription: Subscription,
        in_flight: InFlight,
        *,
        batch: bool,
    ) -> None:
        self.size = GroupSize(subscription.group_records, subscription.target_s, fixed=subscription.linger_s > 0)
        self.alone = 0  # nobody could be blamed for a group's failure: so many of the next records run alone
        self._ownership, self._pool, self._judge = ownership, pool, judge
        self._subscription = subscription
        self._in_flight, self._batch = in_flight, batch
        self._turn = 0
        self._lingering_since: float | None = None
        self._unsaved_since: float | None = None

    @property
    def running(self) -> bool:
        return bool(self._pool.groups)

    @property
    def saving(self) -> bool:
        """A group without records runs: frontiers and decisions are being saved."""
        return any(not group.records for group in self._pool.groups)

    def ready(self) -> int:
        """Records that could be handed out now, an upper bound."""
        return sum(len(found.lanes) + len(found.suspects) for found in self._ownership.assignments.values())

    def fill(self, now: float) -> None:
        """Give executors groups, as many as may work and as far as there is work."""
        while self._pool.room(now) > 0 and (executor := self._pool.idle) is not None:
            group = self._next(now)
            if group is None:
                return
            self._submit(executor, group)

    def next_for(self, executor: Executor, now: float) -> Group | None:
        """The next group for an executor that asks for it, which then has it; none: nothing to do now."""
        group = self._next(now) if self._pool.room(now) > 0 else None
        if group is not None:
            self._note(executor, group)
        return group

    def idle(self, now: float) -> bool:
        """Some executor has nothing to do, and may be given something."""
        return self._pool.room(now) > 0

    def save(self) -> bool:
        """Give an idle executor what is decided and not durable, at once. False if there is nothing to save, or no
        executor is idle."""
        idle = self._pool.idle
        group = None if idle is None else self._unsaved(float("inf"))
        if group is None or idle is None:
            return False
        self._submit(idle, group)
        return True

    def next_due(self, now: float) -> float | None:
        """Seconds until something must be dispatched although nothing happens before; none: never."""
        dues = [
            held.due
            for found in self._ownership.assignments.values()
            for held in found.held.values()
            if not held.running
        ]
        if self._lingering_since is not None:
            dues.append(self._lingering_since + self._subscription.linger_s)
        if self._unsaved_since is not None:
            dues.append(self._unsaved_since + SAVE_AFTER_S)
        if len(self._pool.executors) > 1 and self.running:
            dues.append(now + self._pool.patience_s)
        return max(0.0, min(dues) - now) if dues else None

    def relieve(self, now: float) -> None:
        """Take the waiting records out of groups that a slow record holds up, and let that record's key run alone from
        now on. Only where another executor can go on meanwhile."""
        if len(self._pool.executors) == 1 or self._batch:
            return
        limit = max(SLOW_AT_LEAST_S, SLOW_FACTOR * self._subscription.target_s)
        for group in self._pool.groups:
            if now - group.started < limit or group.suspects:
                continue
            slow = group.current
            if slow is None:  # it has not begun: the store holds it up, not a record
                continue
            withdrawn = group.withdraw()
            if not withdrawn:
                continue
            found = self._ownership.assignments.get((slow.topic, slow.partition))
            if found is not None and slow.key is not None:
                found.lanes.slow.add(slow.key)
            busy = {(r.topic, r.partition, r.key) for r in group.records}
            self.give_back(group, withdrawn, busy=busy)

    def give_back(self, group: Group, records: Iterable[Record], *, busy: AbstractSet[LaneKey] = frozenset()) -> None:
        """Records of the group that did not run are next again; those of a `busy` key once it is free."""
        by_place: dict[Partition, list[Record]] = {}
        for record in records:
            by_place.setdefault((record.topic, record.partition), []).append(record)
        for place, theirs in by_place.items():
            found = self._ownership.assignments.get(place)
            if found is not None and found.epoch == group.parts[place].now.epoch:
                found.give_back(theirs, busy={key for topic, number, key in busy if (topic, number) == place})

    def _submit(self, executor: Executor, group: Group) -> None:
        self._note(executor, group)
        executor.submit(group)

    def _note(self, executor: Executor, group: Group) -> None:
        for place in group.parts:
            self._ownership.assignments[place].groups_running += 1
        self._unsaved_since = None
        executor.group = group

    def _next(self, now: float) -> Group | None:
        return (
            self._suspects()
            or self._redrive()
            or self._due(now)
            or self._suspects()
            or self._apart()
            or self._ready(now)
            or self._unsaved(now)
        )

    def _active(self) -> list[Assignment]:
        """The assignments to take from, starting with another one each time."""
        found = [each for each in self._ownership.assignments.values() if not each.revoking]
        self._turn += 1
        start = self._turn % len(found) if found else 0
        return found[start:] + found[:start]

    def _group(self, takers: dict[Partition, list[Record]], *, redrive: bool = False) -> Group:
        """A group of these records, taking along all that is decided in their partitions."""
        parts: dict[Partition, Part] = {}
        endings: list[Ending] = []
        charges: list[tuple[Record, Attempts]] = []
        parked: set[LaneKey] = set()
        for place, records in takers.items():
            found = self._ownership.assignments[place]
            if redrive:
                parts[place] = found.part(decided=False)
                continue
            parts[place] = found.part(records)
            endings += found.endings
            charges += found.charges
            found.endings, found.charges = [], []
            parked |= {(*place, key) for key in found.parked}
        everything = [record for records in takers.values() for record in records]
        group = Group(everything, parts, endings=endings, charges=charges, redrive=redrive, parked=parked)
        group.by_place = {place: records for place, records in takers.items() if records}
        return group

    def _suspects(self) -> Group | None:
        if any(group.suspects for group in self._pool.groups):
            return None
        for found in self._active():
            if not found.suspects or found.groups_running:
                continue
            if found.endings or found.charges:  # durable first: a suspect that failed is none any more
                return self._group({found.place: []})
            records = [record for record in found.take_suspects() if not self._judge.lost(found, record)]
            if records:
                found.suspects_running = True
                return self._recorded(found, records)
        return None

    def _recorded(self, found: Assignment, records: list[Record]) -> Group:
        """Suspects, whose start is made durable before the first of them starts."""
        alone = len(records) == 1 or found.runs_alone(records[0])
        charges = [(record, _suspected(found.attempts.get(record.offset), alone=alone)) for record in records]
        part = found.part(() if alone else records, decided=False)
        return Group(records, {found.place: part}, charges=charges, suspects=True, alone=alone)

    def _redrive(self) -> Group | None:
        for found in self._ownership.assignments.values():
            if found.redrives.failed:
                ending = found.redrives.failed.popleft()
                return Group([], {found.place: found.part(decided=False)}, endings=[ending], redrive=True)
        for found in self._active():
            entry = None if found.suspicious else found.redrives.take(found.lanes)
            if entry is not None:
                found.lanes.hold(entry.record.key)
                if entry.number in found.redrives.behind:
                    found.redrives.behind.discard(entry.number)
                    return Group([], {found.place: found.part(decided=False)}, endings=[_parked(entry)], redrive=True)
                return self._group({found.place: [entry.record]}, redrive=True)
        return None

    def _due(self, now: float) -> Group | None:
        for found in self._active():
            if found.suspicious:
                continue
            for held in found.held.values():
                if held.due <= now and not held.running:
                    held.running = True
                    if not found.is_doubted(held.record) and held.record.offset >= found.suspects_end:
                        return self._group({found.place: [held.record]})
                    found.suspects.insert(0, held.record)  # its retry may be what the worker before died of
                    break
        return None

    def _apart(self) -> Group | None:
        """Slow keys run alone, and never in the last idle executor."""
        if self._pool.last_idle:
            return None
        for found in self._active():
            record = None if found.suspicious else found.lanes.take_apart()
            if record is not None:
                group = self._group({found.place: [record]})
                group.apart = True
                return group
        return None

    def _ready(self, now: float) -> Group | None:
        active = [each for each in self._active() if len(each.lanes) and not each.suspicious]
        if not active:
            self._lingering_since = None
            return None
        if self._linger(active, now):
            return None
        active = self._apart_from_others(active)
        share, left_bytes = self._share(active, now), float(self._subscription.group_bytes)
        left = share
        takers: dict[Partition, list[Record]] = {}
        for number, found in enumerate(active):
            average = self._in_flight.average(found.place)
            fitting = int(left_bytes / average) if average else left
            if fitting < 1 and takers:
                break
            fair = max(-(-left // (len(active) - number)), share // PARTITIONS)
            records = found.lanes.take(max(1, min(fair, fitting, left)))
            if records:
                takers[found.place] = records
                left -= len(records)
                left_bytes -= average * len(records)
            if left <= 0:
                break
        if not takers:
            return None
        self.alone = max(0, self.alone - 1)
        return self._group(takers)

    def _apart_from_others(self, active: list[Assignment]) -> list[Assignment]:
        """Side by side, executors take from different partitions where there are enough: groups of one partition wait
        for one another at its frontier when they commit."""
        most = -(-len(self._ownership.assignments) // self._pool.width)
        free = [each for each in active if not each.groups_running]
        return (free or active)[:most]

    def _share(self, active: Sequence[Assignment], now: float) -> int:
        """How many records this group takes: the adaptive size, less where other executors may take some too."""
        if self.alone:
            return 1
        ready = sum(len(found.lanes) for found in active)
        return max(1, min(self.size.size, -(-ready // max(1, self._pool.room(now)))))

    def _linger(self, active: Sequence[Assignment], now: float) -> bool:
        """Whether to wait for a fuller group."""
        if self._subscription.linger_s <= 0:
            return False
        ready = sum(len(found.lanes) for found in active)
        size = sum(len(found.lanes) * self._in_flight.average(found.place) for found in active)
        full = ready >= self.size.size or size >= self._subscription.group_bytes
        if full or (self._lingering_since is not None and now - self._lingering_since >= self._subscription.linger_s):
            self._lingering_since = None
            return False
        if self._lingering_since is None:
            self._lingering_since = now
        return True

    def _unsaved(self, now: float) -> Group | None:
        """A group without records for what is decided, or a frontier that moved without one."""
        undone = [each for each in self._ownership.assignments.values() if each.unsaved]
        if not undone:
            self._unsaved_since = None
            return None
        if self._unsaved_since is None:
            self._unsaved_since = now
        hurry = any(each.revoking or each.endings or each.charges for each in undone)
        if not hurry and now - self._unsaved_since < SAVE_AFTER_S:
            return None
        return self._group({each.place: [] for each in undone})


def _parked(entry: QuarantineEntry) -> Ending:
    """A redrive that was asked for and did not run: as it was, behind an earlier record of its key."""
    attempts = Attempts(count=0, first_us=entry.attempts.first_us, due_us=0, last=entry.failure)
    return Ending(entry.record, Outcome.QUARANTINED, entry.failure, attempts, parked=True)


def _suspected(known: Attempts | None, *, alone: bool) -> Attempts:
    """What is stored before a suspect starts: that it may have been running when a worker died, once at least."""
    if known is None:
        return Attempts(count=1, first_us=0, due_us=0, suspect=True, alone=alone)
    return msgspec.structs.replace(known, count=max(1, known.count), suspect=True, alone=alone)
