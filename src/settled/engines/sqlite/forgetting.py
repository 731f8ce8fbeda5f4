"""Forgetting a group that does not come back: its frontiers go, for which retention and compaction wait."""

from __future__ import annotations

import json
from collections.abc import Collection

from settled import clock
from settled.engines.sqlite.database import Connection, Database
from settled.forgetting import no_group, no_queue_of_a_group, still_at_work


def forget(database: Database, group: str, names: Collection[str] | None) -> dict[str, int]:
    """As `Forgetting.forget_group`. The group's name stays: a member whose lease ran out may come back, and joins
    anew."""
    with database.writing(durable=True) as connection:
        known = _topics(connection, group)
        chosen = set(known) if names is None else set(names)
        for name in sorted(chosen):
            if name not in known:
                raise no_group(group, name, known)
            _, topic, form = known[name]
            if form == "queue":
                raise no_queue_of_a_group(name)
            members = _members(connection, group, topic)
            if members:
                raise still_at_work(group, name, members)
        if not chosen:
            raise no_group(group, "", known)
        for name in chosen:
            number, topic, _ = known[name]
            connection.execute("DELETE FROM log_owner WHERE grp = ? AND topic = ?", (number, topic))
            connection.execute("DELETE FROM log_subscription WHERE grp = ? AND topic = ?", (number, topic))
    return dict.fromkeys(sorted(chosen), 0)


def _topics(connection: Connection, group: str) -> dict[str, tuple[int, int, str]]:
    """What it is subscribed to: the group's and the topic's number, and the topic's form."""
    rows = connection.execute(
        "SELECT t.name, g.id, t.id, t.form FROM log_group g JOIN log_subscription s ON s.grp = g.id JOIN log_topic t "
        "ON t.id = s.topic WHERE g.name = ?",
        (group,),
    )
    return {name: (number, topic, form) for name, number, topic, form in rows}


def _members(connection: Connection, group: str, topic: int) -> list[str]:
    rows = connection.execute(
        "SELECT m.name, m.topics FROM log_member m JOIN log_group g ON g.id = m.grp WHERE g.name = ? AND m.boot = ? "
        "AND m.expires_us > ?",
        (group, clock.boot_id(), clock.boot_us()),
    )
    return [name for name, topics in rows if topic in json.loads(topics)]
