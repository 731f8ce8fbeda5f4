"""Compaction by key: of each key the newest record stays at least; older ones go once all active groups are past them,
or at once where the topic lets compaction pass groups. Records without a key stay, whatever comes after them.

A partition has a clean head, in which no key stands twice, and a dirty tail. A pass notes the newest offset of each key
of the dirty part, as many keys as fit, then goes through the log from its beginning and writes batches that hold older
ones anew, without them, small neighbours joined. It reads and packs outside of transactions; each transaction only
replaces a few batches that are still as they were read. A process that dies leaves batches that are done and others
that are not, and the next pass begins again at the same place.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Iterator

import msgspec

from settled import clock, windows
from settled.engine import Examined
from settled.engines.sqlite import joining, reading
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.encoding import Stored, Unpacked, chosen
from settled.engines.sqlite.joining import Joined
from settled.engines.sqlite.retention import floors_of, holders_of
from settled.engines.sqlite.topics import Topic
from settled.errors import Damaged

log = logging.getLogger("settled.engines.sqlite")

KEYS = 100_000  # keys that are noted at once
LONG_KEY = 32  # a longer key is noted by its digest
CLAIM_S = 1.0  # one process at a time compacts a partition; a claim that is not renewed for so long is over
REST_AFTER_S, REST_MOST_S = 0.005, 0.1  # a pass rests for as long as it works
SHARE = 8  # tombstones that are due wait for others for this part of their time; a batch spans this part of the age


class Part(msgspec.Struct, frozen=True):
    """A partition that is worth a pass.

    end          where the groups are that hold it back: what is below may be compacted
    age_us       the topic's retention
    passing      groups are passed: nothing holds it back
    """

    topic: Topic
    number: int
    end: int
    age_us: int | None
    tombstone_us: int
    passing: bool


def compact(database: Database, *, force: bool = False) -> dict[str, int]:
    """Compact what is worth it; returns records removed per topic (topics without any are left out). `force`: all of
    it, groups are passed. A damaged batch ends the pass over its partition."""
    removed: dict[str, int] = {}
    for part in _worth(database, force=force):
        count = _Pass(database, part).run()
        if count:
            removed[part.topic.name] = removed.get(part.topic.name, 0) + count
    return removed


def _worth(database: Database, *, force: bool) -> list[Part]:
    """The partitions of which at least half came since the last pass, and those with tombstones that are due, unless
    somebody is at work there."""
    now, boot, boot_us = clock.wall_us(), clock.boot_id(), clock.boot_us()
    found: list[Part] = []
    with database.reading() as connection:
        for topic, age_us, tombstone_us, passing in _topics(connection):
            floors = {} if force or passing else floors_of(connection, topic.id, age_us, now)
            rows = connection.execute(
                "SELECT p.number, p.begin, p.next, coalesce(c.clean, 0), coalesce(c.records, 0), c.tombstone_us FROM "
                "log_partition p LEFT JOIN log_compaction c ON c.part = p.id WHERE p.topic = ? AND (c.boot IS NOT ? "
                "OR c.until_us <= ?) ORDER BY p.number",
                (topic.id, boot, boot_us),
            )
            for number, begin, following, clean, records, tombstone in rows:
                end = min(following, floors.get(number, following))
                dirty = end - max(begin, clean)
                due = tombstone is not None and tombstone + tombstone_us + tombstone_us // SHARE <= now
                if end > begin and (force or due or dirty >= max(1, records)):
                    found.append(Part(topic, number, end, age_us, tombstone_us, force or passing))
    return found


def _topics(connection: Connection) -> list[tuple[Topic, int | None, int, bool]]:
    found = []
    for topic, name, identity, age_us, tombstone_us, passing in connection.execute(
        "SELECT id, name, identity, retention_us, tombstone_us, pass_groups FROM log_topic "
        "WHERE compact = 1 AND form <> 'queue' ORDER BY name"
    ).fetchall():
        rows = connection.execute("SELECT id FROM log_partition WHERE topic = ? ORDER BY number", (topic,)).fetchall()
        parts = tuple(part for (part,) in rows)
        made = Topic(topic, name, identity, 0, parts, uuid.UUID(identity).bytes)
        found.append((made, age_us, tombstone_us, bool(passing)))
    return found


def examine(database: Database, name: str) -> list[Examined]:
    """Of a compacted topic: who holds compaction back, and from where on, once that is half of a partition."""
    now, waiting = clock.wall_us(), list[str]()
    with database.reading() as connection:
        found = [one for one in _topics(connection) if one[0].name == name]
        for topic, age_us, _, passing in found:
            holders = {} if passing else holders_of(connection, topic.id, age_us, now)
            for number, following, clean, records in connection.execute(
                "SELECT p.number, p.next, max(p.begin, coalesce(c.clean, 0)), coalesce(c.records, 0) FROM "
                "log_partition p LEFT JOIN log_compaction c ON c.part = p.id WHERE p.topic = ? ORDER BY p.number",
                (topic.id,),
            ):
                floor, group = holders.get(number, (following, ""))
                if following - max(floor, clean) >= max(1, records):
                    waiting.append(f"group {group!r} needs {name}/{number} from offset {floor} on, of {following}")
    if not found:
        return []
    if not waiting:
        return [Examined(name="compaction", state="ok", told="no group holds it back")]
    remedy = "let the group work; if nobody needs it any more, set retention.pass_groups: true or a retention.age"
    return [Examined(name="compaction", state="note", told=told, remedy=remedy) for told in waiting]


class _Pass:
    """A pass over a partition, in the thread that runs it."""

    def __init__(self, database: Database, part: Part) -> None:
        self._database, self._part, self._row = database, part, part.topic.parts[part.number]
        self._claim = _Claim(database, self._row)
        self._newest: dict[bytes | None, int] = {}
        self._tombstone: int | None = None  # accepted time of the oldest that stays
        self._removed = self._stayed = 0
        self._now = clock.wall_us()
        self._worked = time.monotonic()

    def run(self) -> int:
        """Returns the records removed."""
        start = self._claim.take()
        if start is None:
            return 0
        name = f"{self._part.topic.name}/{self._part.number}"
        try:
            more = True
            while more:
                start, more = self._note(start)
                self._rewrite(start)
                self._claim.record(start, self._stayed, self._tombstone)
        except Damaged as error:
            log.error("%s is not compacted any further: %s", name, error)
        except _Changed as change:
            log.info("%s is compacted later: %s", name, change)
        finally:
            self._claim.release()
        return self._removed

    def _note(self, start: int) -> tuple[int, bool]:
        """Note the newest offset of each key from `start` on, until there are too many; returns how far it came, the
        end of a batch, and whether there is more."""
        self._newest, end = {}, start
        for row, _, batch in self._batches(start):
            if batch.columns.keys is not None:
                self._newest.update(zip(map(_noted, batch.columns.keys), batch.offsets, strict=True))
            end = max(end, row.next)
            if len(self._newest) >= KEYS:
                return end, True
        return end, False

    def _rewrite(self, end: int) -> None:
        """Replace all batches below `end` of which something goes, or that are small."""
        self._tombstone, self._stayed = None, 0
        joined = Joined()
        for row, stored, batch in self._batches(0):
            if row.next > end:
                break
            left, size = self._left(row, batch)
            if not joined.takes(row, len(left.offsets), size, self._span_us):
                self._replace(joined)
                joined = Joined()
            joined.add(row, stored, [left], size)
            self._stayed += len(left.offsets)
            if joined.step_is_full:
                joined = self._replace(joined)
        self._replace(joined)

    @property
    def _span_us(self) -> int | None:
        return None if self._part.age_us is None else self._part.age_us // SHARE

    def _left(self, row: Stored, batch: Unpacked) -> tuple[Unpacked, int]:
        """The records that stay, and their expanded size."""
        keys, values = batch.columns.keys, batch.columns.values
        if keys is None:
            return batch, row.size
        newest = self._newest.get
        kept = [
            place
            for place, (key, offset) in enumerate(zip(keys, batch.offsets, strict=True))
            if key is None or newest(_noted(key), offset) <= offset
        ]
        if values is None or None in values:
            kept = [place for place in kept if self._stays(batch, place)]
        return (batch, row.size) if len(kept) == len(keys) else chosen(batch, kept)

    def _stays(self, batch: Unpacked, place: int) -> bool:
        """Whether a record, the newest of its key, is anything but a tombstone whose time is over."""
        keys, values, time_us = batch.columns.keys, batch.columns.values, batch.times[place]
        if keys is None or keys[place] is None or (values is not None and values[place] is not None):
            return True
        if time_us + self._part.tombstone_us <= self._now:
            return False
        self._tombstone = time_us if self._tombstone is None else min(self._tombstone, time_us)
        return True

    def _replace(self, joined: Joined) -> Joined:
        """Put one batch in the place of these, in one transaction; returns it, to be joined with others. Raises
        _Changed when something is not as it was when this was planned."""
        if not joined.changed:
            return joined
        made, payload = joining.pack(self._part.topic, self._part.number, joined)
        with self._database.writing(durable=False) as connection:
            self._claim.renew(connection)
            self._require_passed(connection, made.next)
            if not joining.are_there(connection, joined.rows):
                raise _Changed("retention removed what it was about to replace")
            joining.replace(connection, self._row, joined, made, payload)
            windows.reach("compaction-uncommitted")
        windows.reach("compaction-unrecorded")
        self._removed += joined.dropped
        again = Joined()
        again.add(made, len(payload), joined.left, made.size)
        return again

    def _require_passed(self, connection: Connection, end: int) -> None:
        """A group that came since may hold it back."""
        if self._part.passing:
            return
        floors = floors_of(connection, self._part.topic.id, self._part.age_us, clock.wall_us())
        if floors.get(self._part.number, end) < end:
            raise _Changed("a group needs what it would remove")

    def _batches(self, start: int) -> Iterator[tuple[Stored, int, Unpacked]]:
        """The batches from `start` on that may be compacted, with rests between them."""
        for found in reading.scan(self._database, self._part.topic, self._part.number, start):
            if found[0].next > self._part.end:
                return
            self._claim.renew_in_time()
            yield found
            self._rest()

    def _rest(self) -> None:
        """Leave the processor to others for as long as it was used."""
        worked = time.monotonic() - self._worked
        if worked > REST_AFTER_S:
            time.sleep(min(worked, REST_MOST_S))
            self._worked = time.monotonic()


class _Claim:
    """One process at a time compacts a partition. The log is kept whole otherwise, see `_Pass._replace`."""

    def __init__(self, database: Database, part: int) -> None:
        self._database, self._part = database, part
        self._holder, self._length_us = str(uuid.uuid4()), round(CLAIM_S * 1e6)
        self._until_us = 0

    def take(self) -> int | None:
        """Where the dirty part begins; none if another process compacts it."""
        boot, now = clock.boot_id(), clock.boot_us()
        with self._database.writing(durable=False) as connection:
            rows = connection.execute(
                "INSERT INTO log_compaction VALUES (?1, 0, 0, NULL, ?2, ?3, ?4) ON CONFLICT (part) DO UPDATE SET "
                "holder = ?2, boot = ?3, until_us = ?4 WHERE boot <> ?3 OR until_us <= ?5 RETURNING clean",
                (self._part, self._holder, boot, now + self._length_us, now),
            ).fetchall()
        self._until_us = now + self._length_us
        return rows[0][0] if rows else None

    def renew(self, connection: Connection) -> None:
        """In a transaction. Raises _Changed when it is another's by now."""
        self._until_us = clock.boot_us() + self._length_us
        connection.execute(
            "UPDATE log_compaction SET until_us = ? WHERE part = ? AND holder = ?",
            (self._until_us, self._part, self._holder),
        )
        if not connection.changes():
            raise _Changed("another process has taken it over")

    def renew_in_time(self) -> None:
        if self._until_us - clock.boot_us() < self._length_us // 2:
            with self._database.writing(durable=False) as connection:
                self.renew(connection)

    def record(self, clean: int, records: int, tombstone_us: int | None) -> None:
        """The pass is done: no key stands twice below `clean`, and so many records are left there."""
        with self._database.writing(durable=False) as connection:
            self.renew(connection)
            connection.execute(
                "UPDATE log_compaction SET clean = ?, records = ?, tombstone_us = ? WHERE part = ?",
                (clean, records, tombstone_us, self._part),
            )

    def release(self) -> None:
        with self._database.writing(durable=False) as connection:
            connection.execute(
                "UPDATE log_compaction SET until_us = 0 WHERE part = ? AND holder = ?", (self._part, self._holder)
            )


class _Changed(Exception):
    """The log is not as it was when the pass was planned."""


def _noted(key: bytes | None) -> bytes | None:
    """What a key is noted by: itself, or a digest that is longer than any key that is noted by itself."""
    if key is None or len(key) <= LONG_KEY:
        return key
    return hashlib.blake2b(key, digest_size=LONG_KEY + 1).digest()
