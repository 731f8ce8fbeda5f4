"""Retention: old batches are removed from the head of each partition, whole, in short transactions. The frontier of
an active group is never passed unless forced; what was removed is seen by `begin`.
"""

from __future__ import annotations

from typing import Any

from settled import clock, windows
from settled.engines.sqlite.database import Connection, Database

STEP = 64  # batches removed in one transaction
WAL_LIMIT = 64 * 1024 * 1024
PRODUCER_IDLE_US = 86_400_000_000  # marks of unnamed producers are kept this long after their last append


def maintain(database: Database, *, force: bool) -> dict[str, int]:
    """Apply retention to all topics once; returns records removed per topic (topics without any are left out)."""
    removed: dict[str, int] = {}
    with database.reading() as connection:
        topics = connection.execute(
            "SELECT id, name, retention_us, retention_bytes FROM log_topic "
            "WHERE (retention_us IS NOT NULL OR retention_bytes IS NOT NULL) AND form <> 'queue'"
        ).fetchall()
    for topic, name, age_us, stored in topics:
        count = 0
        while step := _step(database, topic, age_us, stored, force):
            count += step
        if count:
            removed[name] = count
    with database.writing(durable=False) as connection:
        connection.execute(
            "DELETE FROM log_producer WHERE named = 0 AND updated_us < ?", (clock.wall_us() - PRODUCER_IDLE_US,)
        )
    if database.wal_bytes() > WAL_LIMIT:
        database.checkpoint()
    return removed


def _step(database: Database, topic: int, age_us: int | None, stored: int | None, force: bool) -> int:
    """Remove up to STEP batches of a topic in one transaction; returns the records removed."""
    with database.writing(durable=False) as connection:
        now = clock.wall_us()
        floors = {} if force else floors_of(connection, topic, age_us, now)
        excess = 0
        if stored is not None:
            rows = connection.execute("SELECT sum(stored) FROM log_partition WHERE topic = ?", (topic,)).fetchall()
            excess = rows[0][0] - stored
        heads = connection.execute(
            "SELECT b.seq, b.part, b.base, b.count, b.bytes, length(b.payload), b.accepted_us, p.number, coalesce("
            "b.kept, b.count) FROM log_batch b JOIN log_partition p ON p.id = b.part WHERE p.topic = ?1 AND b.base IN "
            "(SELECT base FROM log_batch WHERE part = b.part ORDER BY base LIMIT ?2) ORDER BY b.accepted_us, b.seq",
            (topic, STEP),
        )
        going: list[tuple[Any, ...]] = []
        blocked: set[int] = set()
        for row in heads:
            seq, part, base, count, size, held, accepted_us, number, records = row
            too_old = age_us is not None and accepted_us < now - age_us
            floor = floors.get(number, base + count)
            if part in blocked or base + count > floor or not (too_old or excess > 0):
                blocked.add(part)  # only whole heads go: nothing behind this one
                continue
            excess -= held
            going.append((seq, part, base + count, records, size, held))
            if len(going) == STEP:
                break
        for one in going:
            _remove(connection, *one)
        if going:
            windows.reach("retention-uncommitted")
    return sum(one[3] for one in going)


def floors_of(connection: Connection, topic: int, age_us: int | None, now: int) -> dict[int, int]:
    """For each partition the offset that may not be passed: the lowest frontier of the active groups."""
    return {number: floor for number, (floor, _) in holders_of(connection, topic, age_us, now).items()}


def holders_of(connection: Connection, topic: int, age_us: int | None, now: int) -> dict[int, tuple[int, str]]:
    """For each partition the lowest frontier of the active groups, and whose it is."""
    rows = connection.execute(
        "SELECT p.number, min(coalesce(o.committed, 0)), g.name FROM log_subscription s JOIN log_group g ON g.id = "
        "s.grp JOIN log_partition p ON p.topic = s.topic LEFT JOIN log_owner o ON o.grp = s.grp AND o.topic = s.topic "
        "AND o.number = p.number WHERE s.topic = ?1 AND (?2 IS NULL OR g.active_us >= ?3 - ?2 OR EXISTS (SELECT 1 "
        "FROM log_member m WHERE m.grp = g.id AND m.boot = ?4 AND m.expires_us > ?5)) GROUP BY p.number",
        (topic, age_us, now, clock.boot_id(), clock.boot_us()),
    ).fetchall()
    return {number: (floor, group) for number, floor, group in rows}


def _remove(connection: Connection, seq: int, part: int, following: int, count: int, size: int, held: int) -> None:
    connection.execute("DELETE FROM log_batch WHERE seq = ?", (seq,))
    rows = connection.execute("SELECT base FROM log_batch WHERE part = ? ORDER BY base LIMIT 1", (part,)).fetchall()
    connection.execute(
        "UPDATE log_partition SET begin = CASE WHEN ?1 THEN ?2 ELSE next END, records = records - ?3, "
        "bytes = bytes - ?4, stored = stored - ?5 WHERE id = ?6",
        (bool(rows), rows[0][0] if rows else following, count, size, held, part),
    )
