"""Mercury's reservations: one per (order_id, reservation_version), under the contract beside this file."""

from pathlib import Path

import apsw
import msgspec

from settled import App, Record

HERE = Path(__file__).parent
app = App(HERE / "contract.yaml")


class FulfillmentRequested(msgspec.Struct):
    order_id: str
    reservation_version: int
    sku: str
    quantity: int


@app.setup
def tables(tx):
    tx.execute(
        "CREATE TABLE IF NOT EXISTS reservation (order_id TEXT, reservation_version INTEGER, sku TEXT,"
        " quantity INTEGER, PRIMARY KEY (order_id, reservation_version))"
    )


@app.handler
def reserve(tx, record: Record[FulfillmentRequested]):
    order = record.payload
    tx.execute(
        "INSERT INTO reservation VALUES (?, ?, ?, ?)",
        (order.order_id, order.reservation_version, order.sku, order.quantity),
    )


def publish(path):
    """One message a line; `event_id` is the id, `order_id` the key, `reservation_version` the version."""
    for line in path.read_bytes().splitlines():
        event = msgspec.json.decode(line)
        app.publish(
            value=line,
            id=event["event_id"],
            key=event["order_id"],
            version=event["reservation_version"],
            type="FulfillmentRequested",
        )


if __name__ == "__main__":
    with app:
        publish(HERE / "orders.jsonl")
        app.drain()
        for outcome, count in sorted(app.store.tally("inventory-reservation-v3").items()):
            print(f"{count} {outcome.name.lower()}")
    for row in apsw.Connection("settled-effects.db").execute("SELECT * FROM reservation ORDER BY 1, 2"):
        print(*row)
