"""The dual write, closed: an order and its event are one commit, and what a handler publishes commits with its effect.

A shop writes an order and puts `orders` into the outbox of its own database. A relay publishes that. The handler packs
the order and publishes `parcels` in turn, which a second app counts. Run it twice: nothing happens twice.
"""

import apsw

from settled import App, outbox

STORE = "sqlite:///shop.db"
packing = App(topic="orders", group="packing", store=STORE)
counting = App(topic="parcels", group="counting", store=STORE)


@packing.setup
def shop_tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS shop_order (id TEXT PRIMARY KEY, sku TEXT)")
    tx.execute("CREATE TABLE IF NOT EXISTS parcel (order_id TEXT)")


@packing.handler
def pack(tx, record):
    tx.execute("INSERT INTO parcel VALUES (?)", (record.key.decode(),))
    tx.publish({"parcel": record.key.decode()}, topic="parcels", key=record.key)


@counting.setup
def counting_tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS sent (parcel TEXT, because_of TEXT)")


@counting.handler
def count(tx, record):
    tx.execute("INSERT INTO sent VALUES (?, ?)", (record.key.decode(), record.causation_id))


def take_order(shop, number, sku, *, fails=False):
    """The application: any connection, its own transaction, no broker."""
    with shop:
        shop.execute("INSERT INTO shop_order VALUES (?, ?)", (number, sku))
        outbox.publish(shop, {"sku": sku}, topic="orders", key=number, id=f"ordered-{number}", type="OrderTaken")
        if fails:
            raise ValueError("the card was declined")


if __name__ == "__main__":
    with packing, counting:
        for app in (packing, counting):
            app.engine, app.store  # noqa: B018 - opened: topics and tables are there
        shop = apsw.Connection("shop.db")
        for number, sku, fails in (("o-1", "lamp", False), ("o-2", "desk", True), ("o-3", "sofa", False)):
            try:
                take_order(shop, number, sku, fails=fails)
            except ValueError as error:
                print(number, "is not taken:", error)
            except apsw.ConstraintError:
                pass  # taken by the first run
        packing.relay().run(drain=True)  # `settled outbox relay` in a process of its own does this all the time
        packing.drain()  # relays what its handler published
        counting.drain()
        for row in shop.execute("SELECT parcel, because_of FROM sent ORDER BY 1"):
            print(*row)
        shop.close()
