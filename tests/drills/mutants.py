"""Seeded mutants of settled: each breaks one promise, by replacing one step. Loaded only by `mutant_worker.py`, the
fork server of these tests; the product knows nothing of them.
"""

import threading
import time
from collections.abc import Callable
from copy import copy
from typing import Any

from settled import windows
from settled.delivery import attempt, frontier, lanes, ownership, worker
from settled.delivery import run as running
from settled.delivery.assignment import Assignment
from settled.delivery.group import Group, Report
from settled.engine import Partition
from settled.engines.sqlite import membership
from settled.engines.sqlite.consumer import SqliteConsumer
from settled.engines.sqlite.pending import Batch
from settled.engines.sqlite.producer import SqliteProducer
from settled.store import NONE_APPLIED
from settled.stores import shelf
from settled.stores.sqlite import session
from settled.stores.sqlite.store import SqliteStore

Mutant = Callable[[], None]
MUTANTS: dict[str, Mutant] = {}


def mutant(function: Mutant) -> Mutant:
    MUTANTS[function.__name__] = function
    return function


@mutant
def acknowledges_before_the_commit() -> None:
    """Batches count as accepted at their (predicted) offsets while they are still being written."""
    append = SqliteProducer._append

    def early(self: SqliteProducer, batches: list[Batch]) -> None:
        with self._database.reading() as connection:
            rows = dict(connection.execute("SELECT id, next FROM log_partition").fetchall())
        late = []
        for batch in batches:
            for part, (place, group) in zip(batch.pack(self.spec.compression), batch.groups.items(), strict=True):
                group.base = rows[place]
                rows[place] += part.encoded.count
            late.append(Batch())  # finishing empties the others
            late[-1].parts, late[-1].count, late[-1].size = batch.parts, batch.count, batch.size
            late[-1].groups = {place: copy(group) for place, group in batch.groups.items()}

        def later() -> None:
            time.sleep(0.02)
            append(self, late)

        writing.append(threading.Thread(target=later))
        writing[-1].start()

    def close_later(self: SqliteProducer) -> None:
        for thread in writing:
            thread.join()
        close(self)

    writing: list[threading.Thread] = []
    close = SqliteProducer.close
    SqliteProducer._append = early  # type: ignore[method-assign]
    SqliteProducer.close = close_later  # type: ignore[method-assign]


@mutant
def frontier_before_effect() -> None:
    """What at-most-once does, under effectively-once."""
    run = attempt.Attempt._settle_group

    def first(self: attempt.Attempt, group: Group) -> Report:
        if group.records and not group.redrive:
            self._give_up_first(group)
        return run(self, group)

    attempt.Attempt._settle_group = first  # type: ignore[method-assign]


@mutant
def effect_and_marks_in_two_transactions() -> None:
    settle = session.SqliteSession.settle

    def twice(self: session.SqliteSession, *args: Any) -> None:
        if self._writing and self._handle.connection.in_transaction:
            fence, redrive = [progress for _, progress in self._fence], self._redrive
            self._handle.guarded = False
            self._handle.commit()
            self._end()
            windows.reach("frontier-before-effect")  # a window that this mode does not have otherwise
            self.begin(fence, redrive=redrive)
        settle(self, *args)

    session.SqliteSession.settle = twice  # type: ignore[method-assign]


@mutant
def fence_is_not_checked_in_the_transaction() -> None:
    begin = session.SqliteSession.begin

    def checked_before(self: session.SqliteSession, fence: Any, *, redrive: bool = False) -> None:
        begin(self, fence, redrive=redrive)
        self._check_fence = lambda: None  # type: ignore[method-assign]

    session.SqliteSession.begin = checked_before  # type: ignore[method-assign]
    session._MOVE = session._MOVE.replace("AND epoch = ?2", "AND ?2 = ?2")
    session._KEEP = session._KEEP.replace("AND epoch = ?2", "AND ?2 = ?2")


@mutant
def quarantine_drops_the_record() -> None:
    shelf.add = lambda *args: None  # type: ignore[assignment]


