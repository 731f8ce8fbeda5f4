"""The engine suite on the embedded log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.engine import Engine
from settled.engines.sqlite import SqliteEngine
from settled.sqlite import open_connection
from settled.testing.engine_conformance import EngineConformance
from settled.testing.engine_tools import EngineFactory


class TestSqliteEngine(EngineConformance):
    @pytest.fixture
    def engine_factory(self, tmp_path: Path) -> Iterator[EngineFactory]:
        opened: list[SqliteEngine] = []

        def open_engine() -> SqliteEngine:
            opened.append(SqliteEngine(f"sqlite:///{tmp_path}/log.db"))
            return opened[-1]

        yield open_engine
        for engine in opened:
            engine.close()

    def damage(self, engine: Engine, topic: str, partition: int, offset: int) -> None:
        connection = open_connection(engine.url.removeprefix("sqlite:///"))
        seq, payload = connection.execute(
            "SELECT seq, payload FROM log_batch WHERE base <= ? AND part = (SELECT p.id FROM log_partition p JOIN "
            "log_topic t ON t.id = p.topic WHERE t.name = ? AND p.number = ?) ORDER BY base DESC LIMIT 1",
            (offset, topic, partition),
        ).fetchall()[0]
        assert isinstance(payload, bytes)
        middle = len(payload) // 2
        changed = payload[:middle] + bytes([payload[middle] ^ 1]) + payload[middle + 1 :]
        connection.execute("UPDATE log_batch SET payload = ? WHERE seq = ?", (changed, seq))
        connection.close()
