"""Run: one run of a group's handlers, up to the point where the endings are known. The store is not told here.

The usual run is plain. The careful one goes in parts between savepoints: a part that fails is split until the failing
record stands alone in its part.
"""

from __future__ import annotations

import time
from collections import deque

from settled.delivery.binding import Binding
from settled.delivery.group import Group
from settled.delivery.retry import RetryPolicy, failure_of
from settled.errors import Fenced, Unavailable
from settled.outcome import Attempts, Ending, Failure, FailureClass, Outcome
from settled.record import Record
from settled.store import Conflict, Progress, Session

CLAIM_MOST, QUICK_S = 16, 0.001  # records claimed at once, while so many together take less than a millisecond
CAREFUL_PART = 32  # records between two savepoints while failures are about
PARKED = Failure(FailureClass.PERMANENT, "parked", "an earlier record of its key is in quarantine", "", "parked")
NOT_RUN = Attempts(count=0, first_us=0, due_us=0)


class Run:
    """One run of a group, up to the point where its endings are known."""

    def __init__(self, session: Session, binding: Binding, group: Group, retry: RetryPolicy, *, inbox: bool) -> None:
        self.session, self.binding, self.group, self.retry, self.inbox = session, binding, group, retry, inbox
        self.applied = False  # all of the group: then there are no endings one by one
        self.endings: list[Ending] = []
        self.failures: list[tuple[Record, Failure]] = []
        self.returned: list[Record] = []
        self._screened: dict[int, Ending] = {}  # id(record) -> an ending that needs no run
        self._held: set[tuple[str, int, bytes]] = set()  # keys of failed records

    def screen(self) -> None:
        """Find the records whose ending is known without running them."""
        records, parked = self.group.records, self.group.parked
        taken = self._screen_decided() if self.inbox and self.group.endings and not self.group.redrive else set()
        if not records:
            return
        outcomes = self.session.screen(records)
        if not parked and not taken and not any(outcomes):
            return
        for record, outcome in zip(records, outcomes, strict=True):
            if outcome is None and record.id in taken:
                outcome = Outcome.DUPLICATE
            if outcome is not None:
                self._screened[id(record)] = Ending(record, outcome)
            elif (record.topic, record.partition, record.key) in parked:
                self._screened[id(record)] = Ending(record, Outcome.QUARANTINED, PARKED, NOT_RUN, parked=True)

    def _screen_decided(self) -> set[str]:
        """Of the endings that were decided before, those whose id was settled meanwhile become duplicates. Returns the
        ids of the others: their marks are written with this group."""
        decided = self.group.endings
        outcomes = self.session.screen([ending.record for ending in decided])
        self.group.endings = [
            Ending(ending.record, Outcome.DUPLICATE) if outcome is Outcome.DUPLICATE else ending
            for ending, outcome in zip(decided, outcomes, strict=True)
        ]
        return {ending.record.id for ending in self.group.endings if ending.outcome is not Outcome.DUPLICATE}

    def _endings(self, ended: list[Record]) -> list[Ending]:
        return [self._screened.get(id(record)) or Ending(record, Outcome.APPLIED) for record in ended]

    def plainly(self) -> bool:
        """Run all without savepoints. False when one failed: then nothing counts and the unit must be rolled back."""
        group = self.group
        single = len(group.records) == 1
        try:
            if self.binding.batch:
                self._run_all()
            else:
                self._run_each()
            if single:
                self.session.check()
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler is a failure like any other
            _raise_if_not_the_records(error)
            if single:
                self.failures.append((group.records[0], failure_of(error, self.retry.classes)))
                self.session.rollback()
                self.session.begin([part.now for part in group.parts.values()], redrive=group.redrive)
                return True
            group.rewind()
            return False
        self.applied = bool(group.records) and not self._screened
        if self._screened:
            self.endings = self._endings(group.records)
        return True

    def _run_each(self) -> None:
        """The loop that every record goes through: keep it short."""
        tx, one, screened, group = self.session.tx, self.binding.one, self._screened, self.group
        most = 1
        while claimed := group.claim(most):
            began = time.perf_counter()
            for record in claimed:
                if not screened or id(record) not in screened:
                    group.current = record
                    one(tx, record)
            quick = time.perf_counter() - began < QUICK_S
            most = min(CLAIM_MOST, 2 * most) if quick else 1

    def _run_all(self) -> None:
        records = self.group.close()
        to_run = [record for record in records if id(record) not in self._screened] if self._screened else records
        if to_run:
            self.binding.call(self.session.tx, to_run)

    def carefully(self) -> None:
        """Run in parts between savepoints; a part that fails is split until the failing record stands alone."""
        parts: deque[list[Record]] = deque()
        ended: list[Record] = []
        while parts or (claimed := self.group.claim(CAREFUL_PART)):
            part = parts.popleft() if parts else claimed
            if self._held:
                self.returned += [record for record in part if self._blocked(record)]
                part = [record for record in part if not self._blocked(record)]
            if not part:
                continue
            failed, error = self._try(part)
            if error is None:
                ended += part
            elif len(part) == 1:
                self._fail(part[0], error)
            else:
                parts.extendleft(reversed(_split(part, failed)))
        self.endings = self._endings(ended)

    def _try(self, part: list[Record]) -> tuple[int | None, BaseException | None]:
        """Run a part after a savepoint. If it fails or leaves the transaction unusable, it is undone and the error
        returned, with the index of the record that raised where that is known."""
        failed: int | None = None
        self.session.save()
        try:
            if self.binding.batch:
                to_run = [record for record in part if id(record) not in self._screened]
                if to_run:
                    self.binding.call(self.session.tx, to_run)
            else:
                for index, record in enumerate(part):
                    failed = index
                    self.group.current = record
                    if id(record) not in self._screened:
                        self.binding.call(self.session.tx, (record,))
            failed = None
            self.session.check()
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler is a failure like any other
            _raise_if_not_the_records(error)
            self.session.undo()
            return failed, error
        return None, None

    def _fail(self, record: Record, error: BaseException) -> None:
        self.failures.append((record, failure_of(error, self.retry.classes)))
        if record.key is not None:
            self._held.add((record.topic, record.partition, record.key))

    def _blocked(self, record: Record) -> bool:
        return record.key is not None and (record.topic, record.partition, record.key) in self._held

    def progress(self) -> list[Progress]:
        """The frontiers that hold once these endings are durable: a partition with a record that did not end stays."""
        short = {(r.topic, r.partition) for r in self.returned} | self.group.short
        short |= {(r.topic, r.partition) for r, _ in self.failures}
        return [part.now if place in short else part.then for place, part in self.group.parts.items()]


def _split(part: list[Record], failed: int | None) -> list[list[Record]]:
    """Smaller parts: before the failed record, it alone, behind it; halves where it is not known which failed."""
    if failed is None:
        middle = len(part) // 2
        return [part[:middle], part[middle:]]
    return [piece for piece in (part[:failed], [part[failed]], part[failed + 1 :]) if piece]


def _raise_if_not_the_records(error: BaseException) -> None:
    """Raise what is not the record's fault: the store is out of reach or ownership is gone. Looks behind what a
    handler wrapped around it."""
    look: deque[BaseException | None] = deque([error])
    for _ in range(50):
        if not look:
            return
        seen = look.popleft()
        if isinstance(seen, (Unavailable, Fenced, Conflict)):
            raise seen
        if seen is not None:
            look += (seen.__cause__, seen.__context__)
            if isinstance(seen, BaseExceptionGroup):
                look += seen.exceptions
