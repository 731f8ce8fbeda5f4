"""The shortest use: a topic, a group, a table, a handler. Run it twice: the same order is not reserved again."""

import apsw

from settled import App

app = App(topic="orders", group="reserve")


@app.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS reservation (order_id TEXT, sku TEXT)")


@app.handler
def reserve(tx, record):
    tx.execute("INSERT INTO reservation VALUES (?, ?)", (record.key.decode(), record.value.decode()))


if __name__ == "__main__":
    with app:
        app.publish(key="o-1", value="lamp", id="event-1")
        app.publish(key="o-2", value="desk", id="event-2")
        app.publish(key="o-1", value="lamp", id="event-1")  # sent again: the producer did not hear the answer
        app.drain()
    for row in apsw.Connection("settled-effects.db").execute("SELECT order_id, sku FROM reservation ORDER BY 1"):
        print(*row)
