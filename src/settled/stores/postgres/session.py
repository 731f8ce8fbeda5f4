"""One thread's units of work on PostgreSQL. A unit begins with a plain look at the fence; marks, versions and frontiers
go out together at the end, and the frontier's row is locked only from there to the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count as counting
from itertools import repeat
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from settled import windows
from settled.engine import Partition
from settled.errors import ContractError, Fenced, Refused, SettledError, Unavailable
from settled.outbox_row import Row
from settled.outcome import Attempts, Ending, Outcome
from settled.record import Record
from settled.store import NONE_APPLIED, Applied, AtHand, Calls, Conflict, ConsumerSpec, Progress, Tx
from settled.stores import evidence, shelf
from settled.stores.calls import StoredCalls
from settled.stores.fence import fenced
from settled.stores.outgoing import Outgoing
from settled.stores.postgres import arrays, outbox, texts
from settled.stores.postgres.link import BEGIN, Link
from settled.stores.postgres.tx import PostgresTx

_units = counting(1)


class PostgresSession:
    """See `settled.store.Session`. The calling thread owns it."""

    def __init__(self, link: Link, spec: ConsumerSpec, consumer_id: int) -> None:
        self.spec = spec
        self._link = link
        self._consumer = consumer_id
        self.outgoing = Outgoing(spec.consumer, self._publish)
        self._postgres_tx = PostgresTx(link, self.outgoing, self._why_lost)
        self.tx: Tx = self._postgres_tx
        self._at_hand = self.tx.at_hand = AtHand(spec, self.calls)
        self._calls: StoredCalls | None = None
        self._fence: Sequence[Progress] = ()
        self._places: dict[Partition, int] = {}
        self._unit = ""  # names the open unit, on the server too
        self._redrive = self._saved = False

    def causes(self, current: Callable[[], Record | None]) -> None:
        self.outgoing.current = self._at_hand.record = current

    def begin(self, fence: Sequence[Progress], *, redrive: bool = False) -> None:
        if self._unit:
            raise ContractError("a unit is open", field="session", hint="settle or roll back before beginning again")
        self._link.ready()
        try:
            unit = f"{self._link.connection.info.backend_pid}-{next(_units)}"
            self._start(fence, unit)
        except psycopg.Error as exc:
            self.rollback()
            raise self._link.meaning(exc) from exc
        except BaseException:
            self.rollback()
            raise
        self._unit, self._fence, self._redrive, self._saved = unit, fence, redrive, False
        self._at_hand.redrive = redrive
        self._postgres_tx.open()

    def screen(self, records: Sequence[Record]) -> list[Outcome | None]:
        if not self.spec.inbox and not self.spec.versioned:
            return [None] * len(records)
        with self._own():
            marks = self._marks(records) if self.spec.inbox else {}
            versions = self._versions(records) if self.spec.versioned else {}
        return evidence.judge(self.spec, records, marks, versions, redrive=self._redrive)

    def save(self) -> None:
        self.outgoing.flush()
        with self._own():
            self._link.run(("RELEASE part_of_settled;" if self._saved else "") + "SAVEPOINT part_of_settled")
        self._saved = True

    def undo(self) -> None:
        self.outgoing.drop()
        with self._own():
            if self._saved:
                self._link.run("ROLLBACK TO part_of_settled")
        self._postgres_tx.spoiled = None
        self._link.connection.refusal = None

    def check(self) -> None:
        if self._link.connection.refusal is not None:
            raise self._link.connection.refusal
        status = self._link.status
        if status == TransactionStatus.INTRANS:
            return
        if isinstance(self._postgres_tx.spoiled, SettledError):
            raise self._postgres_tx.spoiled
        if status == TransactionStatus.UNKNOWN:
            raise Unavailable(f"{self._link.where}: the connection was lost", hint="trying again is safe")
        raise Refused(
            "a statement of the handler failed and the handler went on; nothing of the transaction can be kept",
            hint="let the error leave the handler, or avoid it (ON CONFLICT DO NOTHING)",
        ) from self._postgres_tx.spoiled

    def settle(
        self,
        endings: Sequence[Ending],
        progress: Sequence[Progress],
        charges: Sequence[tuple[Record, Attempts]] = (),
        applied: Applied = NONE_APPLIED,
    ) -> None:
        if not self._unit:
            raise ContractError("there is no unit to settle", field="session", hint="call begin first")
        try:
            self.check()
            self._link.connection.guarded = False
            self.outgoing.flush()
            self._write(endings, applied, progress, charges)
            windows.reach("marks-written")  # effect and marks are made, nothing is committed
            self._link.commit()
        except psycopg.errors.IntegrityError:
            self.rollback()
            raise  # a constraint of the user's that is checked at commit
        except psycopg.Error as exc:
            self.rollback()
            meaning = self._link.meaning(exc)
            raise (self._why_lost(meaning) if isinstance(meaning, Unavailable) else meaning) from exc
        except BaseException:
            self.rollback()
            raise
        self._end()

    def rollback(self) -> None:
        self._link.rollback()
        self._end()

    def charge(self, progress: Progress, charges: Sequence[tuple[Record, Attempts]]) -> None:
        if self._unit:
            raise ContractError("a unit is open", field="session", hint="charge between units, or with `settle`")

        def work() -> None:
            place = self._place(progress.topic, progress.partition)
            sql = "SELECT epoch FROM settled_frontier WHERE id = ? FOR SHARE"
            rows = self._link.all(sql, (place,))
            self._require(progress, rows[0][0] if rows else None)
            for record, attempts in charges:
                self._charge(record, attempts)

        self._link.write(work)

    def settled(self, records: Sequence[Record]) -> list[Outcome | None]:
        if not self._unit:
            self._link.ready()
        with self._own():
            marks = self._marks(records)
        found = (marks.get(record.id) for record in records)
        return [None if mark is None else Outcome(mark) for mark in found]

    def calls(self) -> Calls:
        if not self._unit:
            raise ContractError("there is no unit", field="session", hint="call outside while the handler runs")
        with self._own():
            places = [self._place(each.topic, each.partition) for each in self._fence]
            epochs = dict(self._link.all(texts.EPOCHS, (places,)))
        for place, each in zip(places, self._fence, strict=True):
            self._require(each, epochs.get(place))
        if self._calls is None:
            self._calls = StoredCalls(Link(self._link.conninfo, self._link.schema, settings=self._link.settings))
        return self._calls

    def close(self) -> None:
        self.rollback()
        if self._calls is not None:
            self._calls.close()
        self._link.close()

    # the steps, in the order they run

    def _start(self, fence: Sequence[Progress], unit: str) -> None:
        """BEGIN, show that the unit is open, then look at the fence: in that order, so that a successor that raised the
        epoch sees each unit that did not see it."""
        places = [self._place(each.topic, each.partition) for each in fence]
        found = self._link.pipeline(
            [(BEGIN, ()), (texts.SHOW, (unit, texts.UNIT_LOCKS, places)), (texts.EPOCHS, (places,))],
        )
        epochs: dict[int, int] = dict(found[2].fetchall())
        for place, each in zip(places, fence, strict=True):
            self._require(each, epochs.get(place))

    def _publish(self, rows: list[Row]) -> None:
        with self._own():
            outbox.insert(self._link, rows)

    def _marks(self, records: Sequence[Record]) -> dict[str, int]:
        ids = arrays.of_texts([record.id for record in records])
        found: Iterable[Any] = self._link.all(texts.SCREEN, (self._consumer, ids))
        return dict(found)

    def _versions(self, records: Sequence[Record]) -> dict[tuple[str, bytes], int]:
        found = {}
        for topic in {record.topic for record in records}:
            keys = {r.key for r in records if r.topic == topic and r.version is not None and r.key is not None}
            if keys:
                for key, version in self._link.all(texts.VERSIONS, (self._consumer, topic, list(keys))):
                    found[(topic, bytes(key))] = version
        return found

    def _write(
        self,
        endings: Sequence[Ending],
        applied: Applied,
        progress: Sequence[Progress],
        charges: Sequence[tuple[Record, Attempts]],
    ) -> None:
        places = self._places_of({ending.record.place for ending in endings}.union(applied))
        statements: list[tuple[str, Any]] = []
        expected: list[int] = []
        if self._redrive:
            for ending in evidence.all_endings(endings, applied):
                self._mark_redriven(ending, places[ending.record.place])
        elif endings or applied:
            if self.spec.inbox:
                statement, count = self._mark(endings, applied, places)
                statements.append(statement)
                expected.append(count)
            self._shelve(endings, places)
        versions = evidence.applied_versions(endings, applied) if self.spec.versioned else {}
        if versions:
            topics, keys = [place[0] for place in versions], [place[1] for place in versions]
            statements.append((texts.VERSION, (self._consumer, topics, keys, list(versions.values()))))
            expected.append(len(versions))
        for record, attempts in charges:
            self._charge(record, attempts)
        statements.append((texts.CHARGED, (list(places.values()),)))
        statements.append((texts.MOVE, (*self._moves(progress), self._unit)))
        try:
            found = self._link.pipeline(statements)
        except psycopg.errors.UniqueViolation as exc:  # of a mark: nothing else in here can meet another's row
            raise Conflict("another transaction settled one of these ids meanwhile") from exc
        if any(cursor.rowcount != count for cursor, count in zip(found, expected, strict=False)):
            raise Conflict("another transaction settled one of these ids meanwhile")
        if found[-1].rowcount != len(progress):
            self._explain_fence(progress)
        charged = set(found[-2].fetchall())
        if charged:
            ended = {(places[e.record.place], e.record.offset) for e in evidence.all_endings(endings, applied)}
            self._link.run_many(texts.FORGET, [row for row in charged if row in ended])

    def _mark(
        self, endings: Sequence[Ending], applied: Applied, places: dict[Partition, int]
    ) -> tuple[tuple[str, Any], int]:
        """The statement that marks, and how many rows it must add. Duplicates have theirs."""
        marked = [ending for ending in endings if ending.outcome is not Outcome.DUPLICATE]
        records = [ending.record for ending in marked]
        outcomes = [int(ending.outcome) for ending in marked]
        where = [places[record.place] for record in records]
        for place, theirs in applied.items():
            records += theirs
            outcomes += repeat(int(Outcome.APPLIED), len(theirs))
            where += repeat(places[place], len(theirs))
        ids = arrays.of_texts([record.id for record in records])
        offsets = arrays.of_numbers([record.offset for record in records])
        rows = (ids, arrays.of_numbers(outcomes), arrays.of_numbers(where), offsets)
        return (texts.MARK, (self._consumer, *rows)), len(records)

    def _shelve(self, endings: Sequence[Ending], places: dict[Partition, int]) -> None:
        quarantined = [ending for ending in endings if ending.outcome is Outcome.QUARANTINED]
        if quarantined:
            now = self._link.now()
            for ending in quarantined:
                shelf.add(self._link, self.spec, self._consumer, places[ending.record.place], ending, now)

    def _mark_redriven(self, ending: Ending, place: int) -> None:
        """The new ending takes the mark's place; the entry is settled, discarded, or held again."""
        if self.spec.inbox and ending.outcome not in (Outcome.QUARANTINED, Outcome.DUPLICATE):
            changed = self._link.run(texts.REPLACE, (int(ending.outcome), self._consumer, ending.record.id)).rowcount
            if changed != 1:
                raise Conflict(f"{ending.record.id!r} was settled by another transaction meanwhile")
        if not shelf.end_redrive(self._link, place, ending):
            raise Conflict(f"the redrive of {ending.record.id!r} was ended by another")

    def _moves(self, progress: Sequence[Progress]) -> tuple[list[Any], ...]:
        return (
            [self._place(each.topic, each.partition) for each in progress],
            [each.epoch for each in progress],
            [each.frontier for each in progress],
            [each.witness[0] if each.witness else None for each in progress],
            [each.witness[1] if each.witness else None for each in progress],
        )

    def _explain_fence(self, progress: Sequence[Progress]) -> None:
        """Not every frontier moved: an epoch rose, or the handler went around the guard and ended the transaction."""
        places = [self._place(each.topic, each.partition) for each in progress]
        epochs = dict(self._link.all(texts.EPOCHS, (places,)))
        for place, each in zip(places, progress, strict=True):
            self._require(each, epochs.get(place))
        raise Refused("the handler ended the transaction", hint="return from the handler: settled commits")

    def _why_lost(self, outage: Unavailable) -> SettledError:
        """A successor may have ended the connection of a unit that can no longer commit: then it is Fenced."""
        if not self._link.lost:
            return outage
        try:
            self._link.ready()
            for place, each in [(self._place(each.topic, each.partition), each) for each in self._fence]:
                held = dict(self._link.all(texts.EPOCHS, ([place],)))
                self._require(each, held.get(place))
        except Fenced as moved:
            return moved
        except (psycopg.Error, SettledError):
            return outage
        return outage

    def _charge(self, record: Record, attempts: Attempts) -> None:
        place = self._places_of([record.place])[record.place]
        self._link.run(texts.CHARGE, (place, record.offset, record.id, evidence.encode_attempts(attempts)))

    def _place(self, topic: str, partition: int) -> int:
        """The id of the partition's row; -1, which no row has, if the partition was never acquired."""
        place = self._places.get((topic, partition))
        if place is None:
            rows = self._link.all(texts.PLACE, (self.spec.consumer, topic, partition))
            if not rows:
                return -1
            place = self._places[(topic, partition)] = int(rows[0][0])
        return place

    def _places_of(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        places = {partition: self._place(*partition) for partition in partitions}
        if -1 in places.values():
            raise ContractError("a record is of a partition that was never acquired", field="endings")
        return places

    def _require(self, progress: Progress, held: int | None) -> None:
        if held != progress.epoch:
            raise fenced(self.spec.consumer, progress.topic, progress.partition, progress.epoch, held)

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Around statements of settled's between those of the handler."""
        guarded, self._link.connection.guarded = self._link.connection.guarded, False
        try:
            yield
        except psycopg.Error as exc:
            raise self._link.meaning(exc) from exc
        finally:
            self._link.connection.guarded = guarded

    def _end(self) -> None:
        self._postgres_tx.shut()
        self.outgoing.drop()
        self._unit, self._redrive, self._saved = "", False, False
