"""settled's own tables in a SQLite file. `migrate` brings them up to date; each step is applied once, in order.

consumer, topic   names, each written once, so that the rows below stay small
frontier          one row per consumer, topic and partition: its position, its epoch, who holds it; `place_id` elsewhere
inbox             one mark per consumer and event id: how it ended, where it came from
version           the highest version applied per consumer, topic and key
attempt           records that failed or are suspected and have not ended
quarantine        records kept for people with their evidence; notes and large values in tables of their own
pause             partitions of which a person wants nothing settled for now
gap               offsets that were gone when a consumer wanted them
report            what each worker last said of itself
outbox            messages that wait to be published, see `settled.outbox_row`; sent ones are removed
outbox_bucket     who relays which keys, under which epoch; outbox_relay: the relays that live
"""

from __future__ import annotations

from typing import Any

import apsw

from settled.errors import ContractError, Refused

STEPS: tuple[str, ...] = (
    """
CREATE TABLE settled_consumer (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE settled_topic (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE settled_frontier (
  id INTEGER PRIMARY KEY,
  consumer_id INTEGER NOT NULL,
  topic_id INTEGER NOT NULL,
  partition INTEGER NOT NULL,
  identity TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  owner TEXT NOT NULL,
  frontier INTEGER,
  witness_offset INTEGER,
  witness BLOB,
  updated_us INTEGER NOT NULL,
  UNIQUE (consumer_id, topic_id, partition)
) STRICT;
CREATE TABLE settled_inbox (
  consumer_id INTEGER NOT NULL,
  event_id TEXT NOT NULL,
  outcome INTEGER NOT NULL,
  place_id INTEGER NOT NULL,
  place_offset INTEGER NOT NULL,
  settled_us INTEGER NOT NULL,
  PRIMARY KEY (consumer_id, event_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE settled_version (
  consumer_id INTEGER NOT NULL,
  topic_id INTEGER NOT NULL,
  record_key BLOB NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (consumer_id, topic_id, record_key)
) STRICT, WITHOUT ROWID;
CREATE TABLE settled_attempt (
  place_id INTEGER NOT NULL,
  place_offset INTEGER NOT NULL,
  event_id TEXT NOT NULL,
  attempts TEXT NOT NULL,
  PRIMARY KEY (place_id, place_offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE settled_quarantine (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer_id INTEGER NOT NULL,
  place_id INTEGER NOT NULL,
  place_offset INTEGER NOT NULL,
  record_key BLOB,
  headers BLOB NOT NULL,
  event_id TEXT NOT NULL,
  type TEXT,
  version INTEGER,
  event_time_us INTEGER,
  correlation_id TEXT,
  causation_id TEXT,
  accepted_us INTEGER NOT NULL,
  value_bytes INTEGER NOT NULL,
  value BLOB,
  failure TEXT NOT NULL,
  attempts TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  error TEXT NOT NULL,
  message TEXT NOT NULL,
  owner TEXT NOT NULL,
  code_version TEXT NOT NULL,
  state TEXT NOT NULL,
  quarantined_us INTEGER NOT NULL,
  parked INTEGER NOT NULL,
  marked INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX settled_quarantine_open ON settled_quarantine (place_id, place_offset)
  WHERE state IN ('held', 'requested');
CREATE INDEX settled_quarantine_requested ON settled_quarantine (place_id, place_offset) WHERE state = 'requested';
CREATE TABLE settled_quarantine_value (number INTEGER PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE settled_quarantine_note (
  id INTEGER PRIMARY KEY,
  number INTEGER NOT NULL,
  noted_us INTEGER NOT NULL,
  who TEXT NOT NULL,
  note TEXT NOT NULL
) STRICT;
CREATE INDEX settled_quarantine_note_number ON settled_quarantine_note (number);
CREATE TABLE settled_gap (
  consumer TEXT NOT NULL,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  first_offset INTEGER NOT NULL,
  next_offset INTEGER NOT NULL,
  found_us INTEGER NOT NULL,
  PRIMARY KEY (consumer, topic, partition, first_offset, next_offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE settled_report (
  consumer TEXT NOT NULL,
  member TEXT NOT NULL,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  state TEXT NOT NULL,
  why TEXT NOT NULL,
  updated_us INTEGER NOT NULL,
  PRIMARY KEY (consumer, member)
) STRICT, WITHOUT ROWID;
CREATE TABLE settled_outbox (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL,
  aggregatetype TEXT NOT NULL,
  aggregateid TEXT,
  type TEXT,
  payload ANY,
  record_key BLOB,
  headers BLOB,
  version INTEGER,
  event_time_us INTEGER,
  correlation_id TEXT,
  causation_id TEXT,
  created_us INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)),
  state INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL DEFAULT 0,
  due_us INTEGER NOT NULL DEFAULT 0,
  error TEXT,
  bucket INTEGER GENERATED ALWAYS AS (
    (7 * coalesce(unicode(substr(coalesce(aggregateid, id), -1)), 0)
      + 5 * coalesce(unicode(substr(coalesce(aggregateid, id), -2, 1)), 0)
      + 3 * coalesce(unicode(substr(coalesce(aggregateid, id), -3, 1)), 0)
      + length(coalesce(aggregateid, id))) & 15
  ) VIRTUAL
) STRICT;
CREATE INDEX settled_outbox_failing ON settled_outbox (aggregatetype, aggregateid) WHERE state = 1;
CREATE TABLE settled_outbox_bucket (
  bucket INTEGER PRIMARY KEY,
  epoch INTEGER NOT NULL,
  owner TEXT NOT NULL
) STRICT;
CREATE TABLE settled_outbox_relay (
  relay TEXT PRIMARY KEY,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  until_us INTEGER NOT NULL,
  why TEXT NOT NULL
) STRICT, WITHOUT ROWID;
""",
    """
CREATE TABLE settled_pause (
  consumer TEXT NOT NULL,
  topic TEXT NOT NULL,
  partition INTEGER NOT NULL,
  reason TEXT NOT NULL,
  who TEXT NOT NULL,
  paused_us INTEGER NOT NULL,
  PRIMARY KEY (consumer, topic, partition)
) STRICT, WITHOUT ROWID;
""",
)
VERSION = len(STEPS)


