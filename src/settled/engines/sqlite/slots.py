"""Queues: members claim records from a pool into slots.

A slot is what a partition is to a log: one member owns it at a time, under an epoch, and what it claims gets rising
numbers there. A claim is one short transaction that looks at the ownership first, so a member that lost its slot claims
nothing more. Settled claims are removed from the front. Neither needs a sync: after a power cut records are free again
or claimed still, and the inbox knows what became of them.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

import apsw
import msgspec

from settled import windows
from settled.engine import Fetched, Stopped
from settled.engines.sqlite import pool
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.encoding import Stored, Unpacked, records, unpack
from settled.engines.sqlite.topics import Topic
from settled.errors import Damaged, SettledError
from settled.record import Record

log = logging.getLogger("settled.engines.sqlite")

AT_ONCE = 2000  # records claimed in one transaction
KEPT = 16  # batches that a reader keeps decoded
REMOVED = 2000  # settled runs of claims in one transaction
ROUNDS = 5  # times AT_ONCE records are moved for one claim, where most belong to other slots
TENANTS = 1000  # that are considered for one claim

_RUNS = "SELECT urgency, batch, place, count, size FROM log_ready WHERE topic = ? AND tenant = ? ORDER BY {order}"
_BY_PRIORITY = _RUNS.format(order="urgency, batch, place")
_AS_ACCEPTED = _RUNS.format(order="batch, place")
_TAKEN = "DELETE FROM log_ready WHERE topic = ? AND tenant = ? AND urgency = ? AND batch = ? AND place = ?"
_TYPICAL = "SELECT avg(size / count) FROM (SELECT size, count FROM log_ready WHERE topic = ? LIMIT 20)"
_TENANTS = (
    "WITH RECURSIVE found (tenant) AS ("
    " SELECT min(tenant) FROM log_ready WHERE topic = ?1"
    " UNION ALL SELECT (SELECT min(tenant) FROM log_ready WHERE topic = ?1 AND tenant > found.tenant)"
    " FROM found WHERE found.tenant IS NOT NULL)"
    " SELECT tenant FROM found WHERE tenant IS NOT NULL LIMIT ?2"
)
_BOUND = (
    "SELECT b.key, b.slot FROM carray(?) AS wanted CROSS JOIN log_bound AS b ON b.topic = ? AND b.key = wanted.value"
    " JOIN log_slot AS s ON s.topic = b.topic AND s.slot = b.slot AND b.last >= s.first"
)
_BIND = "INSERT INTO log_bound VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET slot = excluded.slot, last = excluded.last"
_STANDING = (
    "SELECT number, batch, place, count, size FROM log_claim WHERE topic = ?1 AND slot = ?2 AND number >="
    " coalesce((SELECT number FROM (SELECT number, count FROM log_claim WHERE topic = ?1 AND slot = ?2 AND number < ?3"
    " ORDER BY number DESC LIMIT 1) WHERE number + count > ?3), ?3) ORDER BY number LIMIT ?4"
)
_BATCH = (
    "SELECT b.seq, b.base, b.count, b.bytes, b.accepted_us, b.checksum, b.chain, b.compression, p.number, b.payload"
    " FROM log_batch b JOIN log_partition p ON p.id = b.part WHERE b.seq = ? AND b.chain <> ?"
)

Owns = Callable[[Connection], bool]
Fetch = tuple[Fetched | Stopped | None, bool]


class Run(msgspec.Struct, frozen=True, gc=False):
    """Records of a batch that follow one another, and the number of the first in its slot."""

    number: int
    batch: int
    place: int
    count: int
    size: int

    def cut(self, start: int, count: int, number: int) -> Run:
        """`count` of its records from `start` on (0 is the first); their first gets the number."""
        return Run(number, self.batch, self.place + start, count, self.size * count // self.count)


class Reader:
    """Decodes batches, and keeps those that it read last. A batch's row number may be given to another after it went,
    its chain is not."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[int, tuple[bytes, Unpacked | None]] = {}

    def records(self, topic: Topic, slot: int, runs: Sequence[Run]) -> list[Record]:
        """The records of claimed runs, in their place in the slot. Raises Damaged."""
        batches = {seq: self.batch(topic, seq) for seq in {run.batch for run in runs}}
        found: list[Record] = []
        for run in runs:
            offsets = range(run.number, run.number + run.count)
            found += records(batches[run.batch], topic.name, slot, offsets, run.place)
        for seq in list(self._kept)[: max(0, len(self._kept) - KEPT)]:
            del self._kept[seq]
        return found

    def batch(self, topic: Topic, seq: int) -> Unpacked:
        chain, batch = self._kept.pop(seq, (b"", None))
        with self._database.reading() as connection:
            found = connection.execute(_BATCH, (seq, chain)).fetchall()
        if found:
            *row, number, payload = found[0]
            stored = Stored(*row)
            chain, batch = stored.chain, unpack(topic.name, topic.raw_identity, number, stored, payload)
        assert batch is not None
        self._kept[seq] = chain, batch
        return batch


