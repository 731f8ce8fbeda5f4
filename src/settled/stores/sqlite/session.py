"""One thread's units of work on a SQLite store. The write lock is taken at the handler's first statement, or at the
end if there was none; marks, versions, frontiers and quarantine are written at the end, under the same commit.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apsw

from settled import windows
from settled.clock import wall_us
from settled.engine import Partition
from settled.errors import ContractError, Fenced
from settled.outbox_row import Row
from settled.outcome import Attempts, Ending, Outcome
from settled.record import Record
from settled.store import NONE_APPLIED, Applied, AtHand, Calls, Conflict, ConsumerSpec, Progress, Tx
from settled.stores import evidence, shelf
from settled.stores.calls import StoredCalls
from settled.stores.fence import fenced
from settled.stores.outgoing import Outgoing
from settled.stores.sqlite import outbox
from settled.stores.sqlite.calls import open_calls
from settled.stores.sqlite.handle import Handle, ended_by_sqlite
from settled.stores.sqlite.tx import GuardedTx

_ADVANCE = "UPDATE settled_frontier SET frontier = max(coalesce(frontier, 0), ?3), updated_us = ?4"
_KEEP = f"{_ADVANCE} WHERE id = ?1 AND epoch = ?2"
_MOVE = (
    f"{_ADVANCE}, witness_offset = iif(?3 >= coalesce(frontier, 0), ?5, witness_offset),"
    " witness = iif(?3 >= coalesce(frontier, 0), ?6, witness) WHERE id = ?1 AND epoch = ?2"
)
_EPOCHS = "SELECT f.id, f.epoch FROM carray(?) AS wanted CROSS JOIN settled_frontier AS f ON f.id = wanted.value"
_PLACE = (
    "SELECT p.id FROM settled_frontier p JOIN settled_topic t ON t.id = p.topic_id"
    " WHERE p.consumer_id = ? AND t.name = ? AND p.partition = ?"
)
_INBOX = "INSERT OR IGNORE INTO settled_inbox (consumer_id, event_id, outcome, place_id, place_offset, settled_us)"
_MARK = f"{_INBOX} VALUES (?, ?, ?, ?, ?, ?)"
_MARK_RUN = f"{_INBOX} SELECT ?, value, {int(Outcome.APPLIED)}, ?, ? + rowid, ? FROM carray(?)"  # offsets in a row
_REPLACE = (
    "UPDATE settled_inbox SET outcome = ?3, settled_us = ?4"
    f" WHERE consumer_id = ?1 AND event_id = ?2 AND outcome = {int(Outcome.QUARANTINED)}"
)
_VERSION = (
    "INSERT INTO settled_version (consumer_id, topic_id, record_key, version)"
    " VALUES (?1, (SELECT id FROM settled_topic WHERE name = ?2), ?3, ?4)"
    " ON CONFLICT (consumer_id, topic_id, record_key) DO UPDATE SET version = excluded.version"
    " WHERE excluded.version > version"
)
_CHARGE = (
    "INSERT INTO settled_attempt (place_id, place_offset, event_id, attempts) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (place_id, place_offset) DO UPDATE SET attempts = excluded.attempts"
)
_CHARGED = (
    "SELECT a.place_id, a.place_offset FROM carray(?) AS wanted CROSS JOIN settled_attempt AS a"
    " ON a.place_id = wanted.value"
)
_FORGET = "DELETE FROM settled_attempt WHERE place_id = ? AND place_offset = ?"
_VERSION_OF = (
    "SELECT version FROM settled_version WHERE consumer_id = ?"
    " AND topic_id = (SELECT id FROM settled_topic WHERE name = ?) AND record_key = ?"
)
_SCREEN = (  # a join, so that each id is looked up in the index as it stands, and none is sorted into a table first
    "SELECT i.event_id, i.outcome FROM carray(?) AS wanted CROSS JOIN settled_inbox AS i"
    " ON i.consumer_id = ? AND i.event_id = wanted.value"
)


class SqliteSession:
    """See `settled.store.Session`. The calling thread owns it."""

    def __init__(self, handle: Handle, spec: ConsumerSpec, consumer_id: int) -> None:
        self.spec = spec
        self._handle = handle
        self._consumer = consumer_id
        self.outgoing = Outgoing(spec.consumer, self._publish)
        self._guarded_tx = GuardedTx(handle, self.outgoing)
        self.tx: Tx = self._guarded_tx
        self._at_hand = self.tx.at_hand = AtHand(spec, self.calls)
        self._calls: StoredCalls | None = None
        self._fence: list[tuple[int, Progress]] = []
        self._places: dict[Partition, int] = {}
        self._unit = self._writing = self._redrive = self._saving = False

    def causes(self, current: Callable[[], Record | None]) -> None:
        self.outgoing.current = self._at_hand.record = current

    def begin(self, fence: Sequence[Progress], *, redrive: bool = False) -> None:
        if self._unit:
            raise ContractError("a unit is open", field="session", hint="settle or roll back before beginning again")
        self._handle.ready()
        try:
            self._fence = [(self._place(each.topic, each.partition), each) for each in fence]
            self._check_fence()
        except apsw.Error as exc:
            raise self._handle.meaning(exc) from exc
        self._handle.refusal, self._handle.ended = None, False  # of the unit before
        self._unit, self._writing, self._redrive, self._saving = True, False, redrive, False
        self._at_hand.redrive = redrive
        self._guarded_tx.arm(self._open_for_handler)

    def screen(self, records: Sequence[Record]) -> list[Outcome | None]:
        if not self.spec.inbox and not self.spec.versioned:
            return [None] * len(records)
        guarded, self._handle.guarded = self._handle.guarded, False
        try:
            marks = self._marks([record.id for record in records]) if self.spec.inbox else {}
            versions = self._versions(records) if self.spec.versioned else {}
        except apsw.Error as exc:
            raise self._handle.meaning(exc) from exc
        finally:
            self._handle.guarded = guarded
        return evidence.judge(self.spec, records, marks, versions, redrive=self._redrive)

    def save(self) -> None:
        self._guarded_tx.rest()
        self.outgoing.flush()
        if self._writing and not self._handle.ended:
            if self._saving:
                self._own("RELEASE settled_part")
            self._own("SAVEPOINT settled_part")
        self._saving = True

    def undo(self) -> None:
        self._guarded_tx.rest()
        if self._handle.ended:
            raise ended_by_sqlite()
        self.outgoing.drop()
        if self._writing and self._saving:
            self._own("ROLLBACK TO settled_part")
        self._handle.refusal = None

    def check(self) -> None:
        if self._handle.refusal is not None:
            raise self._handle.refusal
        if self._handle.ended or (self._writing and not self._handle.connection.in_transaction):
            raise ended_by_sqlite()

    def settle(
        self,
        endings: Sequence[Ending],
        progress: Sequence[Progress],
        charges: Sequence[tuple[Record, Attempts]] = (),
        applied: Applied = NONE_APPLIED,
    ) -> None:
        if not self._unit:
            raise ContractError("there is no unit to settle", field="session", hint="call begin first")
        self._guarded_tx.rest()
        try:
            self.check()
            self.outgoing.flush()
            if not self._writing:
                self._open()
            self._handle.guarded = False
            self._move(progress)
            if endings or applied:
                self._mark(endings, applied)
            for record, attempts in charges:
                self._charge(record, attempts)
            windows.reach("marks-written")  # effect and marks are made, nothing is committed
            self._handle.commit()
        except apsw.ConstraintError:
            self.rollback()
            raise  # a constraint of the user's that is checked at commit
        except apsw.Error as exc:
            self.rollback()
            raise self._handle.meaning(exc) from exc
        except BaseException:
            self.rollback()
            raise
        self._end()

    def rollback(self) -> None:
        self._handle.rollback()
        self._end()

    def charge(self, progress: Progress, charges: Sequence[tuple[Record, Attempts]]) -> None:
        if self._unit:
            raise ContractError("a unit is open", field="session", hint="charge between units, or with `settle`")

        def work() -> None:
            self._fence = [(self._place(progress.topic, progress.partition), progress)]
            self._check_fence()
            for record, attempts in charges:
                self._charge(record, attempts)

        self._handle.write(work)

    def settled(self, records: Sequence[Record]) -> list[Outcome | None]:
        self._handle.ready()
        try:
            marks = self._marks([record.id for record in records])
        except apsw.Error as exc:
            raise self._handle.meaning(exc) from exc
        found = (marks.get(record.id) for record in records)
        return [None if mark is None else Outcome(mark) for mark in found]

    def calls(self) -> Calls:
        """In a file of their own beside the store's: a unit may hold the store's write lock."""
        if not self._unit:
            raise ContractError("there is no unit", field="session", hint="call outside while the handler runs")
        try:
            if not self._writing:  # else nobody can have moved the epoch
                self._check_fence()
        except apsw.Error as exc:
            raise self._handle.meaning(exc) from exc
        if self._calls is None:
            self._calls = StoredCalls(open_calls(self._handle.path, self._handle.busy_s))
        return self._calls

    def close(self) -> None:
        self._end()
        if self._calls is not None:
            self._calls.close()
        self._handle.close()

    # the steps, in the order they run

    def _open_for_handler(self) -> None:
        """The handler's first statement: take the lock, look at the fence, then let it write."""
        try:
            self._open()
        except apsw.Error as exc:
            raise self._handle.meaning(exc) from exc
        if self._saving:
            self._own("SAVEPOINT settled_part")
        self._guarded_tx.open()

    def _publish(self, rows: list[Row]) -> None:
        if not self._writing:
            self._open_for_handler()
        guarded, self._handle.guarded = self._handle.guarded, False
        try:
            outbox.insert(self._handle, rows)
        except apsw.Error as exc:
            raise self._handle.meaning(exc) from exc
        finally:
            self._handle.guarded = guarded

    def _open(self) -> None:
        self._handle.begin()
        self._writing = True
        self._check_fence()

    def _check_fence(self) -> None:
        held = dict(self._handle.all(_EPOCHS, (_numbers([place for place, _ in self._fence]),)))
        for place, progress in self._fence:
            if held.get(place) != progress.epoch:
                raise self._fenced(progress, held.get(place))

    def _fenced(self, progress: Progress, held: int | None) -> Fenced:
        return fenced(self.spec.consumer, progress.topic, progress.partition, progress.epoch, held)

    def _place(self, topic: str, partition: int) -> int:
        """The id of the partition's row; -1, which no row has, if the partition was never acquired."""
        place = self._places.get((topic, partition))
        if place is None:
            rows = self._handle.all(_PLACE, (self._consumer, topic, partition))
            if not rows:
                return -1
            place = self._places[(topic, partition)] = rows[0][0]
        return place

    def _marks(self, ids: Sequence[str]) -> dict[str, int]:
        if not ids:
            return {}
        return dict(self._handle.all(_SCREEN, (apsw.carray(tuple(ids)), self._consumer)))

    def _versions(self, records: Sequence[Record]) -> dict[tuple[str, bytes], int]:
        found = {}
        for topic, key in {(record.topic, record.key) for record in records if record.version is not None}:
            if key is not None:
                for row in self._handle.all(_VERSION_OF, (self._consumer, topic, key)):
                    found[(topic, key)] = row[0]
        return found

    def _move(self, progress: Sequence[Progress]) -> None:
        now = wall_us()
        for each in progress:
            place = self._place(each.topic, each.partition)
            if each.witness is None:
                self._handle.run(_KEEP, (place, each.epoch, each.frontier, now))
            else:
                self._handle.run(_MOVE, (place, each.epoch, each.frontier, now, *each.witness))
            if self._handle.connection.changes() != 1:
                held = dict(self._handle.all(_EPOCHS, (_numbers([place]),)))
                raise self._fenced(each, held.get(place))

    def _mark(self, endings: Sequence[Ending], applied: Applied) -> None:
        now = wall_us()
        places = self._places_of({ending.record.place for ending in endings}.union(applied))
        if self._redrive:
            for ending in evidence.all_endings(endings, applied):
                self._mark_redriven(ending, places[ending.record.place], now)
        else:
            if self.spec.inbox:
                for place, records in applied.items():
                    self._mark_applied(records, places[place], now)
                self._write_all(_MARK, self._mark_rows(endings, places, now))
            for ending in endings:
                if ending.outcome is Outcome.QUARANTINED:
                    shelf.add(self._handle, self.spec, self._consumer, places[ending.record.place], ending, now)
        if self.spec.versioned:
            versions = evidence.applied_versions(endings, applied)
            self._write_all(_VERSION, [(self._consumer, *place, version) for place, version in versions.items()])
        self._forget_attempts(endings, applied, places)

    def _mark_applied(self, records: Sequence[Record], place: int, now: int) -> None:
        """Every record of the usual group goes through this: keep it short."""
        consumer, offsets = self._consumer, [record.offset for record in records]
        first, count = offsets[0], len(offsets)
        if offsets == list(range(first, first + count)):
            ids = apsw.carray(tuple([record.id for record in records]))
            self._write(count, lambda: self._handle.run(_MARK_RUN, (consumer, place, first - 1, now, ids)))
        else:
            rows = [(consumer, record.id, int(Outcome.APPLIED), place, record.offset, now) for record in records]
            self._write_all(_MARK, rows)

    def _mark_rows(self, endings: Sequence[Ending], places: dict[Partition, int], now: int) -> list[tuple[object, ...]]:
        """A row for each ending but duplicates, which have theirs."""
        return [
            (self._consumer, (record := ending.record).id, ending.outcome, places[record.place], record.offset, now)
            for ending in endings
            if ending.outcome is not Outcome.DUPLICATE
        ]

    def _mark_redriven(self, ending: Ending, place: int, now: int) -> None:
        """The new ending takes the mark's place; the entry is settled, discarded, or held again."""
        if self.spec.inbox and ending.outcome not in (Outcome.QUARANTINED, Outcome.DUPLICATE):
            self._write_all(_REPLACE, [(self._consumer, ending.record.id, ending.outcome, now)])
        if not shelf.end_redrive(self._handle, place, ending):
            raise Conflict(f"the redrive of {ending.record.id!r} was ended by another")

    def _write_all(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Each row must change one."""
        if rows:
            self._write(len(rows), lambda: self._handle.run_many(sql, rows))

    def _write(self, changes: int, write: Callable[[], object]) -> None:
        """It must make so many changes: a row that is not changed was settled by another transaction meanwhile."""
        before = self._handle.connection.total_changes()
        write()
        if self._handle.connection.total_changes() - before != changes:
            raise Conflict("another transaction settled one of these ids meanwhile")

    def _charge(self, record: Record, attempts: Attempts) -> None:
        place = self._places_of([record.place])[record.place]
        self._handle.run(_CHARGE, (place, record.offset, record.id, evidence.encode_attempts(attempts)))

    def _forget_attempts(self, endings: Sequence[Ending], applied: Applied, places: dict[Partition, int]) -> None:
        known = set(self._handle.all(_CHARGED, (_numbers(places.values()),)))
        if known:
            ended = {(places[e.record.place], e.record.offset) for e in evidence.all_endings(endings, applied)}
            self._handle.run_many(_FORGET, list(known & ended))

    def _places_of(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        places = {partition: self._place(*partition) for partition in partitions}
        if -1 in places.values():
            raise ContractError("a record is of a partition that was never acquired", field="endings")
        return places

    def _own(self, sql: str) -> None:
        """Run a statement of settled's between those of the handler."""
        guarded, self._handle.guarded = self._handle.guarded, False
        try:
            self._handle.run(sql)
        except apsw.Error as exc:
            raise self._handle.meaning(exc) from exc
        finally:
            self._handle.guarded = guarded

    def _end(self) -> None:
        self._guarded_tx.shut()
        self.outgoing.drop()
        self._unit = self._writing = self._redrive = self._saving = False


def _numbers(ids: Iterable[int]) -> Any:
    """Row ids as one parameter of carray; -1, which no row has, stands for none at all."""
    return apsw.carray(array("q", ids) or array("q", (-1,)), flags=apsw.SQLITE_CARRAY_INT64)
