"""Django: an order and its event in one `transaction.atomic()`, a relay, and a reader who waits by the token.

Django keeps its SQLite file by Python's own library, so the relay runs in a process of its own (`settled outbox
relay`), as it would in production. Run it twice: nothing happens twice.
"""

import subprocess
import sys

import django
from django.conf import settings
from django.db import IntegrityError, connection, transaction

import settled
from settled import App

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}})
django.setup()
settled.inbox.migrate("sqlite:///shop.db")  # or once, at deployment: settled store migrate --store sqlite:///shop.db

packing = App(topic="orders", group="packing")


@packing.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS parcel (order_id TEXT)")


@packing.handler
def pack(tx, record):
    tx.execute("INSERT INTO parcel VALUES (?)", (record.key.decode(),))


def take_order(number: str, sku: str, *, declined: bool = False) -> str:
    """A view's work; returns the token for the redirect."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop_order VALUES (%s, %s)", (number, sku))
        event = settled.outbox.publish(connection, {"sku": sku}, topic="orders", key=number, id=f"ordered-{number}")
        if declined:
            raise ValueError("the card was declined")
    return settled.outbox.token(event, topic="orders")


def relay_once() -> None:
    command = [sys.executable, "-m", "settled", "outbox", "relay", "--drain", "--store", "sqlite:///shop.db"]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS shop_order (id TEXT PRIMARY KEY, sku TEXT)")
    with packing:
        packing.engine.topics()  # opened: the topic is there
        for number, sku, declined in (("o-1", "lamp", False), ("o-2", "desk", True)):
            seen = settled.outbox.token(f"ordered-{number}", topic="orders")
            try:
                seen = take_order(number, sku, declined=declined)
            except ValueError as error:
                print(number, "is not taken:", error)
                continue
            except IntegrityError:
                pass  # taken by the first run
            relay_once()
            packing.drain()
            print(number, "is packed:", packing.wait(seen, timeout=5).effect)
    connection.close()