class Slot:
    """One owned slot. `position`: the number of the next claim to be handed out."""

    __slots__ = ("_reader", "_tenant", "number", "position", "topic")

    def __init__(self, database: Database, reader: Reader, topic: Topic, number: int, position: int) -> None:
        """Claims below `position` are settled. Numbers go on above it, whatever a power cut took back."""
        self.topic, self.number, self.position = topic, number, position
        self._reader = reader
        self._tenant = b""  # the one that was served last
        with database.writing(durable=False) as connection:
            connection.execute(
                "INSERT INTO log_slot VALUES (?1, ?2, ?3, ?3) ON CONFLICT DO UPDATE SET next = max(next, ?3)",
                (topic.id, number, position),
            )

    def fetch(self, database: Database, owns: Owns, *, ordered: bool, records: int, size: int) -> Fetch:
        """What stands in the slot and was not handed out yet, else new claims; none: there is nothing to claim. The
        second: work of other slots' keys was found on the way, and put there."""
        most = min(records, AT_ONCE)
        with database.reading() as connection:
            runs = _standing(connection, self.topic.id, self.number, self.position, most)
            waiting = not runs and pool.waiting(connection, self.topic.id)
        passed_on = False
        try:
            if waiting:
                with database.writing(durable=False) as connection:
                    if not owns(connection):
                        return None, False
                    claim = Claim(connection, self._reader, self.topic, self.number)
                    self._tenant = claim.fill(most, size, ordered=ordered, after=self._tenant)
                    # with what another member has put here since the look above: it comes first
                    runs = _standing(connection, self.topic.id, self.number, self.position, most)
                    windows.reach("claim-written")
                windows.reach("claim-committed")
                passed_on = claim.passed_on
            return self._handed(_fitting(runs, most, size)), passed_on
        except Damaged as error:
            return Stopped(topic=self.topic.name, partition=self.number, error=error), passed_on

    def _handed(self, runs: list[Run]) -> Fetched | None:
        if not runs:
            return None
        found = self._reader.records(self.topic, self.number, runs)
        self.position = runs[-1].number + runs[-1].count
        return Fetched(
            topic=self.topic.name,
            partition=self.number,
            records=found,
            next_offset=self.position,
            size=sum(record.size for record in found),
        )


