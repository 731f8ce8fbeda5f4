"""Looking for endings in a SQLite file, see `settled.stores.watching`."""

from __future__ import annotations

from collections.abc import Sequence

from settled.store import Asked, Seen
from settled.stores.sqlite.handle import Handle
from settled.stores.watching import FOUND, SEEN, seen_from

_LOOK = (
    f"SELECT {SEEN} FROM settled_consumer c{FOUND} WHERE c.name = ?1".replace("{topic}", "?2")
    .replace("{partition}", "?3")
    .replace("{offset}", "?4")
    .replace("{event_id}", "?5")
)


class SqliteWatch:
    """See `settled.stores.watching.Watch`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._version = -1

    def changed(self) -> bool:
        """SQLite counts the commits of others; asking reads no page."""
        [(version,)] = self._handle.rows("PRAGMA data_version")
        before, self._version = self._version, version
        return bool(before != version)

    def look(self, asked: Sequence[Asked]) -> list[Seen]:
        return [self._look(each) for each in asked]

    def _look(self, asked: Asked) -> Seen:
        place = (asked.consumer, asked.topic, asked.partition, asked.offset, asked.event_id)
        rows = self._handle.rows(_LOOK, place)
        return seen_from(rows[0]) if rows else Seen()

    def close(self) -> None:
        self._handle.close()
