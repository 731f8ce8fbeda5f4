"""Topics and their partitions: made, grown, described."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

import msgspec

from settled.engine import Form, PartitionInfo, TopicInfo, TopicSpec
from settled.engines.sqlite import pool
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.encoding import chain_start
from settled.errors import ContractError
from settled.partition import other_number
from settled.record import checked_name

MAX_PARTITIONS = 1024
_US = 1_000_000


class Topic(msgspec.Struct, frozen=True):
    """A topic as appends and reads need it. `parts` are the row ids of its partitions, by number."""

    id: int
    name: str
    identity: str
    max_message_bytes: int
    parts: tuple[int, ...]
    raw_identity: bytes
    queue: bool = False


def find(connection: Connection, name: str, limit: int) -> Topic | None:
    rows = connection.execute(
        "SELECT id, identity, max_message_bytes, form FROM log_topic WHERE name = ?", (name,)
    ).fetchall()
    if not rows:
        return None
    topic, identity, own_limit, form = rows[0]
    parts = connection.execute("SELECT id FROM log_partition WHERE topic = ? ORDER BY number", (topic,)).fetchall()
    return Topic(
        topic,
        name,
        identity,
        own_limit or limit,
        tuple(part for (part,) in parts),
        uuid.UUID(identity).bytes,
        form == "queue",
    )


def require(database: Database, name: str, limit: int) -> Topic:
    """The topic, or ContractError."""
    checked_name("topic", name)
    with database.reading() as connection:
        found = find(connection, name, limit)
    if found is None:
        raise ContractError(f"there is no topic {name!r}", field="topic", value=name, hint="create it first")
    return found


def ensure(database: Database, spec: TopicSpec, limit: int) -> TopicInfo:
    """Durable when it returns. A spec that is in force already writes nothing."""
    _check(spec, limit)
    spec = msgspec.structs.replace(spec, replicas=None, min_isr=None)  # there is one copy of the log
    with database.reading() as connection:
        found = _describe(connection, spec.name)
    if not found or found[0].spec != spec:
        with database.writing(durable=True) as connection:
            found = _describe(connection, spec.name)
            if not found:
                _create(connection, spec)
            elif _fits(found[0].spec, spec):
                connection.execute(
                    "UPDATE log_topic SET retention_us = ?, retention_bytes = ?, max_message_bytes = ?, form = ?, "
                    "compact = ?, tombstone_us = ?, pass_groups = ? WHERE name = ?",
                    (*_settings(spec), spec.name),
                )
                connection.execute("UPDATE log_meta SET topics = topics + 1")
            found = _describe(connection, spec.name)
    if found[0].spec.partitions != spec.partitions:
        there = found[0].spec
        raise other_number(spec.name, there.partitions, spec.partitions, queue=there.form == "queue")
    if not _fits(found[0].spec, spec):
        raise ContractError(
            f"topic {spec.name!r} has the form {found[0].spec.form}, not {spec.form}",
            field="form",
            value=spec.form,
            hint="a queue keeps its records otherwise than a log: give the other form a topic of its own",
        )
    return found[0]


def _fits(there: TopicSpec, spec: TopicSpec) -> bool:
    """Whether the topic can take on the spec. Forms that read a log share it; a queue is another thing."""
    return there.partitions == spec.partitions and (there.form == "queue") == (spec.form == "queue")


def grow(database: Database, name: str, partitions: int) -> None:
    """Add partitions; durable when it returns. Keys may map to other partitions from now on."""
    with database.writing(durable=True) as connection:
        found = _describe(connection, name)
        if not found:
            raise ContractError(f"there is no topic {name!r}", field="topic", value=name, hint="create it first")
        before = found[0].spec.partitions
        if not before <= partitions <= MAX_PARTITIONS:
            raise ContractError(
                f"topic {name!r} has {before} partitions and cannot have {partitions}",
                field="partitions",
                value=partitions,
                hint=f"a topic can only grow, up to {MAX_PARTITIONS} partitions",
            )
        topic, identity = connection.execute("SELECT id, identity FROM log_topic WHERE name = ?", (name,)).fetchall()[0]
        _add_partitions(connection, topic, identity, range(before, partitions))
        connection.execute("UPDATE log_topic SET partitions = ? WHERE name = ?", (partitions, name))
        connection.execute("UPDATE log_meta SET topics = topics + 1")


def describe(database: Database, names: Collection[str] | None = None) -> list[TopicInfo]:
    """All topics, or those named that are there, in one snapshot."""
    with database.reading() as connection:
        if names is None:
            return _describe(connection, None)
        return [info for name in sorted(names) for info in _describe(connection, name)]


def _describe(connection: Connection, name: str | None) -> list[TopicInfo]:
    topics = connection.execute(
        "SELECT id, name, identity, partitions, retention_us, retention_bytes, max_message_bytes, form, compact, "
        "tombstone_us, pass_groups FROM log_topic "
        "WHERE ?1 IS NULL OR name = ?1 ORDER BY name",
        (name,),
    ).fetchall()
    return [_info(connection, *row) for row in topics]


def _info(connection: Connection, topic: int, name: str, identity: str, count: int, *bounds: Any) -> TopicInfo:
    spec = _spec(name, count, *bounds)
    if spec.form == "queue":
        queue, slots = pool.describe(connection, topic, count)
        return TopicInfo(spec=spec, identity=identity, partitions=slots, queue=queue)
    rows = connection.execute(
        "SELECT number, begin, next, records, bytes, stored, (SELECT coalesce(first_us, accepted_us) FROM "
        "log_batch WHERE part = p.id AND kept IS NOT 0 ORDER BY base LIMIT 1) FROM log_partition p WHERE topic = ? "
        "ORDER BY number",
        (topic,),
    ).fetchall()
    infos = [
        PartitionInfo(
            partition=number, begin=begin, end=end, records=records, bytes=size, stored_bytes=held, oldest_us=oldest
        )
        for number, begin, end, records, size, held, oldest in rows
    ]
    return TopicInfo(spec=spec, identity=identity, partitions=infos)


def _spec(
    name: str,
    partitions: int,
    age_us: int | None,
    stored: int | None,
    limit: int | None,
    form: Form,
    compact: int,
    tombstone_us: int,
    pass_groups: int,
) -> TopicSpec:
    return TopicSpec(
        name=name,
        partitions=partitions,
        retention_s=None if age_us is None else age_us / _US,
        retention_bytes=stored,
        max_message_bytes=limit,
        form=form,
        compact=bool(compact),
        tombstone_s=tombstone_us / _US,
        pass_groups=bool(pass_groups),
    )


def _create(connection: Connection, spec: TopicSpec) -> None:
    identity = str(uuid.uuid4())
    rows = connection.execute(
        "INSERT INTO log_topic (name, identity, partitions, retention_us, retention_bytes, max_message_bytes, form, "
        "compact, tombstone_us, pass_groups) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
        (spec.name, identity, spec.partitions, *_settings(spec)),
    ).fetchall()
    _add_partitions(connection, rows[0][0], identity, range(spec.partitions))
    connection.execute("UPDATE log_meta SET topics = topics + 1")


def _settings(spec: TopicSpec) -> tuple[Any, ...]:
    """What an existing topic takes on, in the order of its columns."""
    return (
        _to_us(spec.retention_s),
        spec.retention_bytes,
        spec.max_message_bytes,
        spec.form,
        spec.compact,
        round(spec.tombstone_s * _US),
        spec.pass_groups,
    )


def _add_partitions(connection: Connection, topic: int, identity: str, numbers: range) -> None:
    connection.executemany(
        "INSERT INTO log_partition (topic, number, begin, next, chain, accepted_us, records, bytes, stored, reserved) "
        "VALUES (?, ?, 0, 0, ?, 0, 0, 0, 0, 0)",
        [(topic, number, chain_start(uuid.UUID(identity).bytes, number)) for number in numbers],
    )


def _check(spec: TopicSpec, limit: int) -> None:
    checked_name("topic", spec.name)
    faults = [
        ("partitions", spec.partitions, 1 <= spec.partitions <= MAX_PARTITIONS, f"from 1 to {MAX_PARTITIONS}"),
        ("retention_s", spec.retention_s, spec.retention_s is None or spec.retention_s > 0, "above 0, or none"),
        ("tombstone_s", spec.tombstone_s, spec.tombstone_s >= 0, "0 or more"),
        ("retention_bytes", spec.retention_bytes, (spec.retention_bytes or 1) > 0, "above 0, or none"),
        (
            "max_message_bytes",
            spec.max_message_bytes,
            0 < (spec.max_message_bytes or limit) <= limit,
            f"from 1 to {limit}, the engine's own limit",
        ),
    ]
    for field, value, good, wanted in faults:
        if not good:
            raise ContractError(
                f"topic {spec.name!r}: {field} is {value}", field=field, value=value, hint=f"give {wanted}"
            )


def _to_us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * _US)
