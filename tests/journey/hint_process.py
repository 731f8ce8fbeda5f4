"""A reader of hints in a process of its own (see test_notification): it keeps `cache` as `orders` is."""

from __future__ import annotations

import sys

from settled import App
from settled.record import Record
from settled.store import Tx


def made(topic: str, engine: str, store: str, **sections: object) -> App:
    """An app that copies orders, the authority, into the cache."""
    app = App(
        topic=topic,
        engine=engine,
        store=store,
        transport={"form": "notification", "version": "version", "partitions": 2},
        producer={"batch": {"time": "1ms"}},
        **sections,
    )

    @app.setup
    def tables(tx: Tx) -> None:
        for name in ("orders", "cache"):
            tx.execute(f"CREATE TABLE IF NOT EXISTS {name} (id TEXT PRIMARY KEY, version INTEGER)")

    return app


def refresh(tx: Tx, hint: Record) -> None:
    assert hint.key is not None
    key = hint.key.decode()
    tx.execute("INSERT OR REPLACE INTO cache SELECT id, version FROM orders WHERE id = ?", (key,))


def repair(tx: Tx) -> None:
    tx.execute("INSERT OR REPLACE INTO cache SELECT id, version FROM orders EXCEPT SELECT id, version FROM cache")


if __name__ == "__main__":
    app = made(*sys.argv[1:4])
    app.handler(refresh)
    app.sweep(3600)(repair)
    with app:
        app.run()
