"""A handler that takes the whole group: one statement adds up what is reserved of each article.

A sum is not idempotent, so each event must count once; it does, because its mark commits with the sum.
"""

import apsw
import msgspec

from settled import App, Message, Record

app = App(topic="orders", group="stock")


class Order(msgspec.Struct):
    sku: str
    quantity: int


@app.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, reserved INTEGER NOT NULL)")


@app.handler(batch=True)
def reserve(tx, records: list[Record[Order]]):
    tx.execute(
        """
        INSERT INTO stock
        SELECT value ->> 'sku', sum(value ->> 'quantity') FROM json_each(?) GROUP BY 1
        ON CONFLICT (sku) DO UPDATE SET reserved = reserved + excluded.reserved
        """,
        (msgspec.json.encode([record.payload for record in records]).decode(),),
    )


def orders(numbers):
    for number in numbers:
        order = Order(sku=("lamp", "desk")[number % 2], quantity=number % 5)
        yield Message(
            topic="orders", key=f"o-{number}".encode(), id=f"event-{number}", value=msgspec.json.encode(order)
        )


if __name__ == "__main__":
    with app:
        sent = [app.send(message) for message in orders(range(1000))]
        sent += [app.send(message) for message in orders(range(0, 1000, 10))]  # a tenth of them again
        for each in sent:
            each.result()  # accepted: on the disk
        app.drain()
    for row in apsw.Connection("settled-effects.db").execute("SELECT sku, reserved FROM stock ORDER BY 1"):
        print(*row)
