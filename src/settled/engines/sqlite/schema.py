"""The tables of the log file, made by one transaction however many processes start at once. All names begin with
`log_`, so that a log may share its file with other tables.
"""

from __future__ import annotations

import uuid

import apsw

from settled import clock
from settled.engines.sqlite.database import Connection
from settled.errors import Refused

VERSION = 2

_TABLES = (
    """CREATE TABLE log_meta (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        version INTEGER NOT NULL,
        identity BLOB NOT NULL,          -- 16 bytes, made with the file
        commits INTEGER NOT NULL,        -- appends so far; the tip file holds a copy of this number
        highest INTEGER NOT NULL,        -- the highest offset ever given, in any partition
        generation INTEGER NOT NULL,     -- how many losses were accepted
        topics INTEGER NOT NULL,         -- rises when topics change, so that producers look again
        boot TEXT NOT NULL               -- the boot in which the log was opened last
    ) STRICT""",
    """CREATE TABLE log_topic (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        identity TEXT NOT NULL,
        partitions INTEGER NOT NULL,
        retention_us INTEGER,
        retention_bytes INTEGER,
        max_message_bytes INTEGER
    ) STRICT""",
    """CREATE TABLE log_partition (
        id INTEGER PRIMARY KEY,
        topic INTEGER NOT NULL,
        number INTEGER NOT NULL,
        begin INTEGER NOT NULL,          -- first offset held
        next INTEGER NOT NULL,           -- next offset to give; never goes back
        chain BLOB NOT NULL,             -- fingerprint of all content below next
        accepted_us INTEGER NOT NULL,    -- of the newest batch; never goes back
        records INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        stored INTEGER NOT NULL,
        reserved INTEGER NOT NULL,       -- appends of durability memory give no offset from here on
        UNIQUE (topic, number)
    ) STRICT""",
    """CREATE TABLE log_batch (
        seq INTEGER PRIMARY KEY,
        part INTEGER NOT NULL,
        base INTEGER NOT NULL,
        count INTEGER NOT NULL,
        bytes INTEGER NOT NULL,          -- expanded: the sum of Record.size
        accepted_us INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        chain BLOB NOT NULL,             -- fingerprint up to and with this batch
        compression INTEGER NOT NULL,
        payload BLOB NOT NULL
    ) STRICT""",
    "CREATE UNIQUE INDEX log_batch_place ON log_batch (part, base)",
    """CREATE TABLE log_loss (
        part INTEGER NOT NULL,
        first INTEGER NOT NULL,
        next INTEGER NOT NULL,           -- offsets first to next-1 hold nothing and never will
        at_us INTEGER NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (part, first)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE log_producer (
        identity TEXT PRIMARY KEY,
        named INTEGER NOT NULL,
        incarnation INTEGER NOT NULL,    -- which opening of the name may append
        sequence INTEGER,                -- last sequence stored
        batch INTEGER NOT NULL,          -- last batch stored, to settle a commit whose answer was lost
        updated_us INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE log_group (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        active_us INTEGER NOT NULL       -- last sign of life, wall clock, for retention
    ) STRICT""",
    """CREATE TABLE log_subscription (
        grp INTEGER NOT NULL,
        topic INTEGER NOT NULL,
        original INTEGER NOT NULL,       -- partitions when the group first asked for the topic
        PRIMARY KEY (grp, topic)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE log_member (
        joined INTEGER PRIMARY KEY AUTOINCREMENT,
        incarnation TEXT NOT NULL UNIQUE,
        grp INTEGER NOT NULL,
        name TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        boot TEXT NOT NULL,
        expires_us INTEGER NOT NULL,     -- microseconds since boot
        topics TEXT NOT NULL             -- JSON list of topic ids
    ) STRICT""",
    """CREATE TABLE log_owner (
        grp INTEGER NOT NULL,
        topic INTEGER NOT NULL,
        number INTEGER NOT NULL,
        owner TEXT,                      -- a member's incarnation, or none
        epoch INTEGER NOT NULL,
        clean INTEGER NOT NULL,
        revoking INTEGER NOT NULL,
        committed INTEGER,
        PRIMARY KEY (grp, topic, number)
    ) STRICT, WITHOUT ROWID""",
)

