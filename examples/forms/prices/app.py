"""A price projection is a log with compaction and versions: the newest price of each product stays in the log, so that
a projection can be built at any time, also by a reader who begins today. A record without a value: the price is gone.
"""

from pathlib import Path

import apsw

from settled import App

CONTRACT = Path(__file__).with_name("contract.yaml")
EVENTS = [("lamp", 1, b"30"), ("lamp", 2, b"32"), ("lamp", 3, b"35"), ("desk", 1, b"120"), ("sofa", 1, b"900")]
EVENTS += [("sofa", 2, None)]


def projection(group):
    """One more reader of the same prices, from the beginning."""
    app = App(CONTRACT, group=group)
    table = group.replace("-", "_")

    @app.setup
    def tables(tx):
        tx.execute(f"CREATE TABLE IF NOT EXISTS {table} (sku TEXT PRIMARY KEY, euros INTEGER)")

    @app.handler
    def put(tx, record):
        sku = record.key.decode()
        if record.value is None:
            tx.execute(f"DELETE FROM {table} WHERE sku = ?", (sku,))
        else:
            tx.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (sku, int(record.value)))

    return app


app = projection("price-list")

if __name__ == "__main__":
    late = projection("shop-window")
    with app, late:
        for sku, version, euros in EVENTS:
            app.publish(euros, key=sku, version=version, id=f"{sku}-{version}")
        app.drain()
        app.engine.maintain(force=True)  # workers do this by themselves, once it is worth it
        late.drain()  # it begins today, with what compaction left
        for table in ("price_list", "shop_window"):
            for row in apsw.Connection("settled-effects.db").execute(f"SELECT * FROM {table} ORDER BY 1"):
                print(table, *row)
