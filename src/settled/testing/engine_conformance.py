"""What every log engine must show. Subclass `EngineConformance`, supply `engine_factory` and `damage`:

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def engine_factory(self, tmp_path): ...   # a function; each call opens the same new log, by engine.url

        def damage(self, engine, topic, partition, offset): ...   # change a stored byte behind the engine's back

The fixture closes what it opened. Each test has a topic and a group of its own (`names`). What `engine.capabilities`
claims is tested both ways: kept if claimed, refused if not. Crashes and stalls are real: members run in processes of
their own and get SIGKILL and SIGSTOP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from settled.engine import Durability, Engine
from settled.errors import SettledError
from settled.testing.engine_compaction import CompactionCases
from settled.testing.engine_groups import GroupCases
from settled.testing.engine_producers import ProducerCases
from settled.testing.engine_records import RecordCases
from settled.testing.engine_tails import LogTailCases, TailCases
from settled.testing.engine_tools import EngineFactory, make_topic, message, names, places, producing, publish


class TailConformance(TailCases):
    """For a form with readers without a group, on an engine that keeps it in no log. Subclass it with the `form`."""

    @pytest.fixture(autouse=True)
    def own_names(self) -> Iterator[None]:
        names.fresh()
        yield
        names.plain()

    @pytest.fixture
    def engine(self, engine_factory: EngineFactory) -> Engine:
        return engine_factory()


class EngineConformance(RecordCases, ProducerCases, GroupCases, LogTailCases, CompactionCases):
    durability: ClassVar[Durability] = "local"  # of what the tests publish
    tells_offsets = True  # receipts say where a record stands

    @pytest.fixture(autouse=True)
    def own_names(self) -> Iterator[None]:
        names.fresh()
        names.durability, names.tells_offsets = self.durability, self.tells_offsets
        yield
        names.plain()

    @pytest.fixture
    def engine(self, engine_factory: EngineFactory) -> Engine:
        return engine_factory()

    def test_what_is_stored_outlives_the_engine(self, engine_factory: EngineFactory) -> None:
        first = engine_factory()
        make_topic(first, 2)
        sent = publish(first, map(message, range(20)))
        first.close()
        first.close()
        second = engine_factory()
        found = [one for number in range(2) for one in second.read(names.topic, number, 0)]
        assert places(found) == places(sent)
        with pytest.raises(SettledError):
            first.topics()

    def test_closing_the_engine_sends_what_is_buffered(self, engine_factory: EngineFactory) -> None:
        first = engine_factory()
        make_topic(first)
        pending = first.producer(producing(linger_s=3600.0)).send(message(1))
        first.close()
        assert pending.result(timeout=0).offset == names.offset(0)
        assert engine_factory().read(names.topic, 0, 0)[0].id == "e1"
