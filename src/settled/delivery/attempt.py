"""One attempt: a group of records is screened, run and settled in one transaction of the effect store.

The usual group runs plainly. When a record fails, the group is rolled back and run again carefully, in parts between
savepoints, until the failing record stands alone in its part; the others are settled as if it had not been there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from settled import windows
from settled.delivery.binding import Binding
from settled.delivery.group import Group, Part, Report
from settled.delivery.retry import RetryPolicy, failure_of
from settled.delivery.run import Run
from settled.delivery.subscription import Mode
from settled.errors import CommitUnknown, Fenced, Refused, SettledError, Unavailable
from settled.outcome import Ending, Outcome
from settled.store import Conflict, Session

CAREFUL_GROUPS = 50  # how many groups after a failure are run carefully from the start
MAX_CONFLICTS = 20


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
                total.ended.append(Ending(claimed[0], Outcome.DUPLICATE))
                continue
            single = Group(claimed, {key: Part(each.now, each.now) for key, each in group.parts.items()})
            report = self._guarded(single, self._settle_group)
            total.ended += report.endings
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
        run = Run(self._session, self._binding, group, self._retry, inbox=self._mode == "effectively-once")
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
            applied = group.placed() if run.applied else {}
            self._session.settle(run.endings + group.endings, progress, group.charges, applied)
        except (Unavailable, Fenced, Conflict):
            raise
        except Exception as error:  # noqa: BLE001 - a constraint checked at commit, a swallowed error or refusal
            self._session.rollback()
            self._careful = CAREFUL_GROUPS
            return self._failed_at_commit(group, error)
        if group.endings:
            windows.reach("decisions-written")
        windows.reach("redrive-written" if group.redrive else "effect-committed")
        return Report(
            group, run.endings, run.failures, run.returned, applied=run.applied, progress=progress, worked=worked
        )

    def _failed_at_commit(self, group: Group, error: Exception) -> Report:
        """The commit itself was refused. A record that was alone is to blame; of several it is not known which, and
        all are returned, to be run alone."""
        records = group.records
        if not records:  # only decisions and frontiers: nothing a handler did can be the cause
            raise SettledError(f"what was decided could not be written: {error}") from error
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
