"""Queues: a pool of items, and slots into which members claim them. An item stands for one record of a batch.

A slot is what a partition is to a log: one member owns it at a time, under an epoch, and what it claims gets rising
numbers there. A claim is one short transaction that looks at the ownership first, so a member that lost its slot claims
nothing more. Settled claims are removed from the front; a batch goes when none of its items is left. Neither needs a
sync: after a power cut items are free again or claimed still, and the inbox knows what became of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from settled import clock, windows
from settled.engine import Fetched, Stopped
from settled.engines.sqlite import pool
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.encoding import Stored, decode
from settled.engines.sqlite.topics import Topic
from settled.errors import Damaged, SettledError
from settled.record import Record

log = logging.getLogger("settled.engines.sqlite")

AT_ONCE = 500  # claims in one transaction
KEPT = 16  # batches that a reader keeps decoded
REMOVED = 2000  # settled claims in one transaction
ROUNDS = 10  # times AT_ONCE items are looked at for one claim, where most belong to other slots
TENANTS = 1000  # that are considered for one claim

_READY = "topic = ?1 AND tenant = ?2 AND slot IS NULL AND due_us = 0"
_BOUND = "(SELECT o.slot FROM log_item AS o WHERE o.topic = ?1 AND o.key = i.key AND o.slot IS NOT NULL LIMIT 1)"
_PICK = (
    "SELECT seq, batch, place, size, {key}, {bound} FROM log_item AS i WHERE {ready}{more} ORDER BY {order} LIMIT ?3"
)
_ANY = _PICK.format(key="NULL", bound="NULL", ready=_READY, more="", order="priority DESC, seq")
_KEYED = _PICK.format(key="key", bound=_BOUND, ready=_READY, more=" AND priority = ?4", order="seq")
_KEYED_MIXED = _PICK.format(key="key", bound=_BOUND, ready=_READY, more="", order="seq")
_PRIORITIES = (
    f"SELECT (SELECT priority FROM log_item WHERE {_READY} ORDER BY priority DESC LIMIT 1),"
    f" (SELECT priority FROM log_item WHERE {_READY} ORDER BY priority LIMIT 1)"
)
_TENANTS = (
    "WITH RECURSIVE found (tenant) AS ("
    " SELECT min(tenant) FROM log_item WHERE topic = ?1 AND slot IS NULL AND due_us = 0"
    " UNION ALL SELECT (SELECT min(tenant) FROM log_item WHERE topic = ?1 AND slot IS NULL AND due_us = 0"
    " AND tenant > found.tenant) FROM found WHERE found.tenant IS NOT NULL)"
    " SELECT tenant FROM found WHERE tenant IS NOT NULL LIMIT ?2"
)
_PROMOTE = (
    "UPDATE log_item SET due_us = 0 WHERE seq IN (SELECT seq FROM log_item WHERE topic = ? AND slot IS NULL"
    " AND due_us > 0 AND due_us <= ? ORDER BY due_us LIMIT 1000)"
)
_STANDING = (
    "SELECT batch, place, size, claim FROM log_item WHERE topic = ? AND slot = ? AND claim >= ? ORDER BY claim LIMIT ?"
)
_BATCH = (
    "SELECT b.seq, b.base, b.count, b.bytes, b.accepted_us, b.checksum, b.chain, b.compression, p.number, b.payload"
    " FROM log_batch b JOIN log_partition p ON p.id = b.part WHERE b.seq = ?"
)

Owns = Callable[[Connection], bool]
Fetch = tuple[Fetched | Stopped | None, bool]


class Item(msgspec.Struct, frozen=True, gc=False):
    """An item of the pool. `bound`: the slot in which its key has claims."""

    seq: int
    batch: int
    place: int
    size: int
    key: int | None
    bound: int | None


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """An item in a slot: which record of which batch, and its number there."""

    batch: int
    place: int
    size: int
    number: int


T = TypeVar("T", Item, Claimed)


class Reader:
    """Decodes batches, and keeps those that it read last."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[int, list[Record]] = {}

    def records(self, topic: Topic, slot: int, claims: Sequence[Claimed]) -> list[Record]:
        """The claimed records, in their place in the slot. Raises Damaged."""
        wanted = {claim.batch for claim in claims}
        missing = sorted(wanted - self._kept.keys())
        if missing:
            with self._database.reading() as connection:
                found = [connection.execute(_BATCH, (seq,)).fetchall()[0] for seq in missing]
            for *stored, number, payload in found:
                batch = Stored(*stored)
                self._kept[batch.seq] = decode(topic.name, topic.raw_identity, number, batch, payload)
        records = [_placed(self._kept[claim.batch][claim.place], slot, claim.number) for claim in claims]
        for seq in list(self._kept)[: max(0, len(self._kept) - KEPT)]:
            del self._kept[seq]
        return records


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
            rows = self._standing(connection, most)
            waiting = not rows and pool.waiting(connection, self.topic.id)
        passed_on = False
        if waiting:
            with database.writing(durable=False) as connection:
                if not owns(connection):
                    return None, False
                claim = Claim(connection, self.topic.id, self.number)
                self._tenant = claim.fill(most, size, ordered=ordered, after=self._tenant)
                windows.reach("claim-written")
                rows, passed_on = self._standing(connection, most), claim.passed_on
            windows.reach("claim-committed")
        claims = _fitting(rows, size)
        return (self._handed(claims) if claims else None), passed_on

    def _standing(self, connection: Connection, most: int) -> list[Claimed]:
        rows = connection.execute(_STANDING, (self.topic.id, self.number, self.position, most)).fetchall()
        return [Claimed(*row) for row in rows]

    def _handed(self, claims: list[Claimed]) -> Fetched | Stopped:
        try:
            found = self._reader.records(self.topic, self.number, claims)
        except Damaged as error:
            return Stopped(topic=self.topic.name, partition=self.number, error=error)
        self.position = claims[-1].number + 1
        return Fetched(
            topic=self.topic.name,
            partition=self.number,
            records=found,
            next_offset=self.position,
            size=sum(record.size for record in found),
        )


