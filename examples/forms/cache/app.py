"""A cache invalidation is a notification: a hint may be lost, a newer one makes the older ones worthless, and the truth
is in the shop's own table. A periodic sweep repairs what no hint told of.
"""

import threading
from pathlib import Path

import apsw

from settled import App

app = App(Path(__file__).with_name("contract.yaml"))
CACHE = {}  # of this process: sku -> (version, euros)


@app.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS product (sku TEXT PRIMARY KEY, version INTEGER, euros INTEGER)")


@app.handler
def look_again(tx, hint):
    """The hint has no authority: read what is true now. It is at least as new as the hint says."""
    for sku, version, euros in tx.execute("SELECT * FROM product WHERE sku = ?", (hint.key.decode(),)).fetchall():
        CACHE[sku] = (version, euros)


@app.sweep(every="200ms")  # in production minutes: how long a lost hint may matter
def repair(tx):
    for sku, version, euros in tx.execute("SELECT * FROM product").fetchall():
        if CACHE.get(sku, (0, 0))[0] < version:
            CACHE[sku] = (version, euros)


def change(sku, version, euros, *, told=True):
    """The shop: its own transaction first, then the hint."""
    shop = apsw.Connection("settled-effects.db")
    shop.set_busy_timeout(10_000)
    shop.execute("INSERT OR REPLACE INTO product VALUES (?, ?, ?)", (sku, version, euros))
    shop.close()
    if told:
        app.publish(key=sku, version=version)


if __name__ == "__main__":
    with app:
        watcher = app.watcher()  # `settled run app.py` in a process of its own
        thread = threading.Thread(target=watcher.run)
        thread.start()
        try:
            for version in range(1, 51):
                change("lamp", version, 20 + version)
            change("desk", 1, 120)
            change("sofa", 1, 900, told=False)  # the shop died before it told
            pause = threading.Event()
            while CACHE != {"lamp": (50, 70), "desk": (1, 120), "sofa": (1, 900)}:
                pause.wait(0.01)
        finally:
            watcher.stop()
            thread.join()
    for sku, (version, euros) in sorted(CACHE.items()):
        print(sku, "version", version, "at", euros)
