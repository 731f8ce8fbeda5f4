"""Reading the log: batches from a position on, checked; positions by time; whether a position's past is what it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from settled.engine import Fetched, Stopped
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.encoding import Stored, Unpacked, damaged, decode, follows, unpack
from settled.engines.sqlite.history import lost_between
from settled.engines.sqlite.topics import Topic
from settled.errors import ContractError, Damaged, HistoryLost, SettledError
from settled.record import Record

_LOOK_AHEAD = 64  # batches considered of each partition in one fetch
_SCAN_BYTES = 1_000_000  # expanded; read at once by `scan`
_ROW = "seq, base, count, bytes, accepted_us, checksum, chain, compression, kept, first_us, link"
_BATCHES = (
    f"SELECT {_ROW} FROM log_batch WHERE part = ?1 AND "
    "base >= coalesce((SELECT base FROM log_batch WHERE part = ?1 AND base <= ?2 ORDER BY base DESC LIMIT 1), ?2) "
    "ORDER BY base LIMIT ?3"
)


class Cursor:
    """Where a reader stands in one partition. `chain` is the fingerprint up to `position`, empty while unknown."""

    __slots__ = ("chain", "gap_from", "number", "part", "position", "topic", "typical")

    def __init__(self, topic: Topic, number: int, position: int, chain: bytes = b"") -> None:
        self.topic, self.number, self.position, self.chain = topic, number, position, chain
        self.part = topic.parts[number]
        self.gap_from: int | None = None
        self.typical = 1  # records in the batch that was read last: how far a fetch looks ahead


class Head(msgspec.Struct, frozen=True):
    begin: int
    next: int
    chain: bytes


def fetch(database: Database, cursors: Sequence[Cursor], *, records: int, size: int) -> list[Fetched | Stopped]:
    """The next batches of several partitions, one in turn from each, and the cursors moved behind them.

    The first batch comes whatever its size, the others while they fit. A damaged batch stops its partition: what was
    good before it is served, nothing after it.
    """
    ready: list[tuple[Cursor, Head, list[Stored]]] = []
    out: list[Fetched | Stopped] = []
    with database.reading() as connection:
        heads = _heads(connection, [cursor.part for cursor in cursors])
        for cursor in cursors:
            head = heads[cursor.part]
            if cursor.position >= head.next:
                continue
            try:
                look = 2 + records // (len(cursors) * cursor.typical)
                ready.append((cursor, head, _upcoming(connection, cursor, head, min(look, _LOOK_AHEAD))))
            except SettledError as error:
                out.append(Stopped(topic=cursor.topic.name, partition=cursor.number, error=error))
        chosen = choose([batches for _, _, batches in ready], records, size)
        payloads = _payloads(connection, chosen)
    for (cursor, head, _), batches, raw in zip(ready, chosen, payloads, strict=True):
        out += _serve(cursor, head, batches, raw)
    return out


def choose(queues: Sequence[Sequence[Stored]], records: int, size: int) -> list[list[Stored]]:
    """Which batches fit, taking one from each queue in turn, in order within a queue. The first always comes."""
    chosen: list[list[Stored]] = [[] for _ in queues]
    waiting = [index for index, queue in enumerate(queues) if queue]
    first = True
    while waiting:
        going_on = []
        for index in waiting:
            batch = queues[index][len(chosen[index])]
            if not first and (batch.held > records or batch.size > size):
                continue
            first = False
            chosen[index].append(batch)
            records -= batch.held
            size -= batch.size
            if len(chosen[index]) < len(queues[index]):
                going_on.append(index)
        waiting = going_on
    return chosen


def read(database: Database, topic: Topic, partition: int, offset: int, records: int) -> list[Record]:
    """Up to `records` records from `offset` on. Raises Damaged where there is nothing good before the damage."""
    cursor = Cursor(topic, partition, offset)
    found: list[Record] = []
    while len(found) < records:
        deliveries = fetch(database, [cursor], records=records - len(found), size=64 * 1024 * 1024)
        for delivery in deliveries:
            if isinstance(delivery, Stopped):
                if found:
                    return found[:records]
                raise delivery.error
            found += delivery.records
        if not deliveries:
            break
    return found[:records]


def scan(database: Database, topic: Topic, partition: int, offset: int) -> Iterator[tuple[Stored, int, Unpacked]]:
    """All batches from `offset` on, checked, each with the bytes that it takes; few are read at once. What comes before
    the one that is worked on may be replaced meanwhile. Raises Damaged."""
    cursor = Cursor(topic, partition, offset)
    while True:
        with database.reading() as connection:
            head = _heads(connection, [cursor.part])[cursor.part]
            if cursor.position >= head.next:
                return
            rows = _upcoming(connection, cursor, head, _LOOK_AHEAD)
            [chosen] = choose([rows], _LOOK_AHEAD * head.next, _SCAN_BYTES)
            [payloads] = _payloads(connection, [chosen])
        for batch, payload in zip(chosen, payloads, strict=True):
            if batch.base > cursor.position:
                break
            _require_follows(cursor, batch)
            yield batch, len(payload), unpack(topic.name, topic.raw_identity, partition, batch, payload)
            cursor.position, cursor.chain = batch.next, batch.chain


def offset_at(database: Database, topic: Topic, partition: int, us: int) -> int:
    """The first offset accepted at or after `us`. Accepted times never go back, so batches can be halved."""
    part = topic.parts[partition]
    with database.reading() as connection:
        head = _heads(connection, [part])[part]
        low, high = head.begin, head.next
        while low < high:
            middle = (low + high) // 2
            rows = connection.execute(
                "SELECT base, count, accepted_us FROM log_batch WHERE part = ? AND base <= ? "
                "ORDER BY base DESC LIMIT 1",
                (part, middle),
            ).fetchall()
            if rows and rows[0][2] >= us:
                high = min(high, rows[0][0])
            else:
                low = max(middle + 1, rows[0][0] + rows[0][1] if rows else 0)
        low = min(low, head.next)
        while (left := _compacted(connection, topic, partition, low)) is not None:
            found = next((at for at, time in zip(left[1].offsets, left[1].times, strict=True) if time >= us), None)
            if found is not None:
                return found
            low = left[0].next  # the last of it was accepted later, and is not there any more
        return low


def held(database: Database, topic: Topic, partition: int, first: int, following: int) -> int:
    """How many records are held at offsets from `first` to `following` - 1. Raises Damaged."""
    part = topic.parts[partition]
    with database.reading() as connection:
        [(count,)] = connection.execute(
            "SELECT coalesce(sum(coalesce(kept, count)), 0) FROM log_batch WHERE part = ?1 AND base >= ?2 AND "
            "base < ?3 AND base + count <= ?3",
            (part, first, following),
        ).fetchall()
        for batch in {_around(connection, part, first), _around(connection, part, following)} - {None}:
            assert batch is not None
            if batch.kept is None:
                count += min(batch.next, following) - max(batch.base, first)
            else:
                there = _unpack(connection, topic, partition, batch).offsets
                count += sum(first <= offset < following for offset in there)
    return int(count)


def _around(connection: Connection, part: int, offset: int) -> Stored | None:
    """The batch that the offset cuts in two."""
    rows = connection.execute(
        f"SELECT {_ROW} FROM log_batch WHERE part = ? AND base < ? ORDER BY base DESC LIMIT 1", (part, offset)
    ).fetchall()
    batch = Stored(*rows[0]) if rows else None
    return batch if batch is not None and batch.next > offset else None


def _compacted(connection: Connection, topic: Topic, partition: int, base: int) -> tuple[Stored, Unpacked] | None:
    """The batch that begins there, if it is a compacted one."""
    rows = connection.execute(
        f"SELECT {_ROW} FROM log_batch WHERE part = ? AND base = ? AND kept IS NOT NULL", (topic.parts[partition], base)
    ).fetchall()
    if not rows:
        return None
    batch = Stored(*rows[0])
    return batch, _unpack(connection, topic, partition, batch)


def _unpack(connection: Connection, topic: Topic, partition: int, batch: Stored) -> Unpacked:
    [(payload,)] = connection.execute("SELECT payload FROM log_batch WHERE seq = ?", (batch.seq,)).fetchall()
    return unpack(topic.name, topic.raw_identity, partition, batch, payload)


def check_start(database: Database, cursor: Cursor, witness: tuple[int, bytes] | None) -> None:
    """Raises HistoryLost when the log ends before the cursor, or its past is not the one that the witness saw."""
    name = f"{cursor.topic.name}/{cursor.number}"
    remedy = "the log went back or is another one: put the newest copy back, or accept the loss (accept_loss)"
    with database.reading() as connection:
        head = _heads(connection, [cursor.part])[cursor.part]
        if cursor.position > head.next:
            raise HistoryLost(f"{name}: the log ends at {head.next}, before offset {cursor.position}", hint=remedy)
        if witness is None or not witness[1]:
            return
        offset, fingerprint = witness
        found = _fingerprint(connection, cursor.part, head, offset, fingerprint)
        if found is not None and found != fingerprint:
            raise HistoryLost(f"{name}: the log's content up to offset {offset} is not what it was", hint=remedy)
        if offset == cursor.position and found is not None:
            cursor.chain = fingerprint


def _fingerprint(connection: Connection, part: int, head: Head, offset: int, claimed: bytes) -> bytes | None:
    """The fingerprint at `offset`; none where it cannot be told any more (removed, or lost and accepted)."""
    if offset == head.next:
        return head.chain
    rows = connection.execute(_BATCHES, (part, offset, 2)).fetchall()
    batch = next((batch for batch in (Stored(*row) for row in rows) if batch.next > offset), None)
    if batch is not None and batch.base < offset:
        if batch.kept is not None:
            return None  # it may have been a boundary once
        return b""  # inside a batch: whoever saw this offset as a boundary saw another log
    if batch is not None and batch.base == offset:  # a link that fits only behind the right fingerprint
        if follows(claimed, batch):
            return claimed
    elif offset < head.begin or lost_between(connection, part, offset, batch.base if batch else head.next):
        return None
    return _before(connection, part, offset)


def _before(connection: Connection, part: int, offset: int) -> bytes | None:
    """The fingerprint that ends exactly at `offset`; none behind a loss, whose fingerprint is not kept."""
    rows = connection.execute(
        "SELECT base + count, chain FROM log_batch WHERE part = ? AND base < ? ORDER BY base DESC LIMIT 1",
        (part, offset),
    ).fetchall()
    if rows and rows[0][0] == offset:
        return bytes(rows[0][1])
    return None if lost_between(connection, part, offset - 1, offset) else b""


def _heads(connection: Connection, parts: Sequence[int]) -> dict[int, Head]:
    marks = ",".join("?" * len(parts))
    rows = connection.execute(f"SELECT id, begin, next, chain FROM log_partition WHERE id IN ({marks})", tuple(parts))
    return {part: Head(begin, following, chain) for part, begin, following, chain in rows}


def _upcoming(connection: Connection, cursor: Cursor, head: Head, most: int) -> list[Stored]:
    """Up to `most` batches from the cursor on; the cursor is moved over offsets that are gone for a known reason."""
    rows = connection.execute(_BATCHES, (cursor.part, cursor.position, most)).fetchall()
    batches = [Stored(*row) for row in rows]
    while batches and batches[0].next <= cursor.position:
        batches.pop(0)
    first = batches[0].base if batches else head.next
    if first > cursor.position:
        known = max(cursor.position, min(head.begin, first))
        if not lost_between(connection, cursor.part, known, first):
            raise damaged(cursor.topic.name, cursor.number, known, first, "are missing from the log")
        if cursor.gap_from is None:
            cursor.gap_from = cursor.position
        cursor.position, cursor.chain = first, b""
    return batches


def _payloads(connection: Connection, chosen: Sequence[Sequence[Stored]]) -> list[list[bytes]]:
    """The payloads of the chosen batches, by one statement."""
    wanted = [batch.seq for batches in chosen for batch in batches]
    size = 1 << max(0, len(wanted) - 1).bit_length()  # few sizes, so that the statements stay prepared
    marks = ",".join("?" * size)
    rows = connection.execute(
        f"SELECT seq, payload FROM log_batch WHERE seq IN ({marks})", (*wanted, *[None] * (size - len(wanted)))
    )
    found: dict[int, bytes] = dict(rows)
    return [[found[batch.seq] for batch in batches] for batches in chosen]


def _serve(cursor: Cursor, head: Head, batches: list[Stored], payloads: list[bytes]) -> list[Fetched | Stopped]:
    name, number = cursor.topic.name, cursor.number
    records: list[Record] = []
    size, error, stood = 0, None, cursor.position
    for batch, payload in zip(batches, payloads, strict=True):
        if batch.base > cursor.position:
            break  # offsets are missing here: the next fetch finds out whether they may be
        try:
            found = _verified(cursor, batch, payload)
        except Damaged as damage:
            error = damage
            break
        inside = batch.base < cursor.position
        if inside:
            found = [record for record in found if record.offset >= cursor.position]
        records += found
        size += sum(record.size for record in found) if inside else batch.size
        cursor.position, cursor.chain, cursor.typical = batch.next, batch.chain, max(1, batch.held)
    out: list[Fetched | Stopped] = []
    if records or cursor.position > stood or (cursor.gap_from is not None and error is None):
        if cursor.position == head.next:
            cursor.chain = head.chain
        fetched = Fetched(
            topic=name,
            partition=number,
            records=records,
            next_offset=cursor.position,
            size=size,
            witness=cursor.chain,
            gap_from=cursor.gap_from,
        )
        cursor.gap_from = None
        out.append(fetched)
    if error is not None:
        out.append(Stopped(topic=name, partition=number, error=error))
    return out


def _verified(cursor: Cursor, batch: Stored, payload: bytes) -> list[Record]:
    _require_follows(cursor, batch)
    return decode(cursor.topic.name, cursor.topic.raw_identity, cursor.number, batch, payload)


def _require_follows(cursor: Cursor, batch: Stored) -> None:
    within = batch.kept is not None and batch.base < cursor.position  # compaction joined it with those before
    if cursor.chain and not within and not (batch.base == cursor.position and follows(cursor.chain, batch)):
        raise damaged(cursor.topic.name, cursor.number, batch.base, batch.next, "do not follow those before them")


def require_partition(topic: Topic, partition: int) -> None:
    if not 0 <= partition < len(topic.parts):
        raise ContractError(
            f"topic {topic.name!r} has no partition {partition}",
            field="partition",
            value=partition,
            hint=f"its partitions are 0 to {len(topic.parts) - 1}",
        )
