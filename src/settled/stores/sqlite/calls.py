"""Calls outside the transaction, in a SQLite file of their own beside the store's: while a handler runs, its unit may
hold the write lock of the store's file, and an intent must be durable before the call is made.
"""

from __future__ import annotations

from pathlib import Path

from settled.stores.sqlite.handle import Handle

_TABLE = """
CREATE TABLE IF NOT EXISTS settled_external (
  consumer TEXT NOT NULL,
  event_id TEXT NOT NULL,
  name TEXT NOT NULL,
  runs INTEGER NOT NULL,
  intended_us INTEGER NOT NULL,
  ended_us INTEGER,
  result BLOB,
  PRIMARY KEY (consumer, event_id, name)
) STRICT, WITHOUT ROWID
"""


def calls_file(store: Path) -> Path:
    return store.with_name(store.name + "-external")


def open_calls(store: Path, busy_s: float) -> Handle:
    """The file beside the store's, made at first use."""
    handle = Handle(calls_file(store), busy_s=busy_s)
    handle.write(lambda: handle.run(_TABLE))
    return handle
