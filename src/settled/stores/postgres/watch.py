"""Looking for endings in PostgreSQL, see `settled.stores.watching`: one query for all who wait."""

from __future__ import annotations

from collections.abc import Sequence

from settled.store import Asked, Seen
from settled.stores.postgres.link import Link
from settled.stores.watching import seen_from

_LOOK = (  # LIMIT keeps each part a search in an index, however the planner judges sizes
    "SELECT p.identity, p.frontier, i.outcome, i.place_id = p.id AND i.place_offset = a.place, q.number IS NOT NULL"
    " FROM unnest(CAST(? AS text[]), CAST(? AS text[]), CAST(? AS integer[]), CAST(? AS bigint[]), CAST(? AS text[]))"
    " WITH ORDINALITY AS a(consumer, topic, part, place, event, n)"
    " LEFT JOIN settled_consumer c ON c.name = a.consumer"
    " LEFT JOIN settled_topic t ON t.name = a.topic"
    " LEFT JOIN settled_frontier p ON p.consumer_id = c.id AND p.topic_id = t.id AND p.partition = a.part"
    " LEFT JOIN LATERAL (SELECT outcome, place_id, place_offset FROM settled_inbox"
    " WHERE consumer_id = c.id AND event_id = a.event LIMIT 1) i ON true"
    " LEFT JOIN LATERAL (SELECT number FROM settled_quarantine WHERE place_id = p.id AND place_offset = a.place"
    " AND state IN ('held', 'requested') LIMIT 1) q ON true"
    " ORDER BY a.n"
)


class PostgresWatch:
    """See `settled.stores.watching.Watch`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def changed(self) -> bool:
        return True

    def look(self, asked: Sequence[Asked]) -> list[Seen]:
        if not asked:
            return []
        columns = ("consumer", "topic", "partition", "offset", "event_id")
        arrays = [[getattr(each, column) for each in asked] for column in columns]
        return [seen_from(row) for row in self._link.rows(_LOOK, arrays)]

    def close(self) -> None:
        self._link.close()
