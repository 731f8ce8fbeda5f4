"""What the effect database says, held against what was foretold. Nothing here asks the runtime how it fared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import apsw
import msgspec

from settled.drills.demo.stream import Foretold

Row = tuple[str, int, str]  # order id, version, event id


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's report; `-o json` prints exactly these.

    delivered, redelivered   records handed to workers, and how many of them not for the first time
    applied                  rows in the reservation table
    duplicates, stale        messages that came again, or after a later version, and made no row
    lost                     messages that should have made a row and made none
    doubled                  rows beyond the first of a message
    order_violations         rows made after one of the same order with the same or a later version
    """

    published: int
    delivered: int
    redelivered: int
    applied: int
    duplicates: int
    stale: int
    lost: int
    doubled: int
    order_violations: int
    seconds: float
    effects_per_second: float

    @property
    def good(self) -> bool:
        return not (self.lost or self.doubled or self.order_violations)


def rows_in(effects: Path) -> list[Row]:
    """The reservations in the order in which they were made, read over a connection of our own."""
    connection = apsw.Connection(str(effects), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(connection.execute("SELECT order_id, reservation_version, event_id FROM reservation ORDER BY made"))
    finally:
        connection.close()


def judge(foretold: Foretold, rows: Iterable[Row], *, handed: tuple[int, int], seconds: float) -> Verdict:
    """Compare the rows with what was foretold."""
    rows = list(rows)
    made = Counter(event_id for _, _, event_id in rows)
    doubled = len(rows) - len(made)
    return Verdict(
        published=foretold.published,
        delivered=handed[0],
        redelivered=handed[1],
        applied=len(rows),
        duplicates=max(0, foretold.duplicates - doubled),
        stale=sum(event_id not in made for event_id in foretold.stale),
        lost=sum(event_id not in made for event_id in foretold.applied),
        doubled=doubled,
        order_violations=_out_of_order(rows),
        seconds=round(seconds, 3),
        effects_per_second=round(len(rows) / seconds, 1) if seconds else 0.0,
    )


def _out_of_order(rows: list[Row]) -> int:
    """Rows whose version is not above all of their order before; a second row of one event is doubled, not counted."""
    highest: dict[str, int] = {}
    seen: set[str] = set()
    found = 0
    for order_id, version, event_id in rows:
        if event_id in seen:
            continue
        seen.add(event_id)
        found += version <= highest.get(order_id, 0)
        highest[order_id] = max(version, highest.get(order_id, 0))
    return found
