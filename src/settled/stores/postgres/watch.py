"""Looking for endings in PostgreSQL, see `settled.stores.watching`: one query for all who wait."""

from __future__ import annotations

from collections.abc import Sequence

from settled.store import Asked, Seen
from settled.stores.postgres.link import Link
from settled.stores.watching import FOUND, SEEN, seen_from

_LOOK = (
    f"SELECT {SEEN} FROM unnest(CAST(? AS text[]), CAST(? AS text[]), CAST(? AS integer[]), CAST(? AS bigint[]),"
    " CAST(? AS text[])) WITH ORDINALITY AS a(consumer, topic, part, place, event, n)"
    f" LEFT JOIN settled_consumer c ON c.name = a.consumer{FOUND} ORDER BY a.n"
)
for _name, _column in (("topic", "topic"), ("partition", "part"), ("offset", "place"), ("event_id", "event")):
    _LOOK = _LOOK.replace(f"{{{_name}}}", f"a.{_column}")


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
