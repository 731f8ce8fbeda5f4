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

AT_ONCE = 2000  # records claimed in one transaction
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
        self._reader.load(self._connection, runs)
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
