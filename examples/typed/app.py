"""Typed payloads: the value is decoded as the handler's annotation asks; what does not fit goes to quarantine."""

import apsw
import msgspec

from settled import App, Record

app = App(topic="orders", group="reserve", poison={"owner": "orders-oncall"})


class Order(msgspec.Struct):
    sku: str
    quantity: int


@app.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS reservation (order_id TEXT, sku TEXT, quantity INTEGER)")


@app.handler
def reserve(tx, record: Record[Order]):
    order = record.payload
    tx.execute("INSERT INTO reservation VALUES (?, ?, ?)", (record.key.decode(), order.sku, order.quantity))


if __name__ == "__main__":
    with app:
        app.publish(key="o-1", id="event-1", value=Order(sku="lamp", quantity=2))
        app.publish(key="o-2", id="event-2", value={"sku": "desk", "quantity": "two"})
        app.publish(key="o-3", id="event-3", value=Order(sku="desk", quantity=1))
        app.drain()
        for group in app.store.quarantine.groups():
            print("quarantined:", group.count, group.error)
    for row in apsw.Connection("settled-effects.db").execute("SELECT * FROM reservation ORDER BY 1"):
        print(*row)