@mutant
def redrive_ends_in_a_transaction_of_its_own() -> None:
    settle = session.SqliteSession.settle

    def apart(
        self: session.SqliteSession, endings: Any, progress: Any, charges: Any = (), applied: Any = NONE_APPLIED
    ) -> None:
        if not self._redrive:
            settle(self, endings, progress, charges, applied)
            return
        self._redrive = False
        settle(self, [], progress, charges)
        windows.reach("redrive-written")
        self.begin(progress, redrive=True)
        settle(self, endings, progress, (), applied)

    session.SqliteSession.settle = apart  # type: ignore[method-assign]


@mutant
def takeover_starts_at_the_latest_record() -> None:
    start = SqliteConsumer.start

    def latest(self: SqliteConsumer, topic: str, partition: int, offset: int, *, witness: Any = None) -> None:
        with self._database.reading() as connection:
            row = self._membership.topics[topic].parts[partition]
            end = connection.execute("SELECT next FROM log_partition WHERE id = ?", (row,)).fetchall()[0][0]
        start(self, topic, partition, end if offset else 0, witness=None if offset else witness)

    SqliteConsumer.start = latest  # type: ignore[method-assign]


@mutant
def engine_is_told_more_than_is_settled() -> None:
    def ahead(self: ownership.Ownership, assignments: list[Assignment]) -> None:
        told: dict[Partition, int] = {found.place: found.frontier.next_offset + 3 for found in assignments}
        self._consumer.commit(told)

    ownership.Ownership._commit = ahead  # type: ignore[method-assign]


@mutant
def failed_record_does_not_hold_its_key() -> None:
    def passed(self: Assignment, record: Any, attempts: Any, due: float) -> None:
        hold(self, record, attempts, due)
        self.lanes.release([record.key])

    hold = Assignment.hold
    Assignment.hold = passed  # type: ignore[method-assign]
    running.Run._blocked = lambda self, record: False  # type: ignore[method-assign]


@mutant
def frontier_skips_holes() -> None:
    ended = frontier.Frontier.if_ended

    def highest(self: frontier.Frontier, offsets: list[int]) -> Any:
        position, witness = ended(self, offsets)
        return max(position, offsets[-1] + 1), witness

    frontier.Frontier.if_ended = highest  # type: ignore[method-assign]
    running.Run.progress = lambda self: [part.then for part in self.group.parts.values()]  # type: ignore[method-assign]


@mutant
def shutdown_settles_what_never_ran() -> None:
    end = worker.Worker._end

    def forgetful(self: worker.Worker) -> None:
        for found in self._ownership.assignments.values():
            found.frontier._runs.clear()
        end(self)

    worker.Worker._end = forgetful  # type: ignore[method-assign]


@mutant
def marks_are_pruned_before_redelivery_ends() -> None:
    def all_of_them(self: SqliteStore, consumer: str, *, older_than_s: float, batch: int = 1000) -> int:
        self._work(lambda handle: handle.run("DELETE FROM settled_inbox"))
        return 0

    SqliteStore.prune = all_of_them  # type: ignore[method-assign]


@mutant
def inbox_is_not_asked() -> None:
    session.SqliteSession.screen = lambda self, records: [None] * len(records)  # type: ignore[method-assign]
    session._MARK = session._MARK.replace("OR IGNORE", "OR REPLACE")
    session._MARK_RUN = session._MARK_RUN.replace("OR IGNORE", "OR REPLACE")


@mutant
def frontier_is_where_fetching_stands() -> None:
    def received(self: frontier.Frontier, offsets: list[int]) -> Any:
        return self.next_offset, self.witness

    frontier.Frontier.if_ended = received  # type: ignore[method-assign]
    running.Run.progress = lambda self: [part.then for part in self.group.parts.values()]  # type: ignore[method-assign]


@mutant
def failed_runs_are_not_undone() -> None:
    session.SqliteSession.undo = lambda self: None  # type: ignore[method-assign]


@mutant
def leases_never_run_out() -> None:
    membership.Membership._expire = lambda self, connection: False  # type: ignore[method-assign]


@mutant
def groups_run_in_reverse() -> None:
    take = lanes.Lanes.take
    lanes.Lanes.take = lambda self, most: take(self, most)[::-1]  # type: ignore[method-assign]
