"""Wrong: the effect is made on a connection of its own, outside `tx`."""

from settled import App, Record, Tx
from settled.sqlite import open_connection, path_of

app = App(topic="outside", group="outside", transport={"partitions": 2})


@app.setup
def tables(tx: Tx) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS note (event_id TEXT)")


@app.handler
def take(tx: Tx, record: Record) -> None:
    connection = open_connection(path_of(app.store_url)[0], busy_s=0.2)
    connection.execute("INSERT INTO note VALUES (?)", (record.id,))
    connection.close()