class Claim:
    """One transaction that moves items from the pool into slots. Where order by key is asked for, an item whose key has
    claims in some slot goes there, whoever owns it; all others go to the slot that claims."""

    def __init__(self, connection: Connection, topic: int, slot: int) -> None:
        self._connection, self._topic, self._slot = connection, topic, slot
        self._next: dict[int, int] = {}
        self._bound: dict[int, int] = {}
        self.passed_on = False

    def fill(self, most: int, size: int, *, ordered: bool, after: bytes) -> bytes:
        """Claim up to `most` items of about `size` bytes. The tenants are served in turn, beginning behind `after`;
        returns the one that was served last."""
        self._connection.execute(_PROMOTE, (self._topic, clock.wall_us()))
        own, looked = 0, 0
        active = self._in_turn(after)
        while active and own < most and size > 0 and looked < ROUNDS * AT_ONCE:
            share = max(1, (most - own) // len(active))
            going_on: list[bytes] = []
            for tenant in active:
                picked = _fitting(self._pick(tenant, min(share, most - own), ordered=ordered), size)
                mine = self._move(picked)
                looked += len(picked)
                own += len(mine)
                size -= sum(item.size for item in mine)
                after = tenant if mine else after
                if len(picked) == share:
                    going_on.append(tenant)
                if own >= most or size <= 0:
                    break
            active = going_on
        self._connection.executemany(
            "UPDATE log_slot SET next = ? WHERE topic = ? AND slot = ?",
            [(following, self._topic, slot) for slot, following in self._next.items()],
        )
        return after

    def _in_turn(self, after: bytes) -> list[bytes]:
        """Tenants that have ready work."""
        tenants = [row[0] for row in self._connection.execute(_TENANTS, (self._topic, TENANTS)).fetchall()]
        later = [tenant for tenant in tenants if tenant > after]
        return later + tenants[: len(tenants) - len(later)]

    def _pick(self, tenant: bytes, most: int, *, ordered: bool) -> list[Item]:
        place = (self._topic, tenant)
        if not ordered:
            rows = self._connection.execute(_ANY, (*place, most))
        else:  # a key's order goes before priorities
            highest, lowest = self._connection.execute(_PRIORITIES, place).fetchall()[0]
            if highest == lowest:
                rows = self._connection.execute(_KEYED, (*place, most, highest))
            else:
                rows = self._connection.execute(_KEYED_MIXED, (*place, most))
        return [Item(*row) for row in rows.fetchall()]

    def _move(self, items: list[Item]) -> list[Item]:
        """Give each its slot and number; returns those of the slot that claims."""
        mine: list[Item] = []
        moves: list[tuple[int, int, int]] = []
        for item in items:
            slot = self._slot
            if item.key is not None:
                slot = item.bound if item.bound is not None else self._bound.setdefault(item.key, slot)
            if slot == self._slot:
                mine.append(item)
            else:
                self.passed_on = True
            number = self._next.get(slot)
            if number is None:
                _, number = pool.bounds(self._connection, self._topic, slot)
            self._next[slot] = number + 1
            moves.append((slot, number, item.seq))
        self._connection.executemany("UPDATE log_item SET slot = ?, claim = ? WHERE seq = ?", moves)
        return mine


class Removals:
    """Settled claims are removed on a thread of its own, so that nobody waits for it. What is left undone, the next
    owner of the slot does."""

    def __init__(self, database: Database, owns: Callable[[Connection, int, int], bool], freed: Callable[[], None]):
        """`freed` is called when claims were removed: others may have waited for their keys."""
        self._database, self._owns, self._freed = database, owns, freed
        self._noted: dict[tuple[int, int], int] = {}  # topic and slot -> frontier
        self._stir = threading.Condition()
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

    def close(self) -> None:
        """Do what is noted, then end."""
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
                (topic, slot), frontier = self._noted.popitem()
            try:
                self._remove(topic, slot, frontier)
            except SettledError as error:  # the next frontier takes it along
                log.warning("settled claims of slot %s are not removed yet: %s", slot, error)

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
        rows = connection.execute(_STANDING, (topic.id, slot, number, records)).fetchall()
    return Reader(database).records(topic, slot, [Claimed(*row) for row in rows])


def _fitting(items: Sequence[T], size: int) -> list[T]:
    """The first that fit; one at least."""
    fitting: list[T] = []
    for item in items:
        size -= item.size
        if fitting and size < 0:
            break
        fitting.append(item)
    return fitting


def _placed(record: Record, slot: int, number: int) -> Record:
    """The record in its place in a slot. Every record of a queue goes through this: no `replace`, which is slower."""
    return Record(
        record.topic,
        slot,
        number,
        record.key,
        record.value,
        record.headers,
        record.id,
        record.type,
        record.version,
        record.event_time_us,
        record.correlation_id,
        record.causation_id,
        record.accepted_us,
    )
