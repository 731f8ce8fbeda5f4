"""What a queue holds, as SQL: runs of records that are ready, scheduled for later, or claimed into a slot.

A run is some records of a batch that follow one another, so that the usual step costs the same however many they are.
`log_left` counts the records of each batch that are not settled: the batch goes with its last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from settled import clock
from settled.engine import PartitionInfo, QueueInfo
from settled.engines.sqlite.database import Connection, Database
from settled.record import RECORD_OVERHEAD
from settled.scheduling import HIGHEST, NOTHING, asked

AFTER_BOOT = 1_000_000  # claim numbers left out after a reboot: a power cut may have taken back that they were given
PROMOTED = 5000  # scheduled runs that become ready at once: more than a claim takes, so that those of a batch gather

_READY = "INSERT INTO log_ready (topic, tenant, urgency, batch, place, count, size) "
_NOW_DUE = (
    "SELECT due_us, batch, place, topic, tenant, urgency, batch, place, count, size FROM log_later"
    " WHERE topic = ? AND due_us <= ? ORDER BY due_us, batch, place LIMIT ?"
)
_WAITING = (
    "SELECT EXISTS (SELECT 1 FROM log_ready WHERE topic = ?1)"
    " OR EXISTS (SELECT 1 FROM log_later WHERE topic = ?1 AND due_us <= ?2)"
)

Row = tuple[Any, ...]


def runs_of(rows: Sequence[Row]) -> list[Row]:
    """What the pool must know of messages, given as tuples of their fields: runs of those that ask for the same, each
    as place in the batch, count, size, tenant, urgency and due time."""
    runs: list[Row] = []
    first = size = 0
    before = NOTHING
    for place, (_, key, value, headers, *_) in enumerate(rows):
        ask = asked(headers) if headers else NOTHING
        if ask != before and place:
            runs.append((first, place - first, size, before.tenant, HIGHEST - before.priority, before.due_us))
            first, size = place, 0
        before = ask
        size += RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
        for name, held in headers:
            size += 64 + len(name) + len(held or b"")
    runs.append((first, len(rows) - first, size, before.tenant, HIGHEST - before.priority, before.due_us))
    return runs


def add(connection: Connection, batches: Sequence[tuple[int, int, Sequence[Row]]]) -> None:
    """Put the records of new batches into the pool: topic, row and runs of each."""
    now = clock.wall_us()
    left: list[Row] = []
    ready: list[Row] = []
    later: list[Row] = []
    for topic, batch, runs in batches:
        left.append((batch, sum(run[1] for run in runs)))
        for place, count, size, tenant, urgency, due_us in runs:
            if due_us > now:
                later.append((topic, due_us, batch, place, count, size, tenant, urgency))
            else:
                ready.append((topic, tenant, urgency, batch, place, count, size))
    connection.executemany("INSERT INTO log_left VALUES (?, ?)", left)
    put_ready(connection, ready)
    connection.executemany(
        "INSERT INTO log_later (topic, due_us, batch, place, count, size, tenant, urgency)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        later,
    )


def put_ready(connection: Connection, runs: Sequence[Row]) -> None:
    """topic, tenant, urgency, batch, place, count and size of each."""
    connection.executemany(f"{_READY}VALUES (?, ?, ?, ?, ?, ?, ?)", runs)


def waiting(connection: Connection, topic: int) -> bool:
    """Whether something could be claimed."""
    return bool(connection.execute(_WAITING, (topic, clock.wall_us())).fetchall()[0][0])


def promote(connection: Connection, topic: int) -> None:
    """What was scheduled becomes ready, if its time has come."""
    due = connection.execute(_NOW_DUE, (topic, clock.wall_us(), PROMOTED)).fetchall()
    if due:
        put_ready(connection, [row[3:] for row in due])
        connection.execute(
            "DELETE FROM log_later WHERE topic = ? AND (due_us, batch, place) <= (?, ?, ?)", (topic, *due[-1][:3])
        )


def next_due_us(database: Database, topics: Iterable[int]) -> int | None:
    """When the first scheduled record is due, on the wall clock; none: nothing is scheduled."""
    with database.reading() as connection:
        dues = [
            connection.execute("SELECT min(due_us) FROM log_later WHERE topic = ?", (topic,)).fetchall()[0][0]
            for topic in topics
        ]
    return min((due for due in dues if due is not None), default=None)


def bounds(connection: Connection, topic: int, slot: int) -> tuple[int, int]:
    """The first claim of a slot that is not known to be settled, and the next number."""
    rows = connection.execute("SELECT first, next FROM log_slot WHERE topic = ? AND slot = ?", (topic, slot)).fetchall()
    return (rows[0][0], rows[0][1]) if rows else (0, 0)


def remove(connection: Connection, topic: int, slot: int, frontier: int, *, most: int) -> int:
    """Remove up to `most` runs of claims below the frontier; returns the number below which none is left."""
    rows = connection.execute(
        "SELECT number, batch, place, count, size FROM log_claim WHERE topic = ? AND slot = ? AND number < ?"
        " ORDER BY number LIMIT ?",
        (topic, slot, frontier, most),
    ).fetchall()
    below = frontier
    if rows:
        number, batch, place, count, size = rows[-1]
        below = min(frontier, number + count) if len(rows) == most else frontier
        connection.execute("DELETE FROM log_claim WHERE topic = ? AND slot = ? AND number < ?", (topic, slot, below))
        if number + count > below:
            settled = below - number
            rest = (below, batch, place + settled, count - settled, size - size * settled // count)
            connection.execute("INSERT INTO log_claim VALUES (?, ?, ?, ?, ?, ?, ?)", (topic, slot, *rest))
            rows[-1] = (number, batch, place, settled, size)
    connection.execute("DELETE FROM log_bound WHERE topic = ? AND slot = ? AND last < ?", (topic, slot, below))
    connection.execute("UPDATE log_slot SET first = max(first, ?) WHERE topic = ? AND slot = ?", (below, topic, slot))
    counts: dict[int, int] = {}
    for _, batch, _, count, _ in rows:
        counts[batch] = counts.get(batch, 0) + count
    for batch, count in counts.items():
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
    sums = "coalesce(sum(count), 0), coalesce(sum(size), 0), min(batch)"
    due = "FROM log_later WHERE topic = ?1 AND (due_us <= ?2) = ?3"
    now = clock.wall_us()

    def one(sql: str, *params: Any) -> Row:
        found: Row = connection.execute(sql, (topic, *params)).fetchall()[0]
        return found

    ready, ready_size, first = one(f"SELECT {sums} FROM log_ready WHERE topic = ?1")
    past, past_size, past_first = one(f"SELECT {sums} {due}", now, True)
    later, later_size, _ = one(f"SELECT {sums} {due}", now, False)
    claimed = {
        slot: rest
        for slot, *rest in connection.execute(
            f"SELECT slot, {sums} FROM log_claim WHERE topic = ? GROUP BY slot", (topic,)
        ).fetchall()
    }
    slots: list[PartitionInfo] = []
    for number in range(partitions):
        begin, end = bounds(connection, topic, number)
        count, size, oldest = claimed.get(number, (0, 0, None))
        slots.append(
            PartitionInfo(
                partition=number,
                begin=begin,
                end=end,
                records=count,
                bytes=size,
                stored_bytes=None,
                oldest_us=_accepted_us(connection, oldest),
            )
        )
    oldest = min((batch for batch in (first, past_first) if batch is not None), default=None)
    info = QueueInfo(
        ready=ready + past,
        scheduled=later,
        claimed=sum(slot.records for slot in slots),
        bytes=ready_size + past_size + later_size,
        oldest_us=_accepted_us(connection, oldest),
        next_due_us=one("SELECT min(due_us) FROM log_later WHERE topic = ?")[0],
    )
    return info, slots


def _accepted_us(connection: Connection, batch: int | None) -> int | None:
    if batch is None:
        return None
    rows = connection.execute("SELECT accepted_us FROM log_batch WHERE seq = ?", (batch,)).fetchall()
    return int(rows[0][0]) if rows else None


def after_boot(connection: Connection) -> None:
    """No claim number is given twice, although claims are not synced."""
    connection.execute("UPDATE log_slot SET next = next + ?", (AFTER_BOOT,))


def after_loss(connection: Connection, following: int) -> None:
    """The same, where the claims of a lost time are not known."""
    connection.execute("UPDATE log_slot SET next = max(next + ?, ?)", (AFTER_BOOT, following))
