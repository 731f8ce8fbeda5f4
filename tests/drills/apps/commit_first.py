"""Wrong: an inbox of its own is committed before the effect."""

from settled import App, Record, Tx
from settled.sqlite import open_connection, path_of

app = App(topic="first", group="first", transport={"partitions": 2})


@app.setup
def tables(tx: Tx) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS done (event_id TEXT PRIMARY KEY)")
    tx.execute("CREATE TABLE IF NOT EXISTS note (event_id TEXT)")


@app.handler
def take(tx: Tx, record: Record) -> None:
    connection = open_connection(path_of(app.store_url)[0], busy_s=0.2)
    connection.execute("INSERT OR IGNORE INTO done VALUES (?)", (record.id,))
    new = connection.changes()
    connection.close()
    if new:
        tx.execute("INSERT INTO note VALUES (?)", (record.id,))
