"""The outbox: messages written in the transaction that makes the row, and published by a relay.

    with connection.transaction():
        connection.execute("INSERT INTO orders ...")
        settled.outbox.publish(connection, {"sku": "lamp"}, topic="orders", key="o-1")

`publish` and `add` do one insert on the caller's own transaction and talk to no broker. `relay.Relay` (or `settled
outbox relay`) publishes what was committed, in order per key, under the ids that the rows hold.
"""

from settled.outbox.adding import add, publish
from settled.outbox.pace import Pace
from settled.outbox.relay import Relay, RelayPolicy

__all__ = ["Pace", "Relay", "RelayPolicy", "add", "publish"]
