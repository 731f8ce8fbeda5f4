"""Compaction by key: of each key the newest record stays at least; older ones go once all active groups are past them,
or at once where the topic lets compaction pass groups. Records without a key stay, whatever comes after them.

A partition has a clean head, in which no key stands twice, and a dirty tail. A pass notes the newest offset of each key
of the dirty part, as many keys as fit (KEYS), then goes through the log from its beginning and writes batches that hold
older ones anew, without them, small neighbours joined. It reads and packs outside of transactions; each transaction
only replaces a few batches that are still as they were read. A process that dies leaves batches that are done and
others that are not, and the next pass begins again at the same place.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Iterator, Sequence

import msgspec

from settled import clock, windows
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.encoding import Columns, Stored, Unpacked, checksum, encode_left, link_of
from settled.engines.sqlite.reading import batches
from settled.engines.sqlite.retention import floors_of
from settled.engines.sqlite.topics import Topic
from settled.errors import Damaged

log = logging.getLogger("settled.engines.sqlite")

KEYS = 100_000  # keys that one pass notes at most
LONG_KEY = 32  # a longer key is noted by its digest
STEP, STEP_BYTES = 32, 2_000_000  # batches and stored bytes that one transaction replaces at most
FULL, FULL_BYTES = 400, 600_000  # records and expanded bytes of a batch that is not joined with others
MOST_OFFSETS = 2**31  # that one batch may take
CLAIM_S = 10.0  # one process at a time compacts a partition; a claim that is not renewed for so long is over
REST = 1.0  # a pass rests so long for each second that it works
SHARE = 8  # a tombstone that is due waits for others for this part of its time; batches joined span this part of the age


class Part(msgspec.Struct, frozen=True):
    """A partition that is worth a pass. `end`: where the groups are that hold it back; `span_us`: accepted times that
    one batch may span, none: any."""

    topic: Topic
    number: int
    end: int
    age_us: int | None
    tombstone_us: int
    passing: bool

    @property
    def row(self) -> int:
        return self.topic.parts[self.number]

    @property
    def span_us(self) -> int | None:
        return None if self.age_us is None else self.age_us // SHARE


def compact(database: Database, *, force: bool = False) -> dict[str, int]:
    """Compact what is worth it, all of it with `force`; returns records removed per topic. A batch that is damaged ends
    the pass of its partition."""
    removed: dict[str, int] = {}
    for part in _worth(database, force):
        name = part.topic.name
        count = _Pass(database, part).run()
        if count:
            removed[name] = removed.get(name, 0) + count
    return removed


def _worth(database: Database, force: bool) -> list[Part]:
    """The partitions of which at least half came since the last pass, and those with tombstones that are due. Nobody
    else is at work there."""
    now, boot, boot_us = clock.wall_us(), clock.boot_id(), clock.boot_us()
    found: list[Part] = []
    with database.reading() as connection:
        for topic, age_us, tombstone_us, passing in _topics(connection, force):
            floors = {} if passing else floors_of(connection, topic.id, age_us, now)
            for number, begin, following, records, clean, tombstone, claimed, until_us in connection.execute(
                "SELECT p.number, p.begin, p.next, p.records, coalesce(c.clean, 0), c.tombstone_us, c.boot, c.until_us "
                "FROM log_partition p LEFT JOIN log_compaction c ON c.part = p.id WHERE p.topic = ? ORDER BY p.number",
                (topic.id,),
            ):
                end = min(following, floors.get(number, following))
                start = max(begin, clean)
                dirty, done = end - start, records - (following - start)
                due = tombstone is not None and tombstone + tombstone_us + tombstone_us // SHARE <= now
                if claimed == boot and until_us > boot_us:
                    continue
                if end > begin and (force or due or (dirty > 0 and dirty >= done)):
                    found.append(Part(topic, number, end, age_us, tombstone_us, passing))
    return found


def _topics(connection: Connection, force: bool) -> list[tuple[Topic, int | None, int, bool]]:
    found = []
    for topic, name, identity, age_us, tombstone_us, passing in connection.execute(
        "SELECT id, name, identity, retention_us, tombstone_us, pass_groups FROM log_topic "
        "WHERE compact = 1 AND form <> 'queue' ORDER BY name"
    ).fetchall():
        rows = connection.execute("SELECT id FROM log_partition WHERE topic = ? ORDER BY number", (topic,)).fetchall()
        parts = tuple(part for (part,) in rows)
        made = Topic(topic, name, identity, 0, parts, uuid.UUID(identity).bytes)
        found.append((made, age_us, tombstone_us, force or bool(passing)))
    return found


class _Source(msgspec.Struct, frozen=True):
    """A batch as it was read, and the bytes that it takes."""

    row: Stored
    stored: int


class _Joined:
    """What is left of batches that follow one another, to become one."""

    def __init__(self) -> None:
        self.sources: list[_Source] = []
        self.left: list[Unpacked] = []
        self.records = self.size = self.stored = self.dropped = 0
        self.compression = 0

    def add(self, source: _Source, left: Unpacked, size: int) -> None:
        count = len(left.offsets)
        self.sources.append(source)
        if count:
            self.left.append(left)
        self.records, self.size, self.stored = self.records + count, self.size + size, self.stored + source.stored
        self.dropped += source.row.held - count
        self.compression |= source.row.compression

    def takes(self, source: _Source, records: int, size: int, span_us: int | None) -> bool:
        """Whether the batch may be joined with these: it follows them, and the whole stays within bounds."""
        first, last, row = self.sources[0].row, self.sources[-1].row, source.row
        since = first.accepted_us if first.first_us is None else first.first_us
        return (
            row.base == last.next
            and self.records + records <= FULL
            and self.size + size <= FULL_BYTES
            and row.next - first.base < MOST_OFFSETS
            and (span_us is None or row.accepted_us - since <= span_us)
        )

    @property
    def step_is_full(self) -> bool:
        return len(self.sources) >= STEP or self.stored >= STEP_BYTES

    @property
    def changed(self) -> bool:
        return self.dropped > 0 or len(self.sources) > 1


class _Pass:
    """One pass over a partition, in the thread that runs it."""

    def __init__(self, database: Database, part: Part) -> None:
        self._database, self._part = database, part
        self._holder = str(uuid.uuid4())
        self._newest: dict[bytes, int] = {}
        self._removed = 0
        self._now = clock.wall_us()
        self._tombstone: int | None = None  # accepted time of the oldest that stays
        self._renew_us = 0
        self._worked = time.monotonic()

    def run(self) -> int:
        """Records removed."""
        name = f"{self._part.topic.name}/{self._part.number}"
        start = self._claim()
        try:
            while start is not None:
                end = self._note(start)
                self._rewrite(end)
                self._record(end)
                start = end if start < end < self._part.end else None
        except Damaged as error:
            log.error("%s is not compacted: %s", name, error)
        except _Changed as change:
            log.info("%s is compacted later: %s", name, change)
        finally:
            self._release()
        return self._removed

    # The claim

    def _claim(self) -> int | None:
        """Where the dirty part begins; none if another process compacts it."""
        boot, now = clock.boot_id(), clock.boot_us()
        with self._database.writing(durable=False) as connection:
            rows = connection.execute(
                "INSERT INTO log_compaction VALUES (?1, 0, NULL, ?2, ?3, ?4) ON CONFLICT (part) DO UPDATE SET "
                "holder = ?2, boot = ?3, until_us = ?4 WHERE boot <> ?3 OR until_us <= ?5 RETURNING clean",
                (self._part.row, self._holder, boot, now + round(CLAIM_S * 1e6), now),
            ).fetchall()
        self._renew_us = now + round(CLAIM_S * 5e5)
        return rows[0][0] if rows else None

    def _hold(self, connection: Connection) -> None:
        """Renew the claim, in a transaction. Raises _Changed when it is another's by now."""
        now = clock.boot_us()
        connection.execute(
            "UPDATE log_compaction SET until_us = ? WHERE part = ? AND holder = ?",
            (now + round(CLAIM_S * 1e6), self._part.row, self._holder),
        )
        if not connection.changes():
            raise _Changed("another process has taken it over")
        self._renew_us = now + round(CLAIM_S * 5e5)

    def _release(self) -> None:
        with self._database.writing(durable=False) as connection:
            connection.execute(
                "UPDATE log_compaction SET until_us = 0 WHERE part = ? AND holder = ?", (self._part.row, self._holder)
            )

    def _record(self, end: int) -> None:
        with self._database.writing(durable=False) as connection:
            self._hold(connection)
            connection.execute(
                "UPDATE log_compaction SET clean = ?, tombstone_us = ? WHERE part = ?",
                (end, self._tombstone, self._part.row),
            )

    # Noting

    def _note(self, start: int) -> int:
        """Note the newest offset of each key from `start` on, until there are too many keys; returns how far it came,
        the end of a batch."""
        self._newest = {}
        end = start
        for source, batch in self._batches(start):
            if batch.columns.keys is not None:
                self._newest.update(zip(map(_noted, batch.columns.keys), batch.offsets, strict=True))
            end = max(end, source.row.next)
            if len(self._newest) >= KEYS:
                break
        self._newest.pop(_KEYLESS, None)
        return end

    def _batches(self, start: int) -> Iterator[tuple[_Source, Unpacked]]:
        """The batches from `start` up to where the groups are, whole ones, checked; with rests between them."""
        for row, stored, batch in batches(self._database, self._part.topic, self._part.number, start):
            if row.next > self._part.end:
                return
            if clock.boot_us() > self._renew_us:
                with self._database.writing(durable=False) as connection:
                    self._hold(connection)
            yield _Source(row, stored), batch
            self._rest()

    def _rest(self) -> None:
        """Leave the processor to others for as long as it was used."""
        worked = time.monotonic() - self._worked
        if worked > 0.005:
            time.sleep(min(worked * REST, 0.1))
            self._worked = time.monotonic()

    # Rewriting

    def _rewrite(self, end: int) -> None:
        self._tombstone = None
        joined = _Joined()
        for source, batch in self._batches(0):
            if source.row.next > end:
                break
            left, size = self._left(source.row, batch)
            records = len(left.offsets)
            if joined.sources and not joined.takes(source, records, size, self._part.span_us):
                self._replace(joined)
                joined = _Joined()
            joined.add(source, left, size)
            if joined.step_is_full:
                joined = self._replace(joined)
        if joined.sources:
            self._replace(joined)

    def _left(self, row: Stored, batch: Unpacked) -> tuple[Unpacked, int]:
        """The records that stay, and their expanded size."""
        columns, newest = batch.columns, self._newest
        count = len(batch.offsets)
        if columns.keys is None or not count:
            return batch, row.size
        kept = [
            place
            for place, key, offset in zip(range(count), columns.keys, batch.offsets, strict=True)
            if key is None or newest.get(_noted(key), offset) <= offset
        ]
        if columns.values is None or columns.values.count(None):
            kept = [place for place in kept if self._stays(batch, place)]
        if len(kept) == count:
            return batch, row.size
        left = _chosen(batch, kept)
        return left, encode_left(row.base, row.accepted_us, [left], 0).size

    def _stays(self, batch: Unpacked, place: int) -> bool:
        """Whether a record, the newest of its key, is no tombstone whose time is over."""
        keys, values, time_us = batch.columns.keys, batch.columns.values, batch.times[place]
        if keys is None or keys[place] is None or (values is not None and values[place] is not None):
            return True
        if time_us + self._part.tombstone_us <= self._now:
            return False
        self._tombstone = time_us if self._tombstone is None else min(self._tombstone, time_us)
        return True

    def _replace(self, joined: _Joined) -> _Joined:
        """Put one batch in the place of these, in one transaction; returns that one, ready to be joined with others.
        Raises _Changed when something is not as it was when this was planned."""
        if not joined.changed:
            return joined
        rows = [source.row for source in joined.sources]
        first, last = rows[0], rows[-1]
        since = joined.left[0].times[0] if joined.left else last.accepted_us
        encoded = encode_left(first.base, since, joined.left, joined.compression)
        made = Stored(
            first.seq,
            first.base,
            last.next - first.base,
            encoded.size,
            last.accepted_us,
            0,
            last.chain,
            encoded.compression,
            encoded.count,
            since,
            link_of(first),
        )
        topic, number = self._part.topic, self._part.number
        made = msgspec.structs.replace(made, checksum=checksum(topic.raw_identity, number, made, encoded.crc))
        with self._database.writing(durable=False) as connection:
            self._hold(connection)
            self._require_passed(connection, last.next)
            _require_same(connection, rows)
            _write(connection, self._part.row, made, encoded.payload, joined)
            windows.reach("compaction-uncommitted")
        windows.reach("compaction-unrecorded")
        self._removed += joined.dropped
        again = _Joined()
        left = [Unpacked([], [], EMPTY)] if not joined.left else joined.left
        again.add(_Source(made, len(encoded.payload)), _all_of(left), encoded.size)
        return again

    def _require_passed(self, connection: Connection, end: int) -> None:
        """A group that came since may hold it back."""
        if self._part.passing:
            return
        floors = floors_of(connection, self._part.topic.id, self._part.age_us, clock.wall_us())
        if floors.get(self._part.number, end) < end:
            raise _Changed("a group needs what it would remove")
