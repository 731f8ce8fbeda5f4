"""The store itself: the fence, positions, housekeeping; sessions and quarantine are made from it.

One connection, behind a lock, serves what people and housekeeping ask; each session has a connection of its own.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from settled.clock import wall_us
from settled.errors import ContractError, Unavailable
from settled.outcome import Attempts, Outcome
from settled.sqlite import BUSY_S, path_of
from settled.store import ConsumerSpec, Position, QuarantineEntry, Tx, WorkerReport
from settled.stores import evidence, fence
from settled.stores.sqlite import schema
from settled.stores.sqlite.handle import Handle
from settled.stores.sqlite.quarantine import SqliteQuarantine
from settled.stores.sqlite.session import SqliteSession
from settled.stores.sqlite.tx import GuardedTx

T = TypeVar("T")

_POSITION = (
    "SELECT c.name, t.name, p.partition, p.epoch, p.frontier, p.identity, p.witness_offset, p.witness, p.updated_us,"
    " p.owner, p.id FROM settled_frontier p JOIN settled_consumer c ON c.id = p.consumer_id"
    " JOIN settled_topic t ON t.id = p.topic_id"
)
_ONE = f"{_POSITION} WHERE c.name = ? AND t.name = ? AND p.partition = ?"
_NEW_PLACE = (
    "INSERT INTO settled_frontier (consumer_id, topic_id, partition, identity, epoch, owner, updated_us)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_REPORT_PATIENCE_S = 0.05
_SILENT_US = 3_600_000_000


class SqliteStore:
    """See `settled.store.Store`. `sqlite:///relative.db` or `sqlite:////absolute.db`; options in the url:

    foreign_keys=on   SQLite checks the user's foreign keys, which it does not do by itself
    busy=SECONDS      how long to wait for another's lock before Unavailable is raised (30)
    """

    name = "sqlite"
    parallel = False

    def __init__(self, url: str) -> None:
        self.url = url
        path, options = path_of(url)
        self._options = _read_options(url, options)
        self._path = path
        self._handle = Handle(path, **self._options)
        self._lock = threading.RLock()
        self._owner = uuid.uuid4().hex
        self._ready = self._closed = False
        self._sweeps: dict[str, str] = {}  # consumer -> the last event id that `prune` looked at
        self.quarantine = SqliteQuarantine(self._query, self._work)

    # set-up

    def migrate(self) -> None:
        with self._lock:
            self._handle.write(lambda: schema.migrate(self._handle.connection))

    def prepare(self, setup: Callable[[Tx], None]) -> None:
        with self._lock:
            handle = self._handle
            tx = GuardedTx(handle)

            def work() -> None:
                tx.open()
                try:
                    setup(tx)
                finally:
                    tx.shut()
                if handle.refusal is not None:
                    raise handle.refusal

            handle.write(work)

    # ownership

    def acquire(self, consumer: str, topic: str, partition: int, epoch: int, identity: str) -> Position | None:
        def work(handle: Handle) -> Position | None:
            rows = handle.all(_ONE, (consumer, topic, partition))
            if not rows:
                names = (_name_id(handle, "consumer", consumer), _name_id(handle, "topic", topic))
                handle.run(_NEW_PLACE, (*names, partition, identity, epoch, self._owner, wall_us()))
                return None
            position, owner, place = _position(rows[0]), rows[0][9], rows[0][10]
            fence.check_takeover(consumer, position, epoch, same_owner=owner == self._owner)
            begun = rows[0][4] is not None
            if begun:
                fence.check_identity(consumer, position, identity)
            handle.run(
                "UPDATE settled_frontier SET epoch = ?, owner = ?, identity = ?, updated_us = ? WHERE id = ?",
                (epoch, self._owner, identity, wall_us(), place),
            )
            return _position(handle.all(_ONE, (consumer, topic, partition))[0]) if begun else None

        return self._work(work)

    def epoch(self, consumer: str, topic: str, partition: int) -> int:
        rows = self._query(_ONE, (consumer, topic, partition))
        return int(rows[0][3]) if rows else 0

    def settle_from(self, consumer: str, position: Position) -> None:
        def work(handle: Handle) -> None:
            rows = handle.all(_ONE, (consumer, position.topic, position.partition))
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
                (position.frontier, *witness, wall_us(), rows[0][10]),
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

    def session(self, spec: ConsumerSpec) -> SqliteSession:
        rows = self._query("SELECT id FROM settled_consumer WHERE name = ?", (spec.consumer,))
        consumer = rows[0][0] if rows else self._work(lambda handle: _name_id(handle, "consumer", spec.consumer))
        return SqliteSession(Handle(self._path, **self._options), spec, consumer)

    # for people and housekeeping

    def positions(self, consumer: str | None = None) -> list[tuple[str, Position]]:
        rows = self._query(
            f"{_POSITION} WHERE p.frontier IS NOT NULL AND (?1 IS NULL OR c.name = ?1)"
            " ORDER BY c.name, t.name, p.partition",
            (consumer,),
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

    def prune(self, consumer: str, *, older_than_s: float, batch: int = 1000) -> int:
        before = wall_us() - int(older_than_s * 1_000_000)
        rows = self._query(
            "SELECT i.event_id, i.consumer_id, i.outcome != ?3 AND i.settled_us < ?4 AND i.place_offset < p.frontier"
            " FROM settled_inbox i JOIN settled_frontier p ON p.id = i.place_id"
            " WHERE i.consumer_id = (SELECT id FROM settled_consumer WHERE name = ?1) AND i.event_id > ?2"
            " ORDER BY i.event_id LIMIT ?5",
            (consumer, self._sweeps.get(consumer, ""), Outcome.QUARANTINED, before, batch),
        )
        gone = [(row[1], row[0]) for row in rows if row[2]]
        if gone:
            sql = "DELETE FROM settled_inbox WHERE consumer_id = ? AND event_id = ?"
            self._work(lambda handle: handle.run_many(sql, gone))
        if rows:
            self._sweeps[consumer] = rows[-1][0]
        else:
            self._sweeps.pop(consumer, None)
        return len(rows)

    def report(self, consumer: str, member: str, state: WorkerReport | None) -> None:
        """Waits for locks no longer than a twentieth of a second; then the report is left out."""
        if not self._lock.acquire(timeout=_REPORT_PATIENCE_S):
            return
        try:
            self._require_ready()
            with self._handle.patience(_REPORT_PATIENCE_S):
                self._handle.write(lambda: _write_report(self._handle, consumer, member, state))
        except Unavailable:
            return
        finally:
            self._lock.release()

    def reports(self, consumer: str | None = None) -> list[WorkerReport]:
        rows = self._query(
            "SELECT consumer, member, host, pid, state, why, updated_us FROM settled_report"
            " WHERE (?1 IS NULL OR consumer = ?1) AND updated_us > ?2 ORDER BY consumer, member",
            (consumer, wall_us() - _SILENT_US),
        )
        names = ("consumer", "member", "host", "pid", "state", "why", "updated_us")
        return [WorkerReport(**dict(zip(names, row, strict=True))) for row in rows]

    def clock_us(self) -> int:
        return wall_us()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._handle.close()

    # helpers

    def _query(self, sql: str, params: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            self._require_ready()
            return self._handle.rows(sql, params)

    def _work(self, work: Callable[[Handle], T]) -> T:
        with self._lock:
            self._require_ready()
            return self._handle.write(lambda: work(self._handle))

    def _require_ready(self) -> None:
        if self._closed:
            raise ContractError("the store is closed", field="store", hint="open it again")
        if not self._ready:
            self._handle.ready()
            try:
                schema.require(self._handle.connection)
            except apsw.Error as exc:
                raise self._handle.meaning(exc) from exc
            self._ready = True


def _read_options(url: str, options: dict[str, str]) -> dict[str, Any]:
    known = {"foreign_keys", "busy"}
    for name in options:
        if name not in known:
            raise ContractError(
                f"{name!r} is not an option of a SQLite store", field="url", value=url, hint=f"known: {sorted(known)}"
            )
    try:
        busy_s = float(options.get("busy", BUSY_S))
    except ValueError:
        raise ContractError("busy is not a number of seconds", field="url", value=url, hint="busy=30") from None
    return {"busy_s": busy_s, "foreign_keys": options.get("foreign_keys", "off") == "on"}


def _name_id(handle: Handle, table: str, name: str) -> int:
    handle.run(f"INSERT INTO settled_{table} (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
    return int(handle.all(f"SELECT id FROM settled_{table} WHERE name = ?", (name,))[0][0])


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


def _write_report(handle: Handle, consumer: str, member: str, state: WorkerReport | None) -> None:
    now = wall_us()
    handle.run("DELETE FROM settled_report WHERE updated_us < ?", (now - _SILENT_US,))
    handle.run("DELETE FROM settled_report WHERE consumer = ? AND member = ?", (consumer, member))
    if state is not None:
        row = (consumer, member, state.host, state.pid, state.state, evidence.clipped(state.why, 500), now)
        handle.run("INSERT INTO settled_report VALUES (?, ?, ?, ?, ?, ?, ?)", row)
