"""Wrong: what was done is remembered in memory, the effect is made on a connection of its own."""

from settled import App, Record, Tx
from settled.sqlite import open_connection, path_of

app = App(topic="memory", group="memory", transport={"partitions": 2})
done: set[str] = set()


@app.setup
def tables(tx: Tx) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS note (event_id TEXT)")


@app.handler
def take(tx: Tx, record: Record) -> None:
    if record.id in done:
        return
    connection = open_connection(path_of(app.store_url)[0], busy_s=0.2)
    connection.execute("INSERT INTO note VALUES (?)", (record.id,))
    connection.close()
    done.add(record.id)
