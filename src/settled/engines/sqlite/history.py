"""Opening the log: created if missing, refused when it went back in time. Offsets are never given out twice.

What is compared is the log's commit counter with the tip beside it, see `tip.py`. The remedy is to bring the right
file back or, knowingly, `accept_loss`: every partition then goes on above the highest offset ever given.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

import msgspec

from settled import clock, sqlite
from settled.engines.sqlite import pool, schema, tip
from settled.engines.sqlite.database import Connection, Database
from settled.errors import ContractError, HistoryLost

LOSS_MARGIN = 1_000_000  # offsets left out beyond the tip: it may itself be older than the log that was lost
_REMEDY = "put the newest copy back, or accept the loss knowingly: settled.engines.sqlite.accept_loss(url, reason=...)"


class Loss(msgspec.Struct, frozen=True):
    """Offsets first to next-1 of a partition were lost or never given; none of them is ever used again."""

    topic: str
    partition: int
    first: int
    next: int


class LossAccepted(msgspec.Struct, frozen=True):
    """What `accept_loss` did."""

    generation: int
    losses: list[Loss]


class Opened(msgspec.Struct, frozen=True):
    database: Database
    tip: tip.Tip
    identity: bytes


def open_log(url: str, *, busy_s: float = sqlite.BUSY_S) -> Opened:
    """Raises HistoryLost, with nothing written, when the log is behind its tip or another one."""
    path, mark = _place(url)
    if mark is not None and not path.exists():
        raise HistoryLost(f"the log {path} is gone, its tip {tip.tip_path(path).name} is still there", hint=_REMEDY)
    database = _database(path, busy_s)
    try:
        return _checked(database, mark)
    except BaseException:
        database.close()
        raise


def accept_loss(url: str, reason: str, *, above: int = -1) -> LossAccepted:
    """Begin a new generation of a log that went back: all partitions continue above the highest offset ever given
    (and above `above`, e.g. the highest frontier that a store holds), what lies between is recorded as lost. So do the
    numbers of claims in the slots of queues.

    Durable when it returns. Consumers see the lost offsets as a gap.
    """
    if not reason.strip():
        raise ContractError("a loss is accepted for a reason", field="reason", hint="say what happened and who decided")
    path, mark = _place(url)
    database = _database(path, sqlite.BUSY_S)
    try:
        with database.raw(durable=True) as connection:
            schema.create(connection)
        with database.writing(durable=True) as connection:
            identity, commits, highest, generation = connection.execute(
                "SELECT identity, commits, highest, generation FROM log_meta"
            ).fetchall()[0]
            highest = max(highest, above, mark.highest if mark else -1)
            losses = _jump_all(connection, highest + 1 + LOSS_MARGIN, reason)
            pool.after_loss(connection, highest + 1 + LOSS_MARGIN)
            highest = max([highest, *(loss.next - 1 for loss in losses)])
            commits = max(commits, mark.commits if mark else 0) + 1
            connection.execute(
                "UPDATE log_meta SET commits = ?, highest = ?, generation = ?, topics = topics + 1",
                (commits, highest, generation + 1),
            )
        file = tip.Tip(database.path)
        file.replace(tip.Mark(identity, commits, highest))
        file.close()
        return LossAccepted(generation + 1, losses)
    finally:
        database.close()


def jump(connection: Connection, part: int, following: int, reason: str) -> None:
    """Let a partition go on at offset `following`; what lies between is recorded, and the fingerprint changes."""
    first, begin, chain = connection.execute(
        "SELECT next, begin, chain FROM log_partition WHERE id = ?", (part,)
    ).fetchall()[0]
    chain = hashlib.blake2b(chain + uuid.uuid4().bytes, digest_size=16).digest()
    connection.execute("INSERT INTO log_loss VALUES (?, ?, ?, ?, ?)", (part, first, following, clock.wall_us(), reason))
    connection.execute(
        "UPDATE log_partition SET next = ?, begin = ?, chain = ?, reserved = 0 WHERE id = ?",
        (following, following if begin == first else begin, chain, part),
    )


def lost_between(connection: Connection, part: int, first: int, following: int) -> bool:
    """Whether all offsets from `first` to `following`-1 are recorded as lost."""
    while first < following:
        rows = connection.execute(
            "SELECT next FROM log_loss WHERE part = ? AND first <= ? AND next > ?", (part, first, first)
        ).fetchall()
        if not rows:
            return False
        first = rows[0][0]
    return True


def _place(url: str) -> tuple[Path, tip.Mark | None]:
    path, options = sqlite.path_of(url)
    if options:
        raise ContractError(
            f"the address of a log takes no options, and {url!r} has {', '.join(options)}", field="url", value=url
        )
    return path, tip.read(path)  # before the log is looked at: it may move on meanwhile, but only forward


def _database(path: Path, busy_s: float) -> Database:
    return Database(path, busy_s=busy_s, network=os.environ.get("SETTLED_ALLOW_NETWORK_FS") == "1")


def _checked(database: Database, mark: tip.Mark | None) -> Opened:
    path = database.path
    with database.reading() as connection:
        found = schema.version(connection)
    if not found and mark is not None:
        raise HistoryLost(f"{path} holds no log, its tip {tip.tip_path(path).name} says it did", hint=_REMEDY)
    if found < schema.VERSION:
        with database.raw(durable=True) as connection:
            schema.create(connection)
        sqlite.sync_folder(path.parent)
    with database.reading() as connection:
        identity, commits, highest, boot = connection.execute(
            "SELECT identity, commits, highest, boot FROM log_meta"
        ).fetchall()[0]
    if mark is not None and mark.identity != identity:
        raise HistoryLost(f"{path} is another log than the one that was here before", hint=_REMEDY)
    if mark is not None and commits < mark.commits:
        raise HistoryLost(
            f"{path} went back in time: it holds {commits} appends, its tip remembers {mark.commits} "
            "(an older copy was restored, or its WAL was deleted)",
            hint=_REMEDY,
        )
    file = tip.Tip(path)
    if boot != clock.boot_id():
        _after_reboot(database)
    if mark is None:
        with database.writing(durable=True) as connection:  # syncs what was appended before, so the tip is not ahead
            identity, commits, highest = connection.execute(
                "UPDATE log_meta SET commits = commits + 1 RETURNING identity, commits, highest"
            ).fetchall()[0]
        file.advance(tip.Mark(identity, commits, highest))
        sqlite.sync_folder(path.parent)
    database.pin()
    return Opened(database, file, identity)


def _after_reboot(database: Database) -> None:
    """Appends of durability `memory` may be gone, and their offsets may have been seen: leave them out."""
    with database.writing(durable=True) as connection:
        boot = clock.boot_id()
        if connection.execute("SELECT boot FROM log_meta").fetchall()[0][0] == boot:
            return
        rows = connection.execute("SELECT id, reserved FROM log_partition WHERE reserved > next").fetchall()
        for part, reserved in rows:
            jump(connection, part, reserved, "the machine went down after appends of durability memory")
        connection.execute("UPDATE log_partition SET reserved = 0")
        pool.after_boot(connection)
        highest = max([-1, *(reserved - 1 for _, reserved in rows)])
        connection.execute(
            "UPDATE log_meta SET boot = ?, commits = commits + 1, highest = max(highest, ?)", (boot, highest)
        )


def _jump_all(connection: Connection, following: int, reason: str) -> list[Loss]:
    rows = connection.execute(
        "SELECT p.id, t.name, p.number, p.next FROM log_partition p JOIN log_topic t ON t.id = p.topic "
        "ORDER BY t.name, p.number"
    ).fetchall()
    losses = [Loss(topic, number, first, max(following, first + 1)) for _, topic, number, first in rows]
    for (part, _, _, _), loss in zip(rows, losses, strict=True):
        jump(connection, part, loss.next, reason)
    return losses
