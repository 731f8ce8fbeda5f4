"""A claim: records go from a queue's pool into slots, in one transaction."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import apsw
import msgspec

from settled.engines.sqlite import pool
from settled.engines.sqlite.database import Connection
from settled.engines.sqlite.runs import KEPT_BYTES, Reader, Run
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


class _Look(msgspec.Struct, gc=False):
    """A tenant's first rows of the pool, the part of each that was looked at, and the keys of its records, where they
    matter."""

    tenant: bytes
    rows: list[tuple[int, ...]]
    runs: list[Run]
    keys: list[list[int | None]] = []


class Claim:
    """One transaction that moves records from the pool into slots. Where order by key is asked for, a record whose key
    has claims in some slot goes there, whoever owns it; all others go to the slot that claims."""

    def __init__(self, connection: Connection, reader: Reader, topic: Topic, slot: int) -> None:
        self._connection, self._reader, self._topic, self._slot = connection, reader, topic, slot
        self._bound: dict[int | None, int] = {}  # of the keys that were looked at
        self._next: dict[int, int] = {}
        self._count = 0
        # moved, and not written yet
        self._taken: list[tuple[Any, ...]] = []
        self._rest: list[tuple[Any, ...]] = []
        self._claimed: list[tuple[Any, ...]] = []
        self._going: dict[int, set[int]] = {}
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
            for some in self._looked_at(active, share, most, further, ordered=ordered):
                for each in some:
                    moved = self._move(each, min(share, most - self._count))
                    looked += moved
                    after = each.tenant
                    if moved:
                        going_on.append(after)
                    if self._count >= most:
                        break
                self._write()
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

    def _looked_at(
        self, tenants: Sequence[bytes], share: int, most: int, further: int, *, ordered: bool
    ) -> Iterator[list[_Look]]:
        """The first records of each tenant. Those of many tenants together, where their keys are looked at, since they
        stand in the same batches; their size is bounded."""
        some: list[_Look] = []
        batches: set[int] = set()
        size = 0
        for tenant in tenants:
            each = self._look(tenant, min(min(share, most - self._count) * further, AT_ONCE), ordered=ordered)
            loaded = 0
            if ordered:
                unread = [run for run in each.runs if run.batch not in batches]
                loaded = self._reader.load(self._connection, unread, batches)
            if some and size + loaded > KEPT_BYTES:
                yield self._with_slots(some)
                some, batches, size = [], set(), 0
            size += loaded
            some.append(each)
            batches.update(run.batch for run in each.runs)
            if self._room <= 0:
                break
        yield self._with_slots(some) if ordered else some

    def _look(self, tenant: bytes, look: int, *, ordered: bool) -> _Look:
        """The tenant's first `look` records."""
        found = _Look(tenant, [], [])
        for row in self._first(tenant, ordered=ordered):
            run = Run(0, *row[1:])
            found.rows.append(row)
            found.runs.append(run if run.count <= look else run.cut(0, look, 0))
            look -= found.runs[-1].count
            self._room -= found.runs[-1].size if ordered else 0
            if look <= 0 or self._room <= 0:
                break
        return found

    def _with_slots(self, some: list[_Look]) -> list[_Look]:
        """With the keys of the records, and the slots to which they are bound by what is claimed already."""
        for each in some:
            each.keys = [self._hashes(run) for run in each.runs]
        self._bound = self._bound_of({key for each in some for run in each.keys for key in run if key is not None})
        return some

    def _move(self, look: _Look, most: int) -> int:
        """Move the records that were looked at, up to `most` of them to the slot that claims; returns how many."""
        placed = self._sorted(look, most)
        moved = sum(run.count for _, run in placed)
        self._take(look.tenant, look.rows, moved)
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
        for urgency, batch, place, count, size in rows:
            if moved <= 0:
                break
            self._taken.append((self._topic.id, tenant, urgency, batch, place))
            if count > moved:
                rest = Run(0, batch, place, count, size).cut(moved, count - moved, 0)
                self._rest.append((self._topic.id, tenant, urgency, batch, rest.place, rest.count, rest.size))
            moved -= count

    def _put(self, runs: Sequence[tuple[int, Run]]) -> None:
        """Each behind what stands in its slot."""
        for slot, run in runs:
            number = self._next_of(slot)
            self._next[slot] = number + run.count
            self._claimed.append((self._topic.id, slot, number, run.batch, run.place, run.count, run.size))
            if slot == self._slot:
                self._count += run.count
            else:
                self.passed_on = True

    def _write(self) -> None:
        """What was moved since the last call. A key is bound to its slot until all that goes there now is settled: a
        number for each key would cost more than the claim itself."""
        self._connection.executemany(_TAKEN, self._taken)
        pool.put_ready(self._connection, self._rest)
        self._connection.executemany("INSERT INTO log_claim VALUES (?, ?, ?, ?, ?, ?, ?)", self._claimed)
        for slot, keys in self._going.items():
            bound = apsw.carray(array("q", sorted(keys)), flags=apsw.SQLITE_CARRAY_INT64)
            self._connection.execute(_BIND, (self._topic.id, slot, self._next_of(slot) - 1, bound))
        self._taken, self._rest, self._claimed, self._going = [], [], [], {}

    def _next_of(self, slot: int) -> int:
        found = self._next.get(slot)
        if found is None:
            _, found = pool.bounds(self._connection, self._topic.id, slot)
        return found

    def _sorted(self, look: _Look, most: int) -> list[tuple[int, Run]]:
        """Runs, or pieces of them, each with the slot in which its keys belong: they are bound to it from now on. It
        ends where `most` records belong in the slot that claims."""
        sorted_: list[tuple[int, Run]] = []
        for index, run in enumerate(look.runs):
            keys = look.keys[index] if look.keys else []
            bound = [self._bound.get(key, self._slot) for key in keys]
            for slot, start, count in _pieces(bound) if keys else [(self._slot, 0, run.count)]:
                if slot == self._slot:
                    count = min(count, most)
                    most -= count
                going = {key for key in keys[start : start + count] if key is not None}
                if going:
                    self._going.setdefault(slot, set()).update(going)
                sorted_.append((slot, run.cut(start, count, 0)))
                if most <= 0:
                    return sorted_
        return sorted_

    def _hashes(self, run: Run) -> list[int | None]:
        try:
            keys = self._reader.batch(self._topic, run.batch).columns.keys
        except Damaged:  # whoever claims it finds that out; no other slot stops for it
            keys = None
        if keys is None:
            return [None] * run.count
        return [None if key is None else crc32(key) for key in keys[run.place : run.place + run.count]]

    def _bound_of(self, keys: set[int]) -> dict[int | None, int]:
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
