"""Every fifth record fails the first time that a process sees it; a failed run writes before it raises."""

import os

from settled import App, Record, Retry, Tx

app = App(topic="flaky", group="flaky", transport={"partitions": 2})
seen: set[str] = set()


@app.setup
def tables(tx: Tx) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS note (event_id TEXT, pid INTEGER)")


@app.handler
def take(tx: Tx, record: Record) -> None:
    tx.execute("INSERT INTO note VALUES (?, ?)", (record.id, os.getpid()))
    if record.offset % 5 == 2 and record.id not in seen:
        seen.add(record.id)
        raise Retry("not yet", after=0.3)
