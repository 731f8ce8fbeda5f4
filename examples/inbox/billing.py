"""What all three handlers share: a table of invoices beside settled's inbox, and one transaction for both."""

import sqlite3

import settled

settled.inbox.migrate("sqlite:///shop.db")  # or once, at deployment: settled store migrate --store sqlite:///shop.db


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect("shop.db")
    connection.execute("CREATE TABLE IF NOT EXISTS invoice (order_id TEXT, euros INTEGER)")
    return connection


def bill(event_id: str, order_id: str, euros: int) -> None:
    """The handler's work: an invoice for each event, however often the event is delivered."""
    connection = connect()
    with connection, settled.inbox.once(connection, consumer="billing", event_id=event_id) as first:
        if first:
            connection.execute("INSERT INTO invoice VALUES (?, ?)", (order_id, euros))
    connection.close()


def show() -> None:
    connection = connect()
    for order_id, euros in connection.execute("SELECT order_id, euros FROM invoice ORDER BY order_id"):
        print(order_id, euros)
    connection.close()
