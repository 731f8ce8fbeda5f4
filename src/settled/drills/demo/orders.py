"""Mercury's app, as the demo runs it: the contract of `examples/mercury`, and one reservation per order version.

The reservation table has no unique constraint on purpose: an effect that were made twice would be seen twice.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from settled.app import App
from settled.drills.demo.stream import Payload
from settled.record import Record
from settled.store import Tx

# What differs from the contract, so that a take-over is seen within seconds: when the dead worker is noticed, and how
# many records of each of its partitions run one by one because one of them may have killed it.
IN_A_HURRY = {"lease": "2s", "effect_tail": "1s", "group_size": {"records": 250}}
EFFECTS, LOG = "effects.db", "log.db"
TABLE = """
CREATE TABLE IF NOT EXISTS reservation (
  made INTEGER PRIMARY KEY,  -- rises with each row: the order in which reservations were made
  order_id TEXT NOT NULL,
  reservation_version INTEGER NOT NULL,
  event_id TEXT NOT NULL,
  state TEXT NOT NULL,
  sku TEXT NOT NULL,
  quantity INTEGER NOT NULL
) STRICT
"""


def set_up(tx: Tx) -> None:
    tx.execute(TABLE)


def reserve(tx: Tx, record: Record[Payload]) -> None:
    order = record.payload
    tx.execute(
        "INSERT INTO reservation (order_id, reservation_version, event_id, state, sku, quantity)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (order.order_id, order.reservation_version, record.id, record.type, order.sku, order.quantity),
    )


def app_in(folder: Path, kind: type[App] = App) -> App:
    """The app with its log and its effects in `folder`; `kind` for an App that watches itself."""
    with resources.as_file(resources.files(__package__) / "contract.yaml") as contract:
        app = kind(
            contract,
            engine=f"sqlite:///{folder / LOG}",
            store=f"sqlite:///{folder / EFFECTS}",
            delivery=IN_A_HURRY,
        )
    app.setup(set_up)
    app.handler(reserve)
    return app