class Claim:
    """One transaction that moves records from the pool into slots. Where order by key is asked for, a record whose key
    has claims in some slot goes there, whoever owns it; all others go to the slot that claims."""

    def __init__(self, connection: Connection, reader: Reader, topic: Topic, slot: int) -> None:
        self._connection, self._reader, self._topic, self._slot = connection, reader, topic, slot
        self._next: dict[int, int] = {}
        self._count = 0
        self.passed_on = False

    def fill(self, most: int, size: int, *, ordered: bool, after: bytes) -> bytes:
        """Claim up to `most` records of about `size` bytes. The tenants are served in turn, beginning behind `after`;
        returns the one that was served last."""
        pool.promote(self._connection, self._topic.id)
        typical = self._connection.execute(_TYPICAL, (self._topic.id,)).fetchall()[0][0] or 1
        most = max(1, min(most, int(size / typical)))
        looked, active = 0, self._in_turn(after)
        while active and self._count < most and looked < ROUNDS * AT_ONCE:
            share = max(1, (most - self._count) // len(active))
            going_on: list[bytes] = []
            for tenant in active:
                wanted = min(share, most - self._count)
                moved = self._move(tenant, wanted, ordered=ordered)
                looked += moved
                after = tenant
                if moved == wanted:
                    going_on.append(tenant)
                if self._count >= most:
                    break
            active = going_on
        self._connection.executemany(
            "UPDATE log_slot SET next = ? WHERE topic = ? AND slot = ?",
            [(following, self._topic.id, slot) for slot, following in self._next.items()],
        )
        return after

    def _in_turn(self, after: bytes) -> list[bytes]:
        """Tenants that have ready work."""
        tenants = [row[0] for row in self._connection.execute(_TENANTS, (self._topic.id, TENANTS)).fetchall()]
        later = [tenant for tenant in tenants if tenant > after]
        return later + tenants[: len(tenants) - len(later)]

    def _move(self, tenant: bytes, most: int, *, ordered: bool) -> int:
        """Move the tenant's first records; returns how many. A key's order goes before priorities."""
        place = (self._topic.id, tenant)
        taken: list[tuple[int, int, int]] = []
        runs: list[Run] = []
        left = most
        for urgency, batch, first, count, size in self._connection.execute(
            _AS_ACCEPTED if ordered else _BY_PRIORITY, place
        ):
            run = Run(0, batch, first, count, size)
            taken.append((urgency, batch, first))
            runs.append(run if count <= left else run.cut(0, left, 0))
            left -= runs[-1].count
            if left <= 0:
                break
        self._connection.executemany(_TAKEN, [(*place, *row) for row in taken])
        if runs and runs[-1].count < count:
            rest = run.cut(runs[-1].count, count - runs[-1].count, 0)
            pool.put_ready(self._connection, [(*place, urgency, batch, rest.place, rest.count, rest.size)])
        self._put(self._sorted(runs) if ordered else [(self._slot, run) for run in runs])
        return most - left

    def _put(self, runs: Sequence[tuple[int, Run]]) -> None:
        """Each behind what stands in its slot."""
        rows: list[tuple[int, ...]] = []
        for slot, run in runs:
            number = self._next_of(slot)
            self._next[slot] = number + run.count
            rows.append((self._topic.id, slot, number, run.batch, run.place, run.count, run.size))
            if slot == self._slot:
                self._count += run.count
            else:
                self.passed_on = True
        self._connection.executemany("INSERT INTO log_claim VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def _next_of(self, slot: int) -> int:
        found = self._next.get(slot)
        if found is None:
            _, found = pool.bounds(self._connection, self._topic.id, slot)
        return found

    def _sorted(self, runs: Sequence[Run]) -> list[tuple[int, Run]]:
        """Runs, or pieces of them, each with the slot in which its keys belong: they are bound to it from now on."""
        hashed = [self._hashes(run) for run in runs]
        keys = {key for each in hashed for key in each if key is not None}
        bound = self._bound(keys)
        last: dict[int, tuple[int, int]] = {}  # key -> slot, and how many records go there before and with its last
        sorted_: list[tuple[int, Run]] = []
        ahead: dict[int, int] = {}
        for run, each in zip(runs, hashed, strict=True):
            for slot, start, count in _pieces([bound.get(key, self._slot) for key in each]):
                before = ahead.get(slot, 0)
                for place, key in enumerate(each[start : start + count], before):
                    if key is not None:
                        last[key] = slot, place
                ahead[slot] = before + count
                sorted_.append((slot, run.cut(start, count, 0)))
        begins = {slot: self._next_of(slot) for slot in ahead}
        self._connection.executemany(
            _BIND, [(self._topic.id, key, slot, begins[slot] + place) for key, (slot, place) in last.items()]
        )
        return sorted_

    def _hashes(self, run: Run) -> list[int | None]:
        keys = self._reader.batch(self._topic, run.batch).columns.keys
        if keys is None:
            return [None] * run.count
        return [None if key is None else crc32(key) for key in keys[run.place : run.place + run.count]]

    def _bound(self, keys: set[int]) -> dict[int | None, int]:
        if not keys:
            return {}
        wanted = apsw.carray(array("q", keys), flags=apsw.SQLITE_CARRAY_INT64)
        return dict(self._connection.execute(_BOUND, (wanted, self._topic.id)).fetchall())


class Removals:
    """Settled claims are removed on a thread of its own, so that nobody waits for it. What is left undone, the next
    owner of the slot does."""

    def __init__(self, database: Database, owns: Callable[[Connection, int, int], bool], freed: Callable[[], None]):
        """`freed` is called when claims were removed: others may have waited for their keys."""
        self._database, self._owns, self._freed = database, owns, freed
        self._noted: dict[tuple[int, int], int] = {}  # topic and slot -> frontier
        self._stir = threading.Condition()
        self._removing = threading.Lock()  # taken before `_stir`
        self._ended = False
        self._thread: threading.Thread | None = None

    def note(self, topic: int, slot: int, frontier: int) -> None:
        """The claims below `frontier` are settled."""
        with self._stir:
            self._noted[topic, slot] = frontier
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="settled-removals", daemon=True)
                self._thread.start()
            self._stir.notify()

    def finish(self, topic: int, slot: int) -> None:
        """Do what is noted of a slot now: it is about to be given back."""
        self._do((topic, slot))

    def close(self) -> None:
        """Do all that is noted, then end."""
        with self._stir:
            self._ended = True
            self._stir.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._stir:
                while not self._noted and not self._ended:
                    self._stir.wait()
                if not self._noted:
                    return
                place = next(iter(self._noted))
            self._do(place)

    def _do(self, place: tuple[int, int]) -> None:
        with self._removing:
            with self._stir:
                frontier = self._noted.pop(place, None)
            if frontier is None:
                return
            try:
                self._remove(*place, frontier)
            except SettledError as error:  # the next frontier takes it along
                log.warning("settled claims of slot %s are not removed yet: %s", place[1], error)

    def _remove(self, topic: int, slot: int, frontier: int) -> None:
        """In short transactions. Nothing is done for a slot that is another's."""
        below = -1
        while below < frontier:
            with self._database.writing(durable=False) as connection:
                if not self._owns(connection, topic, slot):
                    return
                below = pool.remove(connection, topic, slot, frontier, most=REMOVED)
                windows.reach("claims-removed")
        self._freed()


def read(database: Database, topic: Topic, slot: int, number: int, records: int) -> list[Record]:
    """Up to `records` claims of a slot that are not known to be settled, from `number` on."""
    with database.reading() as connection:
        runs = _standing(connection, topic.id, slot, number, records)
    return Reader(database).records(topic, slot, _fitting(runs, records, 2**62))


def _standing(connection: Connection, topic: int, slot: int, position: int, most: int) -> list[Run]:
    """The runs in a slot from a number on."""
    runs = [Run(*row) for row in connection.execute(_STANDING, (topic, slot, position, most)).fetchall()]
    if runs and runs[0].number < position:
        gone = position - runs[0].number
        runs[0] = runs[0].cut(gone, runs[0].count - gone, position)
    return runs


def _pieces(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Equal neighbours together: slot, index of the first, count."""
    first = 0
    for place in range(1, len(slots) + 1):
        if place == len(slots) or slots[place] != slots[first]:
            yield slots[first], first, place - first
            first = place


def _fitting(runs: Sequence[Run], most: int, size: int) -> list[Run]:
    """The first records that fit; one at least."""
    fitting: list[Run] = []
    for run in runs:
        fits = min(run.count, most, size * run.count // run.size if run.size else run.count)
        if fits < run.count:
            if fits > 0 or not fitting:
                fitting.append(run.cut(0, max(1, fits), run.number))
            break
        fitting.append(run)
        most -= run.count
        size -= run.size
    return fitting
