"""Appending batches: all that are ready, in one transaction, with the producer's own mark.

`memory` durability does not sync each commit, so a power cut may take appends back whose offsets were already seen.
Such appends therefore stay below a bound that was reserved by a synced commit; after a reboot the partition goes on
at that bound (`history`), so that no offset is used twice. One synced commit per 10,000 offsets pays for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from settled import clock, windows
from settled.engine import ProducerSpec
from settled.engines.sqlite import pool
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.encoding import Encoded, Stored, chain_link, checksum
from settled.engines.sqlite.tip import Mark, Tip
from settled.engines.sqlite.topics import Topic
from settled.errors import Fenced, SettledError

log = logging.getLogger("settled.engines.sqlite")

RESERVED = 10_000


class Part(msgspec.Struct, frozen=True):
    """What goes to one partition; of a queue also what its pool must know of them."""

    topic: Topic
    partition: int
    encoded: Encoded
    runs: Sequence[tuple[Any, ...]] = ()


class By(msgspec.Struct, frozen=True):
    """Who appends: `batch` rises with each append; `incarnation` is 0 for unnamed producers."""

    identity: str
    incarnation: int
    batch: int
    sequence: int | None = None


class Appended(msgspec.Struct, frozen=True):
    """`bases` are the first offsets, one for each Part; `topics` is the log's topic counter."""

    bases: list[int]
    topics: int


class Appender:
    """Any thread may call it."""

    def __init__(self, database: Database, tip: Tip, identity: bytes, *, durable: bool) -> None:
        self._database, self._tip, self._identity, self._durable = database, tip, identity, durable

    def append(self, parts: Sequence[Part], by: By, bases: list[int]) -> Appended:
        """Store all parts or nothing. `bases` is filled before the commit is tried, so that the caller knows the
        offsets even if the commit's answer is lost. Raises Fenced when the name was opened again since."""
        self._database.check_same_file()
        while True:
            bases.clear()
            try:
                return self._try(parts, by, bases)
            except _NotReserved:
                reserve(self._database, parts)

    def _try(self, parts: Sequence[Part], by: By, bases: list[int]) -> Appended:
        with self._database.writing(durable=self._durable) as connection:
            now = clock.wall_us()
            self._insert(connection, parts, now, bases)
            _mark(connection, by, now)
            highest = max(base + part.encoded.count - 1 for base, part in zip(bases, parts, strict=True))
            commits, highest, topics = connection.execute(
                "UPDATE log_meta SET commits = commits + 1, highest = max(highest, ?) "
                "RETURNING commits, highest, topics",
                (highest,),
            ).fetchall()[0]
            windows.reach("append-written")
        if self._durable:
            self._tip.advance(Mark(self._identity, commits, highest))
        windows.reach("append-committed")
        return Appended(bases, topics)

    def _insert(self, connection: Connection, parts: Sequence[Part], now: int, bases: list[int]) -> None:
        """Few statements, however many parts: the write lock is held, and each gives the interpreter to others."""
        rows = [part.topic.parts[part.partition] for part in parts]
        known = dict.fromkeys(rows)
        sql = f"SELECT id, next, chain, accepted_us, reserved FROM log_partition WHERE id IN ({_marks(len(known))})"
        ends = {row[0]: _End(*row[1:]) for row in connection.execute(sql, tuple(known))}
        batches: list[Any] = []
        for row, part in zip(rows, parts, strict=True):
            encoded, end = part.encoded, ends[row]
            base, count, size, stored = end.next, encoded.count, encoded.size, len(encoded.payload)
            if not self._durable and base + count > end.reserved:
                raise _NotReserved
            accepted_us = max(now, end.accepted_us)
            place = Stored(0, base, count, size, accepted_us, 0, b"", encoded.compression)
            check = checksum(part.topic.raw_identity, part.partition, place, encoded.crc)
            end.move(chain_link(end.chain, check, base, count), accepted_us, count, size, stored)
            batches += (row, base, count, size, accepted_us, check, end.chain, encoded.compression, encoded.payload)
            bases.append(base)
        connection.execute(_insert_sql(len(rows)), batches)
        queued = [(number, part) for number, part in enumerate(parts) if part.runs]
        if queued:  # the rows of one INSERT have numbers without a hole
            first = connection.last_insert_rowid() - len(rows) + 1
            pool.add(connection, [(part.topic.id, first + number, part.runs) for number, part in queued])
        connection.execute(_move_sql(len(ends)), [each for row, end in ends.items() for each in end.moved(row)])