# What each later version added; a new file runs them all.
_STEPS: dict[int, tuple[str, ...]] = {
    2: (
        "ALTER TABLE log_topic ADD COLUMN form TEXT NOT NULL DEFAULT 'log'",
        "ALTER TABLE log_topic ADD COLUMN compact INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE log_topic ADD COLUMN tombstone_us INTEGER NOT NULL DEFAULT 86400000000",
        # A queue's records that are not settled, in runs: `count` records of a batch (a row of log_batch) from `place`
        # on, which are ready, scheduled for later, or claimed into a slot. `size`: expanded bytes, about.
        """CREATE TABLE log_ready (
            topic INTEGER NOT NULL,
            tenant BLOB NOT NULL,
            urgency INTEGER NOT NULL,        -- 9 less the priority: the lowest first
            batch INTEGER NOT NULL,
            place INTEGER NOT NULL,
            count INTEGER NOT NULL,
            size INTEGER NOT NULL,
            PRIMARY KEY (topic, tenant, urgency, batch, place)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE log_later (
            topic INTEGER NOT NULL,
            due_us INTEGER NOT NULL,
            batch INTEGER NOT NULL,
            place INTEGER NOT NULL,
            count INTEGER NOT NULL,
            size INTEGER NOT NULL,
            tenant BLOB NOT NULL,
            urgency INTEGER NOT NULL,
            PRIMARY KEY (topic, due_us, batch, place)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE log_claim (
            topic INTEGER NOT NULL,
            slot INTEGER NOT NULL,
            number INTEGER NOT NULL,         -- of the first record; the others follow
            batch INTEGER NOT NULL,
            place INTEGER NOT NULL,
            count INTEGER NOT NULL,
            size INTEGER NOT NULL,
            PRIMARY KEY (topic, slot, number)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE log_bound (
            topic INTEGER NOT NULL,
            key INTEGER NOT NULL,            -- a hash of it
            slot INTEGER NOT NULL,           -- where its claims are, as long as the last is not settled
            last INTEGER NOT NULL,
            PRIMARY KEY (topic, key)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX log_bound_last ON log_bound (topic, slot, last)",
        """CREATE TABLE log_slot (
            topic INTEGER NOT NULL,
            slot INTEGER NOT NULL,
            first INTEGER NOT NULL,          -- claims below are settled
            next INTEGER NOT NULL,           -- the number of the next claim; never goes back
            PRIMARY KEY (topic, slot)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE log_left (
            batch INTEGER PRIMARY KEY,       -- a batch of a queue; it goes when none of its records is left
            records INTEGER NOT NULL
        ) STRICT""",
        "ALTER TABLE log_topic ADD COLUMN pass_groups INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE log_batch ADD COLUMN kept INTEGER",  # of a compacted batch: how many records are left
        "ALTER TABLE log_batch ADD COLUMN first_us INTEGER",  # and when the first of them was accepted
        "ALTER TABLE log_batch ADD COLUMN link BLOB",  # and what ties it to the batch before
        """CREATE TABLE log_compaction (
            part INTEGER PRIMARY KEY,
            clean INTEGER NOT NULL,          -- no key stands twice below it
            records INTEGER NOT NULL,        -- how many the last pass left below it
            tombstone_us INTEGER,            -- accepted time of the oldest tombstone below it; none: there is none
            holder TEXT NOT NULL,            -- who compacts it, until when: microseconds since boot
            boot TEXT NOT NULL,
            until_us INTEGER NOT NULL
        ) STRICT""",
    ),
}


def version(connection: Connection) -> int:
    """The version of the log that the file holds, 0: none. Raises Refused for one of a newer release."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'log_meta'").fetchall():
        return 0
    found = int(connection.execute("SELECT version FROM log_meta").fetchall()[0][0])
    if found > VERSION:
        raise Refused(
            f"the log has schema version {found}; this release knows versions up to {VERSION}",
            hint="run the newer release of settled that wrote it, or another log file",
        )
    return found


def create(connection: apsw.Connection) -> None:
    """Make the tables, or bring them up to date, unless another process just did. The caller's connection must sync
    its commits."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = version(connection)
        if not found:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO log_meta VALUES (1, 1, ?, 0, -1, 0, 0, ?)", (uuid.uuid4().bytes, clock.boot_id())
            )
        for number in range(max(found, 1) + 1, VERSION + 1):
            for statement in _STEPS[number]:
                connection.execute(statement)
        connection.execute("UPDATE log_meta SET version = ?", (VERSION,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
