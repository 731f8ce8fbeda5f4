"""Reckoning: a group's report becomes the owner's new state: frontiers, lanes, failures, redrives."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from settled.delivery.assignment import Assignment
from settled.delivery.dispatch import Dispatch
from settled.delivery.flow import InFlight
from settled.delivery.group import Group, Report
from settled.delivery.judge import Judge
from settled.delivery.ownership import Ownership
from settled.delivery.subscription import Subscription
from settled.engine import Partition
from settled.errors import Unavailable
from settled.events import AttemptFailed, Events, Settled
from settled.outcome import Attempts, Ending, Failure, Outcome
from settled.record import Record
from settled.store import QuarantineEntry, Selection, Store

log = logging.getLogger("settled.delivery")


class Reckoning:
    """Takes reports in the order in which they came."""

    def __init__(
        self,
        ownership: Ownership,
        dispatch: Dispatch,
        judge: Judge,
        in_flight: InFlight,
        subscription: Subscription,
        events: Events,
        store: Store,
    ) -> None:
        self._ownership, self._dispatch, self._judge = ownership, dispatch, judge
        self._in_flight, self._subscription, self._events = in_flight, subscription, events
        self._store = store
        self._consumer = subscription.consumer.consumer

    def reckon(self, report: Report) -> None:
        group = report.group
        owned = self._still_owned(group)
        for found in owned.values():
            found.groups_running -= 1
            if group.suspects:
                found.suspects_running = False
        if group.redrive:
            self._reckon_redrive(report, owned)
            return
        if not report.written:
            self._undecide(group, owned)
        for progress in report.progress:
            moved = owned.get((progress.topic, progress.partition))
            if moved is not None:
                moved.stored = max(moved.stored, progress.frontier)
        self._end_durably(report, owned)
        for record, failure in report.failures:
            self._fail(group, record, failure, owned)
        self._return(report, owned)
        if group.suspects:
            ran = sum(ending.outcome is not Outcome.DUPLICATE for ending in report.endings) + len(report.failures)
            for found in owned.values():
                found.suspects_ran(ran)
        self._tell(report)

    def _still_owned(self, group: Group) -> dict[Partition, Assignment]:
        """The partitions of the group that are this member's still, under the same epoch."""
        found: dict[Partition, Assignment] = {}
        for place, part in group.parts.items():
            assignment = self._ownership.assignments.get(place)
            if assignment is not None and assignment.epoch == part.now.epoch:
                found[place] = assignment
        return found

    def _undecide(self, group: Group, owned: dict[Partition, Assignment]) -> None:
        """Nothing was written: what was decided before waits for the next group."""
        for ending in reversed(group.endings):
            found = owned.get((ending.record.topic, ending.record.partition))
            if found is not None:
                found.endings.insert(0, ending)
        for record, attempts in reversed(group.charges) if not group.suspects else ():
            found = owned.get((record.topic, record.partition))
            if found is not None:
                found.charges.insert(0, (record, attempts))

    def _end_durably(self, report: Report, owned: dict[Partition, Assignment]) -> None:
        """What was decided before and what this group's run made of its records."""
        if report.written:
            self._end(report.group.endings, owned)
        if report.applied:
            self._end_all(report.group.placed(), owned)
        else:
            self._end(report.ended, owned)

    def _tell(self, report: Report) -> None:
        decided = report.group.endings if report.written else []
        if not (decided or report.count):
            return
        counts = _counts(report, decided)
        self._judge.succeeded(counts[Outcome.APPLIED])
        self._dispatch.size.observe(report.count, report.worked)
        self._events.tell(Settled(self._consumer, dict(counts), report.seconds))

    def _end(self, endings: list[Ending], owned: dict[Partition, Assignment]) -> None:
        by_place: dict[Partition, list[Record]] = {}
        for ending in endings:
            record = ending.record
            by_place.setdefault((record.topic, record.partition), []).append(record)
        self._end_all(by_place, owned)

    def _end_all(self, by_place: dict[Partition, list[Record]], owned: dict[Partition, Assignment]) -> None:
        for place, records in by_place.items():
            found = owned.get(place)
            if found is not None:
                found.ended(records)
                self._in_flight.remove(place, len(records))

    def _fail(self, group: Group, record: Record, failure: Failure, owned: dict[Partition, Assignment]) -> None:
        place = (record.topic, record.partition)
        found = owned.get(place)
        if found is None:
            return
        if self._subscription.mode == "at-most-once":  # the frontier is past it: it is not run again, and is lost
            self._events.tell(AttemptFailed(self._consumer, record, failure, 1))
            self._events.tell(Settled(self._consumer, {Outcome.DISCARDED: 1}, 0.0))
            self._end([Ending(record, Outcome.DISCARDED, failure)], owned)
            return
        try:
            self._judge.failed(found, record, failure)
        except Unavailable as error:  # nobody knows what time it is: run it again, with nothing charged
            log.warning("a failed run was not judged: %s", error)
            self._dispatch.give_back(group, [record])

    def _return(self, report: Report, owned: dict[Partition, Assignment]) -> None:
        returned = [record for record in report.returned if (record.topic, record.partition) in owned]
        if not returned:
            return
        if report.group.suspects:
            found = owned[(returned[0].topic, returned[0].partition)]
            found.give_back_suspects(returned)
            if report.isolate:
                found.isolated |= {record.offset for record in returned}
            return
        if report.isolate:
            self._dispatch.alone += len(returned)
        self._dispatch.give_back(report.group, returned)

    # Redrives: quarantined records that run again, each alone, with the lane of their key held.

    def look_for_redrives(self) -> None:
        """Queue what people asked for since the last look."""
        if not self._subscription.consumer.inbox:
            return
        for found in self._ownership.assignments.values():
            asked = self._store.redrives(self._consumer, found.topic, found.partition)
            fresh = [entry for entry in asked if entry.number not in found.redrives]
            if any(entry.parked for entry in fresh):
                self._find_behind(found, fresh)
            found.redrives.add(fresh)
            if self._parks and not found.groups_running:
                self._recall_parked(found)

    def _find_behind(self, found: Assignment, fresh: list[QuarantineEntry]) -> None:
        """Parked entries whose redrive was asked for without that of the record which they wait for."""
        shelf = self._store.quarantine
        held = shelf.entries(shelf.select(Selection(consumer=self._consumer, topic=found.topic, states=("held",))))
        first: dict[bytes | None, int] = {}
        for entry in held:
            if entry.record.partition == found.partition:
                first[entry.record.key] = min(entry.record.offset, first.get(entry.record.key, entry.record.offset))
        for entry in fresh:
            if entry.parked and first.get(entry.record.key, entry.record.offset) < entry.record.offset:
                found.redrives.behind.add(entry.number)

    @property
    def _parks(self) -> bool:
        return self._subscription.retry.then == "park"

    def _recall_parked(self, found: Assignment) -> None:
        kept = self._store.parked(self._consumer, found.topic, found.partition)
        found.parked = kept | {ending.record.key for ending in found.endings if ending.record.key is not None}

    def _reckon_redrive(self, report: Report, owned: dict[Partition, Assignment]) -> None:
        """One whose partition was lost meanwhile is asked of the store anew."""
        for found in owned.values():  # one: each runs alone
            redrives = found.redrives
            decided = report.group.endings
            if report.fault is not None:
                redrives.failed += decided
                decided = []
            for record, failure in report.failures:
                redrives.failed.append(_held_again(record, failure, redrives.attempts(record)))
                if self._parks:
                    redrives.hold_back(record)
            for record in report.returned:
                redrives.returned(record)
            over = [ending.record for ending in (*report.endings, *decided)]
            for record in over:
                redrives.ended(record)
            for record in (*over, *report.returned):
                self._unpark(found)
                found.lanes.release([record.key])
        if report.count:
            self._events.tell(Settled(self._consumer, dict(_counts(report)), report.seconds))

    def _unpark(self, found: Assignment) -> None:
        """Before the key is free again: does anything of it still stand in quarantine?"""
        if self._parks:
            try:
                self._recall_parked(found)
            except Unavailable as error:  # the next look tells
                log.warning("what is parked is not known now: %s", error)


def _counts(report: Report, decided: Sequence[Ending] = ()) -> Counter[Outcome]:
    """How many records ended how, those of other groups that were `decided` before included."""
    counts = Counter(ending.outcome for ending in (*decided, *report.ended))
    if report.applied:
        counts[Outcome.APPLIED] += report.count
    return counts


def _held_again(record: Record, failure: Failure, before: Attempts | None) -> Ending:
    """A redrive that failed goes back to quarantine, its attempts added up."""
    attempts = Attempts(
        count=(before.count if before else 0) + 1,
        first_us=before.first_us if before else 0,
        due_us=0,
        last=failure,
        first=before.first if before and before.first else failure,
    )
    return Ending(record, Outcome.QUARANTINED, failure, attempts)
