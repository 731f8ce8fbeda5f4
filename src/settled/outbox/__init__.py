"""The outbox: messages written in the transaction that makes the row, and published by a relay.

    with connection.transaction():
        connection.execute("INSERT INTO orders ...")
        event = settled.outbox.publish(connection, {"sku": "lamp"}, topic="orders", key="o-1")
    seen = settled.outbox.token(event, topic="orders")      for a reader, see `settled.tokens`

`publish` and `add` do one insert on the caller's own transaction and talk to no broker. `relay.Relay` (or `settled
outbox relay`) publishes what was committed, in order per key, under the ids that the rows hold.
"""

from settled.outbox.adding import add, publish, token
from settled.outbox.pace import Pace
from settled.outbox.policy import RelayPolicy
from settled.outbox.relay import Relay

__all__ = ["Pace", "Relay", "RelayPolicy", "add", "publish", "token"]
