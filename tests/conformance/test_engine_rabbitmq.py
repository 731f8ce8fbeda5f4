"""The queue suite on a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from settled.engines.rabbitmq import RabbitEngine
from settled.testing import rabbitmq
from settled.testing.engine_tools import EngineFactory
from settled.testing.queue_conformance import QueueConformance

pytestmark = pytest.mark.xdist_group("rabbitmq")


class TestRabbitQueue(QueueConformance):
    lease_s = 2.0  # the shortest heartbeat is one second

    @pytest.fixture
    def engine_factory(self) -> Iterator[EngineFactory]:
        opened: list[RabbitEngine] = []

        def open_engine() -> RabbitEngine:
            opened.append(RabbitEngine(rabbitmq.url()))
            return opened[-1]

        yield open_engine
        for engine in opened:
            engine.close()
