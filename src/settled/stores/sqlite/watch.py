"""Looking for endings in a SQLite file, see `settled.stores.watching`."""

from __future__ import annotations

from collections.abc import Sequence

from settled.store import Asked, Seen
from settled.stores.sqlite.handle import Handle
from settled.stores.watching import seen_from

_LOOK = (
    "SELECT p.identity, p.frontier, i.outcome, i.place_id = p.id AND i.place_offset = ?4, q.number IS NOT NULL"
    " FROM settled_consumer c"
    " LEFT JOIN settled_topic t ON t.name = ?2"
    " LEFT JOIN settled_frontier p ON p.consumer_id = c.id AND p.topic_id = t.id AND p.partition = ?3"
    " LEFT JOIN settled_inbox i ON i.consumer_id = c.id AND i.event_id = ?5"
    " LEFT JOIN settled_quarantine q ON q.place_id = p.id AND q.place_offset = ?4 AND q.state IN ('held', 'requested')"
    " WHERE c.name = ?1"
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
