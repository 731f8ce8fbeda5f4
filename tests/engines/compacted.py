"""What a compacted topic of the embedded log holds, read by the engine and behind its back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from settled.engines.sqlite import SqliteEngine
from settled.record import Record
from settled.sqlite import open_connection
from settled.testing.engine_tools import names, topic_of


def rows(path: Path, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    connection = open_connection(path)
    try:
        return list(connection.execute(sql, params))
    finally:
        connection.close()


def read_all(engine: SqliteEngine, partition: int = 0) -> list[Record]:
    return engine.read(names.topic, partition, 0, records=1_000_000)


def require_exact(engine: SqliteEngine, path: Path) -> None:
    """What is told of each partition is what is there."""
    for part in topic_of(engine).partitions:
        found = read_all(engine, part.partition)
        assert part.records == len(found)
        assert part.bytes == sum(record.size for record in found)
        [(stored,)] = rows(
            path,
            "SELECT coalesce(sum(length(payload)), 0) FROM log_batch b JOIN log_partition p ON p.id = b.part JOIN "
            "log_topic t ON t.id = p.topic WHERE t.name = ? AND p.number = ?",
            names.topic,
            part.partition,
        )
        assert part.stored_bytes == stored
        assert part.oldest_us == (found[0].accepted_us if found else part.oldest_us)
