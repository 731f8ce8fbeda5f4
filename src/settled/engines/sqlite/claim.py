"""A claim: records go from a queue's pool into slots, in one transaction."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from zlib import crc32

import apsw

from settled.engines.sqlite import pool
from settled.engines.sqlite.database import Connection
from settled.engines.sqlite.runs import Reader, Run
from settled.engines.sqlite.topics import Topic
from settled.errors import Damaged
from settled.scheduling import HIGHEST

AT_ONCE = 2000  # records claimed in one transaction
ROUNDS = 5  # times AT_ONCE records are moved for one claim, where most belong to other slots
TENANTS = 1000  # that are considered for one claim
LOOKED_BYTES = 32_000_000  # expanded, of records whose keys are looked at for one claim
FURTHER = 4  # times as far a claim looks in each round, if what it saw belonged to other slots

_RUNS = "SELECT urgency, batch, place, count, size FROM log_ready WHERE topic = ?1 AND tenant = ?2"
_BY_PRIORITY = f"{_RUNS} ORDER BY urgency, batch, place"
_ALIKE = f"{_RUNS} AND urgency = ?3 ORDER BY batch, place"
_AS_ACCEPTED = " UNION ALL ".join(f"{_RUNS} AND urgency = {each}" for each in range(HIGHEST + 1)) + " ORDER BY 2, 3"
_URGENCIES = (
    "SELECT (SELECT min(urgency) FROM log_ready WHERE topic = ?1 AND tenant = ?2),"
    " (SELECT max(urgency) FROM log_ready WHERE topic = ?1 AND tenant = ?2)"
)
_TAKEN = "DELETE FROM log_ready WHERE topic = ? AND tenant = ? AND urgency = ? AND batch = ? AND place = ?"
_TYPICAL = "SELECT avg(size / count) FROM (SELECT size, count FROM log_ready WHERE topic = ? LIMIT 20)"
_TENANTS_BEHIND = (
    "WITH RECURSIVE found (tenant) AS ("
    " SELECT min(tenant) FROM log_ready WHERE topic = ?1 AND tenant > ?2"
    " UNION ALL SELECT (SELECT min(tenant) FROM log_ready WHERE topic = ?1 AND tenant > found.tenant)"
    " FROM found WHERE found.tenant IS NOT NULL)"
    " SELECT tenant FROM found WHERE tenant IS NOT NULL LIMIT ?3"
)
_HAS_READY = "SELECT tenant FROM log_ready WHERE topic = ? AND tenant = ? LIMIT 1"
_BOUND = (
    "SELECT b.key, b.slot FROM carray(?) AS wanted CROSS JOIN log_bound AS b ON b.topic = ? AND b.key = wanted.value"
    " JOIN log_slot AS s ON s.topic = b.topic AND s.slot = b.slot AND b.last >= s.first"
)
_BIND = (
    "INSERT INTO log_bound SELECT ?1, value, ?2, ?3 FROM carray(?4) WHERE true"
    " ON CONFLICT DO UPDATE SET slot = excluded.slot, last = excluded.last"
)


class Claim:
    """One transaction that moves records from the pool into slots. Where order by key is asked for, a record whose key
    has claims in some slot goes there, whoever owns it; all others go to the slot that claims."""

    def __init__(self, connection: Connection, reader: Reader, topic: Topic, slot: int) -> None:
        self._connection, self._reader, self._topic, self._slot = connection, reader, topic, slot
        self._next: dict[int, int] = {}
        self._count = 0
        self._room = LOOKED_BYTES
        self.passed_on = False

    def fill(self, most: int, size: int, *, ordered: bool, after: bytes) -> bytes:
        """Claim up to `most` records of about `size` bytes. The tenants are served in turn, beginning behind `after`;
        returns the one that was served last."""
        pool.promote(self._connection, self._topic.id)
        typical = self._connection.execute(_TYPICAL, (self._topic.id,)).fetchall()[0][0] or 1
        most = max(1, min(most, int(size / typical)))
        looked, further, active = 0, 1, self._in_turn(after, most)
        while active and self._count < most and looked < ROUNDS * AT_ONCE and self._room > 0:
            share = max(1, (most - self._count) // len(active))
            going_on: list[bytes] = []
            for tenant in active:
                wanted = min(share, most - self._count)
                moved = self._move(tenant, wanted, min(wanted * further, AT_ONCE), ordered=ordered)
                looked += moved
                after = tenant
                if moved:
                    going_on.append(tenant)
                if self._count >= most:
                    break
            active = going_on
            further *= FURTHER if ordered else 1
        self._connection.executemany(
            "UPDATE log_slot SET next = ? WHERE topic = ? AND slot = ?",
            [(following, self._topic.id, slot) for slot, following in self._next.items()],
        )
        return after

    def _in_turn(self, after: bytes, most: int) -> list[bytes]:
        """Tenants that have ready work, those behind `after` first; no more than can be served."""
        limit = min(most, TENANTS)
        topic = self._topic.id
        found = [row[0] for row in self._connection.execute(_TENANTS_BEHIND, (topic, after, limit)).fetchall()]
        if len(found) < limit:
            first = self._connection.execute(_HAS_READY, (topic, b"")).fetchall()  # nothing is before it
            first += self._connection.execute(_TENANTS_BEHIND, (topic, b"", limit)).fetchall()
            found += [tenant for (tenant,) in first if tenant <= after]
        return found[:limit]

    def _move(self, tenant: bytes, most: int, look: int, *, ordered: bool) -> int:
        """Look at the tenant's first records and move them, up to `most` of them to the slot that claims; returns how
        many were moved."""
        rows: list[tuple[int, ...]] = []
        runs: list[Run] = []
        for row in self._first(tenant, ordered=ordered):
            run = Run(0, *row[1:])
            rows.append(row)
            runs.append(run if run.count <= look else run.cut(0, look, 0))
            look -= runs[-1].count
            self._room -= runs[-1].size if ordered else 0
            if look <= 0 or self._room <= 0:
                break
        if not runs:
            return 0
        placed = self._sorted(runs, most) if ordered else [(self._slot, run) for run in runs]
        moved = sum(run.count for _, run in placed)
        self._take(tenant, rows, moved)
        self._put(placed)
        return moved

    def _first(self, tenant: bytes, *, ordered: bool) -> Iterator[tuple[int, ...]]:
        """The tenant's runs, as they are to be claimed: urgency, batch, place, count, size. A key's order goes before
        priorities; none of the ways there sorts the whole backlog."""
        place = (self._topic.id, tenant)
        if not ordered:
            return iter(self._connection.execute(_BY_PRIORITY, place))
        highest, lowest = self._connection.execute(_URGENCIES, place).fetchall()[0]
        if highest == lowest:
            return iter(self._connection.execute(_ALIKE, (*place, highest)))
        return iter(self._connection.execute(_AS_ACCEPTED, place))

    def _take(self, tenant: bytes, rows: Sequence[tuple[int, ...]], moved: int) -> None:
        """The first `moved` records of these runs leave the pool."""
        taken: list[tuple[int, ...]] = []
        for urgency, batch, place, count, size in rows:
            if moved <= 0:
                break
            taken.append((urgency, batch, place))
            if count > moved:
                rest = Run(0, batch, place, count, size).cut(moved, count - moved, 0)
                pool.put_ready(
                    self._connection, [(self._topic.id, tenant, urgency, batch, rest.place, rest.count, rest.size)]
                )
            moved -= count
        self._connection.executemany(_TAKEN, [(self._topic.id, tenant, *row) for row in taken])

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

    def _sorted(self, runs: Sequence[Run], most: int) -> list[tuple[int, Run]]:
        """Runs, or pieces of them, each with the slot in which its keys belong: they are bound to it from now on. It
        ends where `most` records belong in the slot that claims."""
        self._reader.load(self._connection, runs)
        hashed = [self._hashes(run) for run in runs]
        bound = self._bound({key for each in hashed for key in each if key is not None})
        sorted_: list[tuple[int, Run]] = []
        ahead: dict[int, int] = {self._slot: 0}  # how many records go to a slot
        going: dict[int, set[int | None]] = {}
        for run, each in zip(runs, hashed, strict=True):
            for slot, start, count in _pieces([bound.get(key, self._slot) for key in each]):
                count = min(count, most - ahead[slot]) if slot == self._slot else count
                going.setdefault(slot, set()).update(each[start : start + count])
                ahead[slot] = ahead.get(slot, 0) + count
                sorted_.append((slot, run.cut(start, count, 0)))
                if ahead[self._slot] == most:
                    break
            if ahead[self._slot] == most:
                break
        for slot, keys in going.items():
            self._bind(slot, keys - {None}, self._next_of(slot) + ahead[slot] - 1)
        return sorted_

    def _bind(self, slot: int, keys: set[int | None], last: int) -> None:
        """Until all that goes there now is settled: a number for each key would cost more than the claim itself."""
        sorted_ = array("q", sorted(keys))  # type: ignore[type-var]
        if sorted_:
            self._connection.execute(
                _BIND, (self._topic.id, slot, last, apsw.carray(sorted_, flags=apsw.SQLITE_CARRAY_INT64))
            )

    def _hashes(self, run: Run) -> list[int | None]:
        try:
            keys = self._reader.batch(self._topic, run.batch).columns.keys
        except Damaged:  # whoever claims it finds that out; no other slot stops for it
            keys = None
        if keys is None:
            return [None] * run.count
        return [None if key is None else crc32(key) for key in keys[run.place : run.place + run.count]]

    def _bound(self, keys: set[int]) -> dict[int | None, int]:
        if not keys:
            return {}
        wanted = apsw.carray(array("q", keys), flags=apsw.SQLITE_CARRAY_INT64)
        return dict(self._connection.execute(_BOUND, (wanted, self._topic.id)).fetchall())


def _pieces(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Equal neighbours together: slot, index of the first, count."""
    first = 0
    for place in range(1, len(slots) + 1):
        if place == len(slots) or slots[place] != slots[first]:
            yield slots[first], first, place - first
            first = place