_META = "CREATE TABLE IF NOT EXISTS settled_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID"
_SET_VERSION = (
    f"INSERT INTO settled_meta VALUES ('version', '{VERSION}') ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)


def whole() -> str:
    """All of it as one script, for those who run their migrations themselves."""
    return f"BEGIN IMMEDIATE;\n{_META};\n{''.join(STEPS)}\n{_SET_VERSION};\nCOMMIT;\n"


def migrate(connection: apsw.Connection) -> None:
    """Inside a write transaction: create or bring up to date."""
    connection.execute(_META)
    found = version(connection)
    refuse_newer(found)
    for step in STEPS[found:]:
        connection.execute(step)
    connection.execute(_SET_VERSION)


def version(connection: apsw.Connection) -> int:
    """The schema version that the file holds, 0 if none."""
    if not connection.table_exists("main", "settled_meta"):
        return 0
    rows: list[Any] = connection.execute("SELECT value FROM settled_meta WHERE name = 'version'").fetchall()
    return int(rows[0][0]) if rows else 0


def require(connection: apsw.Connection) -> None:
    """Refuse tables that are not of this release."""
    found = version(connection)
    refuse_newer(found)
    if found < VERSION:
        raise ContractError(
            "settled's tables are not in this database" if not found else f"settled's tables are of version {found}",
            field="store",
            hint="run: settled store migrate",
        )


def refuse_newer(found: int) -> None:
    if found > VERSION:
        raise Refused(
            f"the store's schema has version {found}, this release of settled knows {VERSION}",
            hint="run the newer release of settled that made it; a downgrade is not supported",
        )
