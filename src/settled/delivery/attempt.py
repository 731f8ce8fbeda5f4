"""One attempt: a group of records is screened, run and settled in one transaction of the effect store.

The usual group runs plainly. When a record fails, the group is rolled back and run again carefully, in parts between
savepoints, until the failing record stands alone in its part; the others are settled as if it had not been there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat

import msgspec

from settled import windows
from settled.delivery.binding import Binding
from settled.delivery.retry import RetryPolicy, failure_of
from settled.delivery.subscription import Mode
from settled.engine import Partition
from settled.errors import CommitUnknown, Fenced, Refused, SettledError, Unavailable
from settled.outcome import Attempts, Ending, Failure, FailureClass, Outcome
from settled.record import Record
from settled.store import Conflict, Progress, Session

CLAIM_MOST, QUICK_S = 16, 0.001  # records claimed at once, while so many together take less than a millisecond
CAREFUL_PART = 32  # records between two savepoints while failures are about
CAREFUL_GROUPS = 50  # how many groups after a failure are run carefully from the start
MAX_CONFLICTS = 20
PARKED = Failure(FailureClass.PERMANENT, "parked", "an earlier record of its key is in quarantine", "", "parked")
NOT_RUN = Attempts(count=0, first_us=0, due_us=0)


LaneKey = tuple[str, int, bytes | None]  # topic, partition, key


class Part(msgspec.Struct):
    """What a group does to one partition: the frontier as it stands, and as it will if every record ends."""

    now: Progress
    then: Progress


class Group:
    """Records handed to an executor. The executor claims them one by one; the owner may withdraw the unclaimed."""

    def __init__(
        self,
        records: Sequence[Record],
        parts: dict[Partition, Part],
        *,
        endings: Sequence[Ending] = (),
        charges: Sequence[tuple[Record, Attempts]] = (),
        suspects: bool = False,
        alone: bool = False,
        redrive: bool = False,
        parked: AbstractSet[LaneKey] = frozenset(),
    ) -> None:
        self.parts, self.endings, self.charges = parts, list(endings), list(charges)
        self.suspects, self.alone = suspects, alone  # start on record first; one after the other, not together
        self.redrive, self.parked = redrive, parked
        self.started = time.monotonic()
        self.short: set[Partition] = set()  # partitions of withdrawn records
        self.by_place: dict[Partition, list[Record]] | None = None  # the records by partition, where that is known
        self._all = list(records)
        self._claimed = 0  # how many of them, from the front
        self.current: Record | None = None  # the record that runs, or has just run
        self._closed = False
        self._lock = threading.Lock()

    @property
    def records(self) -> list[Record]:
        """All that the executor may have claimed: what was handed over less what was withdrawn."""
        return self._all

    @property
    def size(self) -> int:
        return len(self._all)

    def claim(self, most: int) -> list[Record]:
        with self._lock:
            claimed = self._all[self._claimed : self._claimed + most]
            self._claimed += len(claimed)
            return claimed

    def rewind(self) -> None:
        """None of it is claimed: it is run from the start again."""
        with self._lock:
            self._claimed = 0

    def close(self) -> list[Record]:
        """All that was not withdrawn, and from now on nothing is withdrawn."""
        with self._lock:
            self._closed = True
            return self._all

    def withdraw(self) -> list[Record]:
        """Take back what the executor has not claimed yet. Any thread."""
        with self._lock:
            if self._closed:
                return []
            withdrawn = self._all[self._claimed :]
            if withdrawn:
                self._all = self._all[: self._claimed]
                self.short |= {(record.topic, record.partition) for record in withdrawn}
            return withdrawn


class Report(msgspec.Struct):
    """What became of a group. Every claimed record is in exactly one of endings, failures and returned.

    endings    durable
    failures   ran and failed; nothing of them is stored yet
    returned   did not run, or ran and was undone without a fault of its own
    fault      Unavailable or Fenced: nothing was written, all records are in `returned`
    progress   what was written of the frontiers
    written    the group's endings and charges are durable
    isolate    nobody could be blamed: run the returned records alone
    worked     the part of `seconds` that grows with the records: without what a commit costs by itself
    """

    group: Group
    endings: list[Ending]
    failures: list[tuple[Record, Failure]]
    returned: list[Record]
    fault: SettledError | None = None
    progress: Sequence[Progress] = ()
    written: bool = True
    isolate: bool = False
    seconds: float = 0.0
    worked: float = 0.0


class Abandoned(Exception):
    """The grace time is over: whatever the handler made of it, nothing more is committed."""


class Attempt:
    """Runs groups on one session. One executor thread owns it; `abandon` may be called from any."""

    def __init__(self, session: Session, binding: Binding, mode: Mode, retry: RetryPolicy) -> None:
        self._session, self._binding, self._mode, self._retry = session, binding, mode, retry
        self._careful = 0
        self._abandoned = False

    def abandon(self) -> None:
        """Commit nothing from now on."""
        self._abandoned = True

    def run(self, group: Group) -> Report:
        """Never raises: what went wrong is in the report."""
        began = time.perf_counter()
        report = self._guarded(group, self._recorded if group.suspects else self._settle_group)
        group.close()  # what is reported cannot be withdrawn as well
        report.seconds = time.perf_counter() - began
        return report

    def _guarded(self, group: Group, run: Callable[[Group], Report]) -> Report:
        """Run the group; what is nobody's fault becomes part of the report, with nothing written."""
        try:
            return run(group)
        except (Unavailable, Fenced, Abandoned) as error:
            self._session.rollback()
            fault = error if isinstance(error, SettledError) else Unavailable("the worker is stopping")
            return Report(group, [], [], group.close(), fault, written=False)
        except Refused as error:  # the database ended the transaction by itself, and a savepoint was gone with it
            self._session.rollback()
            group.close()
            return self._failed_at_commit(group, error)
        except BaseException:
            self._session.rollback()
            raise

    def close(self) -> None:
        self._binding.close()
        self._session.close()

    def _recorded(self, group: Group) -> Report:
        """Suspects: that they are about to start is durable first. Those that had ended before need no run."""
        ended = self._ended_before(group)
        charges = [(record, attempts) for record, attempts in group.charges if id(record) not in ended]
        if charges:
            self._session.charge(next(iter(group.parts.values())).now, charges)
            windows.reach("suspects-recorded")
        group.charges = []
        return self._one_by_one(group, ended) if group.alone else self._settle_group(group)

    def _one_by_one(self, group: Group, ended: set[int]) -> Report:
        """Each in a transaction of its own, in order. If the process dies, the first that is still on record is the
        one that ran."""
        total = Report(group, [], [], [])
        while not (total.failures or total.fault) and (claimed := group.claim(1)):
            if id(claimed[0]) in ended:
                total.endings.append(Ending(claimed[0], Outcome.DUPLICATE))
                continue
            single = Group(claimed, {key: Part(each.now, each.now) for key, each in group.parts.items()})
            report = self._guarded(single, self._settle_group)
            total.endings += report.endings
            total.failures += report.failures
            total.returned += report.returned
            total.fault = report.fault
        total.returned += group.withdraw()
        return total

    def _ended_before(self, group: Group) -> set[int]:
        if self._mode != "effectively-once":
            return set()
        outcomes = self._session.settled(group.records)
        return {id(record) for record, outcome in zip(group.records, outcomes, strict=True) if outcome is not None}

    def _settle_group(self, group: Group) -> Report:
        if self._mode == "at-most-once":
            self._give_up_first(group)
        for _ in range(MAX_CONFLICTS):
            try:
                return self._once(group)
            except Conflict:
                self._session.rollback()
                group.rewind()
            except CommitUnknown:
                self._session.rollback()
                found = self._look(group)
                if found is not None:
                    return found
                raise
        raise Unavailable(
            f"{MAX_CONFLICTS} times another transaction settled one of the same event ids meanwhile",
            hint="nothing is lost; if it goes on, look for two producers that publish the same ids under other keys",
        )

    def _give_up_first(self, group: Group) -> None:
        """At most once: the frontier passes the records before they run; what dies now is lost."""
        group.close()
        frontiers = [part.now if place in group.short else part.then for place, part in group.parts.items()]
        self._session.begin([part.now for part in group.parts.values()])
        self._session.settle([], frontiers)
        for part, frontier in zip(group.parts.values(), frontiers, strict=True):
            part.now = frontier
        windows.reach("frontier-before-effect")

    def _once(self, group: Group) -> Report:
        """One run of the group: screen, run, settle."""
        self._session.causes(lambda: group.current)
        run = _Run(self._session, self._binding, group, self._retry, inbox=self._mode == "effectively-once")
        self._session.begin([part.now for part in group.parts.values()], redrive=group.redrive)
        windows.reach("redrive-begun" if group.redrive else "unit-begun")
        began = time.perf_counter()
        run.screen()
        careful = self._careful > 0 and group.size > 1  # a record alone needs no savepoint
        if not careful and not run.plainly():
            careful = True
            self._careful = CAREFUL_GROUPS
            self._session.rollback()
            self._session.begin([part.now for part in group.parts.values()], redrive=group.redrive)
        if careful:
            self._careful -= 1
            run.carefully()
        if self._abandoned:
            raise Abandoned
        worked = time.perf_counter() - began
        windows.reach("effect-made")
        progress = run.progress()
        try:
            self._session.settle(run.endings + group.endings, progress, group.charges)
        except (Unavailable, Fenced, Conflict):
            raise
        except Exception as error:  # noqa: BLE001 - a constraint checked at commit, a swallowed error or refusal
            self._session.rollback()
            self._careful = CAREFUL_GROUPS
            return self._failed_at_commit(group, error)
        if group.endings:
            windows.reach("decisions-written")
        windows.reach("redrive-written" if group.redrive else "effect-committed")
        return Report(group, run.endings, run.failures, run.returned, progress=progress, worked=worked)

    def _failed_at_commit(self, group: Group, error: Exception) -> Report:
        """The commit itself was refused. A record that was alone is to blame; of several it is not known which, and
        all are returned, to be run alone."""
        records = group.records
        if len(records) == 1:
            return Report(group, [], [(records[0], failure_of(error, self._retry.classes))], [], written=False)
        return Report(group, [], [], records, written=False, isolate=True)

    def _look(self, group: Group) -> Report | None:
        """After a commit without an answer: what the inbox says. None: nothing was committed, run it again.

        Without an inbox there is nothing to look at, and the group runs again: it may repeat, as its mode says.
        """
        if self._mode != "effectively-once":
            return None
        outcomes = self._session.settled(group.records)
        if not any(outcomes):
            return None
        endings = [Ending(r, o) for r, o in zip(group.records, outcomes, strict=True) if o is not None]
        returned = [r for r, o in zip(group.records, outcomes, strict=True) if o is None]
        return Report(group, endings, [], returned)


class _Run:
    """One run of a group, up to the point where its endings are known."""

    def __init__(self, session: Session, binding: Binding, group: Group, retry: RetryPolicy, *, inbox: bool) -> None:
        self.session, self.binding, self.group, self.retry, self.inbox = session, binding, group, retry, inbox
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
        if not self._screened:
            return list(map(Ending, ended, repeat(Outcome.APPLIED)))
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