class _End(msgspec.Struct):
    """Where a partition ends, moved on by each batch; what was added to it in this transaction."""

    next: int
    chain: bytes
    accepted_us: int
    reserved: int
    count: int = 0
    size: int = 0
    stored: int = 0

    def move(self, chain: bytes, accepted_us: int, count: int, size: int, stored: int) -> None:
        self.next += count
        self.chain, self.accepted_us = chain, accepted_us
        self.count, self.size, self.stored = self.count + count, self.size + size, self.stored + stored

    def moved(self, row: int) -> tuple[Any, ...]:
        return row, self.next, self.chain, self.accepted_us, self.count, self.size, self.stored


def _marks(count: int) -> str:
    return ",".join("?" * count)


@lru_cache(maxsize=128)
def _insert_sql(count: int) -> str:
    values = ",".join(["(?,?,?,?,?,?,?,?,?)"] * count)
    return (
        "INSERT INTO log_batch (part, base, count, bytes, accepted_us, checksum, chain, compression, payload) "
        f"VALUES {values}"
    )


@lru_cache(maxsize=128)
def _move_sql(count: int) -> str:
    values = ",".join(["(?,?,?,?,?,?,?)"] * count)
    return (
        "UPDATE log_partition SET next = m.column2, chain = m.column3, accepted_us = m.column4, "
        "records = records + m.column5, bytes = bytes + m.column6, stored = stored + m.column7 "
        f"FROM (VALUES {values}) AS m WHERE id = m.column1"
    )


def open_identity(database: Database, identity: str) -> tuple[int, int | None]:
    """A new incarnation of a named producer and the last sequence it stored; older incarnations append no more."""
    with database.writing(durable=False) as connection:
        incarnation, sequence = connection.execute(
            "INSERT INTO log_producer VALUES (?, 1, 1, NULL, 0, ?) ON CONFLICT (identity) DO UPDATE SET "
            "incarnation = incarnation + 1, batch = 0, updated_us = excluded.updated_us "
            "RETURNING incarnation, sequence",
            (identity, clock.wall_us()),
        ).fetchall()[0]
    return incarnation, sequence


def last_sequence(database: Database, identity: str) -> int | None:
    with database.reading() as connection:
        rows = connection.execute("SELECT sequence FROM log_producer WHERE identity = ?", (identity,)).fetchall()
    return rows[0][0] if rows else None


def was_stored(database: Database, by: By) -> bool:
    """Whether the append happened: for a commit whose answer was lost."""
    with database.reading() as connection:
        rows = connection.execute(
            "SELECT incarnation, batch FROM log_producer WHERE identity = ?", (by.identity,)
        ).fetchall()
    return bool(rows) and rows[0][0] == by.incarnation and rows[0][1] >= by.batch


def leave(database: Database, identity: str, spec: ProducerSpec) -> None:
    """Undo what a producer that is done left in the log; without success it is left for maintenance. After durability
    `memory` all is synced, so that nothing needs to be left out after a reboot."""
    try:
        if spec.durability == "memory":
            with database.writing(durable=True) as connection:
                connection.execute("UPDATE log_partition SET reserved = 0 WHERE reserved > 0")
        if spec.identity is None:
            with database.writing(durable=False) as connection:
                connection.execute("DELETE FROM log_producer WHERE identity = ? AND named = 0", (identity,))
    except SettledError as error:
        log.info("producer %s leaves its mark behind: %s", identity, error)


def reserve(database: Database, parts: Sequence[Part]) -> None:
    """Enough for all parts together, of which several may go to one partition."""
    wanted: dict[int, int] = {}
    for part in parts:
        row = part.topic.parts[part.partition]
        wanted[row] = wanted.get(row, 0) + part.encoded.count
    with database.writing(durable=True) as connection:
        for row, count in wanted.items():
            connection.execute(
                "UPDATE log_partition SET reserved = max(reserved, next + ?) WHERE id = ?", (max(RESERVED, count), row)
            )


def _mark(connection: Connection, by: By, now: int) -> None:
    if by.incarnation:
        connection.execute(
            "UPDATE log_producer SET sequence = coalesce(?, sequence), batch = ?, updated_us = ? "
            "WHERE identity = ? AND incarnation = ?",
            (by.sequence, by.batch, now, by.identity, by.incarnation),
        )
        if not connection.changes():
            raise Fenced(
                f"producer {by.identity!r} was opened again elsewhere; this one may append no more",
                hint="run one producer under a name at a time",
            )
        return
    connection.execute(
        "INSERT INTO log_producer VALUES (?, 0, 0, NULL, ?, ?) ON CONFLICT (identity) DO UPDATE SET "
        "batch = excluded.batch, updated_us = excluded.updated_us",
        (by.identity, by.batch, now),
    )


class _NotReserved(Exception):
    """Offsets of durability memory would pass the bound that a reboot goes on from."""
