"""The queue suite on the embedded log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.engines.sqlite import SqliteEngine
from settled.testing.engine_tools import EngineFactory
from settled.testing.queue_conformance import QueueConformance


class TestSqliteQueue(QueueConformance):
    @pytest.fixture
    def engine_factory(self, tmp_path: Path) -> Iterator[EngineFactory]:
        opened: list[SqliteEngine] = []

        def open_engine() -> SqliteEngine:
            opened.append(SqliteEngine(f"sqlite:///{tmp_path}/log.db"))
            return opened[-1]

        yield open_engine
        for engine in opened:
            engine.close()
