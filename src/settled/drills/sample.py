"""The sample application of `settled drill`: an order comes in, goods are set aside. It has all that a user's has: a
set-up, a handler, rows in a table of its own, now and then a call outside."""

from __future__ import annotations

from settled.app import App
from settled.calls import external
from settled.drills import receiver
from settled.record import Record
from settled.store import Tx

app = App(topic="orders", group="reserve", transport={"partitions": 4}, external={"repeat": ["notify"]})


@app.setup
def tables(tx: Tx) -> None:
    tx.execute("CREATE TABLE IF NOT EXISTS reservation (event_id TEXT, order_key TEXT, place BIGINT)")


@app.handler
def reserve(tx: Tx, record: Record) -> None:
    key = None if record.key is None else record.key.decode()
    place = "(?, ?, ?)" if app.store.name == "sqlite" else "(%s, %s, %s)"
    tx.execute(f"INSERT INTO reservation VALUES {place}", (record.id, key, record.offset))
    if record.offset % 8 == 0:
        receiver.told(record.id, external(tx, "notify", lambda key: receiver.called(record.id, key)))
