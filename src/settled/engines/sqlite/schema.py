"""The tables of the log file, made by one transaction however many processes start at once. All names begin with
`log_`, so that a log may share its file with other tables.
"""

from __future__ import annotations

import uuid

import apsw

from settled import clock
from settled.engines.sqlite.database import Connection
from settled.errors import Refused

VERSION = 1

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


def exists(connection: Connection) -> bool:
    """Whether the file holds a log. Raises Refused for one of a newer release."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'log_meta'").fetchall():
        return False
    version = connection.execute("SELECT version FROM log_meta").fetchall()[0][0]
    if version > VERSION:
        raise Refused(
            f"the log has schema version {version}; this release knows versions up to {VERSION}",
            hint="run the newer release of settled that wrote it, or another log file",
        )
    return True


def create(connection: apsw.Connection) -> None:
    """Make the tables unless another process just did. The caller's connection must sync its commits."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not exists(connection):
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO log_meta VALUES (1, ?, ?, 0, -1, 0, 0, ?)", (VERSION, uuid.uuid4().bytes, clock.boot_id())
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
