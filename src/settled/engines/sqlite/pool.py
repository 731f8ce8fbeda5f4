"""The pool of a queue, as SQL: an item for each record that is not settled, free or claimed into a slot.

`log_left` counts the items of each batch, so that a batch goes with its last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from settled import clock
from settled.engine import PartitionInfo, QueueInfo
from settled.engines.sqlite.database import Connection, Database
from settled.record import RECORD_OVERHEAD
from settled.scheduling import USUAL, asked

AFTER_BOOT = 1_000_000  # claim numbers left out after a reboot: a power cut may have taken back that they were given
_NEXT_DUE = "SELECT min(due_us) FROM log_item WHERE topic = ? AND slot IS NULL AND due_us > 0"

Row = tuple[Any, ...]


def items_of(rows: Sequence[Row]) -> list[Row]:
    """What the pool must know of messages, given as tuples of their fields: place in the batch, a hash of the key,
    tenant, priority, due time, size."""
    items: list[Row] = []
    for place, (_, key, value, headers, *_) in enumerate(rows):
        size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        hashed = None if key is None else crc32(key)
        if headers:
            ask = asked(headers)
            items.append((place, hashed, ask.tenant, ask.priority, ask.due_us, size + 100 * len(headers)))
        else:
            items.append((place, hashed, b"", USUAL, 0, size))
    return items


def add(connection: Connection, batches: Sequence[tuple[int, int, Sequence[Row]]]) -> None:
    """Put the records of new batches into the pool: topic, row and items of each."""
    connection.executemany("INSERT INTO log_left VALUES (?, ?)", [(batch, len(items)) for _, batch, items in batches])
    connection.executemany(
        "INSERT INTO log_item (topic, batch, place, key, tenant, priority, due_us, size)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [(topic, batch, *item) for topic, batch, items in batches for item in items],
    )


def waiting(connection: Connection, topic: int) -> bool:
    """Whether something is ready to be claimed."""
    return bool(
        connection.execute(
            "SELECT EXISTS (SELECT 1 FROM log_item WHERE topic = ?1 AND slot IS NULL AND due_us = 0) OR"
            " EXISTS (SELECT 1 FROM log_item WHERE topic = ?1 AND slot IS NULL AND due_us > 0 AND due_us <= ?2)",
            (topic, clock.wall_us()),
        ).fetchall()[0][0]
    )


def next_due_us(database: Database, topics: Iterable[int]) -> int | None:
    """When the first scheduled record is due, on the wall clock; none: nothing is scheduled."""
    with database.reading() as connection:
        dues = [connection.execute(_NEXT_DUE, (topic,)).fetchall()[0][0] for topic in topics]
    return min((due for due in dues if due is not None), default=None)


def bounds(connection: Connection, topic: int, slot: int) -> tuple[int, int]:
    """The first claim of a slot that is not known to be settled, and the next number."""
    rows = connection.execute("SELECT first, next FROM log_slot WHERE topic = ? AND slot = ?", (topic, slot)).fetchall()
    return (rows[0][0], rows[0][1]) if rows else (0, 0)


def remove(connection: Connection, topic: int, slot: int, frontier: int, *, most: int) -> int:
    """Remove up to `most` claims below the frontier; returns the number below which none is left."""
    rows = connection.execute(
        "SELECT claim FROM log_item WHERE topic = ? AND slot = ? AND claim < ? ORDER BY claim LIMIT 1 OFFSET ?",
        (topic, slot, frontier, most),
    ).fetchall()
    below: int = rows[0][0] if rows else frontier
    mine = (topic, slot, below)
    counts = connection.execute(
        "SELECT batch, count(*) FROM log_item WHERE topic = ? AND slot = ? AND claim < ? GROUP BY batch", mine
    ).fetchall()
    connection.execute("DELETE FROM log_item WHERE topic = ? AND slot = ? AND claim < ?", mine)
    connection.execute("UPDATE log_slot SET first = max(first, ?) WHERE topic = ? AND slot = ?", (below, topic, slot))
    for batch, count in counts:
        left = connection.execute(
            "UPDATE log_left SET records = records - ? WHERE batch = ? RETURNING records", (count, batch)
        ).fetchall()
        if left and left[0][0] <= 0:
            _drop(connection, batch)
    return below


def _drop(connection: Connection, batch: int) -> None:
    part, count, size, held = connection.execute(
        "DELETE FROM log_batch WHERE seq = ? RETURNING part, count, bytes, length(payload)", (batch,)
    ).fetchall()[0]
    connection.execute("DELETE FROM log_left WHERE batch = ?", (batch,))
    connection.execute(
        "UPDATE log_partition SET begin = coalesce((SELECT min(base) FROM log_batch WHERE part = ?1), next),"
        " records = records - ?2, bytes = bytes - ?3, stored = stored - ?4 WHERE id = ?1",
        (part, count, size, held),
    )


def describe(connection: Connection, topic: int, partitions: int) -> tuple[QueueInfo, list[PartitionInfo]]:
    """The pool, and the slots as partitions."""
    now = clock.wall_us()
    ready, size, oldest = connection.execute(
        "SELECT count(*), coalesce(sum(i.size), 0), (SELECT min(b.accepted_us) FROM log_batch b WHERE b.seq ="
        " (SELECT min(o.batch) FROM log_item o WHERE o.topic = ?1 AND o.slot IS NULL AND o.due_us <= ?2))"
        " FROM log_item i WHERE i.topic = ?1 AND i.slot IS NULL AND i.due_us <= ?2",
        (topic, now),
    ).fetchall()[0]
    scheduled, later, due = connection.execute(
        "SELECT count(*), coalesce(sum(size), 0), min(due_us) FROM log_item WHERE topic = ?1 AND slot IS NULL"
        " AND due_us > ?2",
        (topic, now),
    ).fetchall()[0]
    claimed = {
        slot: (count, held, accepted_us)
        for slot, count, held, accepted_us in connection.execute(
            "SELECT i.slot, count(*), sum(i.size), min(b.accepted_us) FROM log_item i"
            " JOIN log_batch b ON b.seq = i.batch WHERE i.topic = ? AND i.slot IS NOT NULL GROUP BY i.slot",
            (topic,),
        )
    }
    slots: list[PartitionInfo] = []
    for number in range(partitions):
        first, following = bounds(connection, topic, number)
        count, held, accepted_us = claimed.get(number, (0, 0, None))
        slots.append(
            PartitionInfo(
                partition=number,
                begin=first,
                end=following,
                records=count,
                bytes=held,
                stored_bytes=None,
                oldest_us=accepted_us,
            )
        )
    info = QueueInfo(
        ready=ready,
        scheduled=scheduled,
        claimed=sum(slot.records for slot in slots),
        bytes=size + later,
        oldest_us=oldest,
        next_due_us=due,
    )
    return info, slots


def after_boot(connection: Connection) -> None:
    """No claim number is given twice, although claims are not synced."""
    connection.execute("UPDATE log_slot SET next = next + ?", (AFTER_BOOT,))
