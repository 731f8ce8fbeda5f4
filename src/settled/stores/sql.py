"""The part of a store that is the same SQL everywhere: the fence, positions, and what people ask.

A store supplies `_query` (read) and `_work` (a transaction of its own); `settled.stores.statements` has the dialect.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from settled.errors import ContractError
from settled.outcome import Attempts, Outcome
from settled.record import Record
from settled.store import Asked, Gap, Pause, Position, Progress, QuarantineEntry, Seen, WorkerReport
from settled.stores import calls, evidence, fence, pausing
from settled.stores.shelf import Shelf
from settled.stores.statements import Statements
from settled.stores.watching import Watch, Watcher

T = TypeVar("T")

_POSITION = (
    "SELECT c.name, t.name, p.partition, p.epoch, p.frontier, p.identity, p.witness_offset, p.witness, p.updated_us,"
    " p.owner, p.id FROM settled_frontier p JOIN settled_consumer c ON c.id = p.consumer_id"
    " JOIN settled_topic t ON t.id = p.topic_id"
)
_ONE = f"{_POSITION} WHERE c.name = ? AND t.name = ? AND p.partition = ?"
_NEW_PLACE = (
    "INSERT INTO settled_frontier (consumer_id, topic_id, partition, identity, epoch, owner, updated_us)"
    " VALUES (?, ?, ?, ?, -1, '', ?) ON CONFLICT DO NOTHING"
)
_TAKE = (
    "UPDATE settled_frontier SET epoch = ?, owner = ?, identity = ?, updated_us = ?,"
    " frontier = coalesce(frontier, CAST(? AS BIGINT)) WHERE id = ?"
)
_SWEEP = (
    "SELECT i.event_id, i.consumer_id, CASE WHEN i.settled_us < ?"
    " AND (i.place_id = 0 OR i.place_offset < p.frontier)"  # 0: marks of `settled.inbox`, from no partition
    f" AND i.outcome <> {int(Outcome.QUARANTINED)} THEN 1 ELSE 0 END"
    " FROM settled_inbox i LEFT JOIN settled_frontier p ON p.id = i.place_id"
    " WHERE i.consumer_id = (SELECT id FROM settled_consumer WHERE name = ?) AND i.event_id > ?"
    " ORDER BY i.event_id LIMIT ?"
)
_DROP_MARK = (
    f"DELETE FROM settled_inbox WHERE consumer_id = ? AND event_id = ? AND outcome <> {int(Outcome.QUARANTINED)}"
)
_KNOWN = (
    "SELECT a.event_id, a.place_id, a.place_offset, a.attempts FROM settled_attempt a"
    " JOIN settled_frontier p ON p.id = a.place_id JOIN settled_consumer c ON c.id = p.consumer_id"
    " JOIN settled_topic t ON t.id = p.topic_id WHERE c.name = ? AND t.name = ?"
)
_FORGET = "DELETE FROM settled_attempt WHERE place_id = ? AND place_offset = ?"
_KEEP = "INSERT INTO settled_attempt (place_id, place_offset, event_id, attempts) VALUES (?, ?, ?, ?)"
_NOTE_GAP = (
    "INSERT INTO settled_gap (consumer, topic, partition, first_offset, next_offset, found_us)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_SILENT_US = 3_600_000_000


class SqlStore:
    """The shared half of `settled.store.Store`."""

    def __init__(self) -> None:
        self._owner = uuid.uuid4().hex  # tells this store's epochs from those of another process
        self._sweeps: dict[str, str] = {}  # consumer -> the last event id that `prune` looked at
        self.quarantine = Shelf(self._query, self._work)
        self._watcher = Watcher(self._watch)
        self.on_publish: Callable[[], None] = lambda: None

    def _query(self, sql: str, params: Any) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def _work(self, work: Callable[[Statements], T]) -> T:
        raise NotImplementedError

    def _watch(self) -> Watch:
        raise NotImplementedError

    def _forget_calls(self, consumer: str, event_ids: Sequence[str]) -> None:
        """What is known of calls outside goes with the marks of their events."""
        self._work(lambda handle: calls.forget(handle, consumer, event_ids))

    def acquire(
        self, consumer: str, topic: str, partition: int, epoch: int, identity: str, *, begin: int | None = None
    ) -> Position | None:
        return self._work(lambda handle: self._take(handle, consumer, topic, partition, epoch, identity, begin))

    def _take(
        self,
        handle: Statements,
        consumer: str,
        topic: str,
        partition: int,
        epoch: int,
        identity: str,
        begin: int | None,
    ) -> Position | None:
        place = (consumer, topic, partition)
        rows = handle.all(_ONE + handle.for_update, place)
        if not rows:
            names = (name_id(handle, "consumer", consumer), name_id(handle, "topic", topic))
            handle.run(_NEW_PLACE, (*names, partition, identity, handle.now()))
            rows = handle.all(_ONE + handle.for_update, place)
        position, begun, owner = _position(rows[0]), rows[0][4] is not None, rows[0][9]
        fence.check_takeover(consumer, position, epoch, same_owner=owner in (self._owner, ""))
        if begun:
            fence.check_identity(consumer, position, identity)
        handle.run(_TAKE, (epoch, self._owner, identity, handle.now(), begin, rows[0][10]))
        return _position(handle.all(_ONE, place)[0]) if begun or begin is not None else None

    def epoch(self, consumer: str, topic: str, partition: int) -> int:
        rows = self._query(_ONE, (consumer, topic, partition))
        return int(rows[0][3]) if rows else 0

    def settle_from(self, consumer: str, position: Position) -> None:
        def work(handle: Statements) -> None:
            rows = handle.all(_ONE + handle.for_update, (consumer, position.topic, position.partition))
            held = rows[0][3] if rows else None
            if held != position.epoch:
                raise fence.fenced(consumer, position.topic, position.partition, position.epoch, held)
            if rows[0][4] is not None:
                raise ContractError(
                    f"{consumer} already stands at {rows[0][4]} in {position.topic}/{position.partition}",
                    field="position",
                    hint="a position moves by settling only",
                )
            witness = position.witness or (None, None)
            handle.run(
                "UPDATE settled_frontier SET frontier = ?, witness_offset = ?, witness = ?, updated_us = ?"
                " WHERE id = ?",
                (position.frontier, *witness, handle.now(), rows[0][10]),
            )

        self._work(work)

    def attempts(self, consumer: str, topic: str, partition: int) -> list[tuple[int, Attempts]]:
        rows = self._query(
            "SELECT a.place_offset, a.attempts FROM settled_attempt a JOIN settled_frontier p ON p.id = a.place_id"
            " JOIN settled_consumer c ON c.id = p.consumer_id JOIN settled_topic t ON t.id = p.topic_id"
            " WHERE c.name = ? AND t.name = ? AND p.partition = ? ORDER BY a.place_offset",
            (consumer, topic, partition),
        )
        return [(row[0], evidence.decode_attempts(row[1])) for row in rows]

    def carry(self, consumer: str, progress: Progress, records: Sequence[Record]) -> dict[int, Attempts]:
        wanted = {record.id: record.offset for record in reversed(records)}
        asked = (consumer, progress.topic)
        if not any(row[0] in wanted for row in self._query(_KNOWN, asked)):
            return {}
        return self._work(lambda handle: _carried(handle, asked, progress, wanted))

    # for people and housekeeping

    def pause(self, consumer: str, topic: str, partitions: Sequence[int], *, reason: str, who: str) -> None:
        self._work(lambda handle: pausing.begin(handle, consumer, topic, partitions, reason, who))

    def resume(self, consumer: str, topic: str, partitions: Sequence[int]) -> list[int]:
        return self._work(lambda handle: pausing.end(handle, consumer, topic, partitions))

    def pauses(self, consumer: str | None = None) -> list[Pause]:
        return [pausing.pause_of(row) for row in self._query(pausing.SELECT, (consumer, consumer))]

    def positions(self, consumer: str | None = None) -> list[tuple[str, Position]]:
        rows = self._query(
            f"{_POSITION} WHERE p.frontier IS NOT NULL AND (CAST(? AS TEXT) IS NULL OR c.name = ?)"
            " ORDER BY c.name, t.name, p.partition",
            (consumer, consumer),
        )
        return [(row[0], _position(row)) for row in rows]

    def tally(self, consumer: str) -> dict[Outcome, int]:
        rows = self._query(
            "SELECT outcome, count(*) FROM settled_inbox"
            " WHERE consumer_id = (SELECT id FROM settled_consumer WHERE name = ?) GROUP BY outcome",
            (consumer,),
        )
        return {Outcome(row[0]): row[1] for row in rows}

    def parked(self, consumer: str, topic: str, partition: int) -> set[bytes]:
        return self.quarantine.parked(consumer, topic, partition)

    def redrives(self, consumer: str, topic: str, partition: int) -> list[QuarantineEntry]:
        return self.quarantine.redrives(consumer, topic, partition)

    def watch(self, asked: Asked, timeout: float) -> Seen:
        return self._watcher.wait(asked, timeout)

    def prune(self, consumer: str, *, older_than_s: float, batch: int = 1000) -> int:
        before = self.clock_us() - int(older_than_s * 1_000_000)
        rows = self._query(_SWEEP, (before, consumer, self._sweeps.get(consumer, ""), batch))
        gone = [(row[1], row[0]) for row in rows if row[2]]
        if gone:
            self._work(lambda handle: handle.run_many(_DROP_MARK, gone))
            self._forget_calls(consumer, [event_id for _, event_id in gone])
        if rows:
            self._sweeps[consumer] = rows[-1][0]
        else:
            self._sweeps.pop(consumer, None)
        return len(rows)

    def note_gap(self, consumer: str, topic: str, partition: int, first: int, next_offset: int) -> None:
        gap = (consumer, topic, partition, first, next_offset)
        self._work(lambda handle: handle.run(_NOTE_GAP, (*gap, handle.now())))

    def gaps(self, consumer: str | None = None) -> list[Gap]:
        rows = self._query(
            "SELECT consumer, topic, partition, first_offset, next_offset, found_us FROM settled_gap"
            " WHERE (CAST(? AS TEXT) IS NULL OR consumer = ?) ORDER BY found_us, topic, partition, first_offset",
            (consumer, consumer),
        )
        names = ("consumer", "topic", "partition", "first", "next_offset", "found_us")
        return [Gap(**dict(zip(names, row, strict=True))) for row in rows]

    def reports(self, consumer: str | None = None) -> list[WorkerReport]:
        rows = self._query(
            "SELECT consumer, member, host, pid, state, why, updated_us FROM settled_report"
            " WHERE (CAST(? AS TEXT) IS NULL OR consumer = ?)"
            " AND updated_us > ? ORDER BY consumer, member",
            (consumer, consumer, self.clock_us() - _SILENT_US),
        )
        names = ("consumer", "member", "host", "pid", "state", "why", "updated_us")
        return [WorkerReport(**dict(zip(names, row, strict=True))) for row in rows]

    def clock_us(self) -> int:
        raise NotImplementedError


def _carried(
    handle: Statements, asked: tuple[str, str], progress: Progress, wanted: dict[str, int]
) -> dict[int, Attempts]:
    """Where several places know an event id, the one with the most runs counts."""
    rows = handle.all(_ONE + handle.for_update, (*asked, progress.partition))
    if not rows or rows[0][3] != progress.epoch:
        raise fence.fenced(*asked, progress.partition, progress.epoch, rows[0][3] if rows else None)
    place, found = rows[0][10], dict[str, Attempts]()
    for event_id, there, offset, text in handle.all(_KNOWN, asked):
        if event_id in wanted:
            attempts, before = evidence.decode_attempts(text), found.get(event_id)
            if before is None or before.count < attempts.count:
                found[event_id] = attempts
            handle.run(_FORGET, (there, offset))
    for event_id, attempts in found.items():
        handle.run(_KEEP, (place, wanted[event_id], event_id, evidence.encode_attempts(attempts)))
    return {wanted[event_id]: attempts for event_id, attempts in found.items()}


def name_id(handle: Statements, table: str, name: str) -> int:
    rows = handle.all(f"SELECT id FROM settled_{table} WHERE name = ?", (name,))
    if not rows:
        handle.run(f"INSERT INTO settled_{table} (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
        rows = handle.all(f"SELECT id FROM settled_{table} WHERE name = ?", (name,))
    return int(rows[0][0])


def _position(row: tuple[Any, ...]) -> Position:
    return Position(
        topic=row[1],
        partition=row[2],
        epoch=row[3],
        frontier=row[4] or 0,
        identity=row[5],
        witness=None if row[6] is None else (row[6], row[7]),
        updated_us=row[8],
    )


def write_report(handle: Statements, consumer: str, member: str, state: WorkerReport | None) -> None:
    now = handle.now()
    handle.run("DELETE FROM settled_report WHERE updated_us < ?", (now - _SILENT_US,))
    handle.run("DELETE FROM settled_report WHERE consumer = ? AND member = ?", (consumer, member))
    if state is not None:
        row = (consumer, member, state.host, state.pid, state.state, evidence.clipped(state.why, 500), now)
        handle.run(
            "INSERT INTO settled_report (consumer, member, host, pid, state, why, updated_us)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            row,
        )
