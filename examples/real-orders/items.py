"""One row per purchase-order item, kept current by the events of the item: see docs/real-orders.md.

Counting is not idempotent and order matters, so the table shows every event that was lost, doubled or out of order.
"""

import msgspec

from settled import App, Record

app = App(
    topic="purchase-orders",
    group="items",
    transport={"key": "po_item", "version": "version", "partitions": 12},
    delivery={
        "consumers": 2,
        "lease": "1s",
        "effect_tail": "500ms",
        "group_size": {"records": 200},  # after a crash so many records of each partition run one by one
    },
    poison={"owner": "purchasing"},
)


class Event(msgspec.Struct):
    po_item: str
    purchase_order: str
    tenant: str
    activity: str


@app.setup
def tables(tx):
    tx.execute(
        """
        CREATE TABLE IF NOT EXISTS item (
          po_item TEXT PRIMARY KEY,
          purchase_order TEXT NOT NULL,
          tenant TEXT NOT NULL,
          state TEXT NOT NULL,      -- the last activity
          version INTEGER NOT NULL, -- of the last event
          length INTEGER NOT NULL,  -- how many events
          in_order INTEGER NOT NULL -- how many of them came right after the version before
        ) STRICT
        """
    )


@app.handler
def keep(tx, record: Record[Event]):
    event = record.payload
    tx.execute(
        """
        INSERT INTO item VALUES (?1, ?2, ?3, ?4, ?5, 1, ?5 = 1)
        ON CONFLICT (po_item) DO UPDATE SET
          in_order = in_order + (excluded.version = version + 1), state = excluded.state, version = excluded.version,
          length = length + 1
        """,
        (event.po_item, event.purchase_order, event.tenant, event.activity, record.version),
    )


if __name__ == "__main__":
    with app:
        app.run()
