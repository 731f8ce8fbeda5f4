"""The engine suite on streams of a real node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from rabbit_engines import rabbit_engines
from settled.engine import Durability, Engine
from settled.testing.engine_conformance import EngineConformance
from settled.testing.engine_tools import EngineFactory

pytestmark = pytest.mark.xdist_group("rabbitmq")


class TestRabbitLog(EngineConformance):
    lease_s = 2.0  # the shortest heartbeat is one second
    durability: ClassVar[Durability] = "memory"  # one node, which does not sync streams
    tells_offsets = False  # AMQP's confirms do not
    batches = False
    takes_on_retention = False  # a stream keeps the arguments that it was made with
    removes_exactly = False
    fetches_ahead_s = 3.0

    @pytest.fixture
    def engine_factory(self) -> Iterator[EngineFactory]:
        with rabbit_engines() as open_engine:
            yield open_engine

    def damage(self, engine: Engine, topic: str, partition: int, offset: int) -> None:
        pytest.skip("the nodes' files are not within reach")
