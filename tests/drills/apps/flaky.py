"""Every fifth record fails for a while when a process sees it first; a failed run writes before it raises."""

import os
import time

from settled import App, Record, Retry, Tx

FAILS_S = 0.1
app = App(topic="flaky", group="flaky", transport={"partitions": 2})
seen: dict[str, float] = {}


@app.setup
def tables(tx: Tx) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS note (event_id TEXT, pid INTEGER)")


@app.handler
def take(tx: Tx, record: Record) -> None:
    tx.execute("INSERT INTO note VALUES (?, ?)", (record.id, os.getpid()))
    now = time.monotonic()
    if record.offset % 5 == 2 and now - seen.setdefault(record.id, now) < FAILS_S:
        raise Retry("not yet", after=0.15)
