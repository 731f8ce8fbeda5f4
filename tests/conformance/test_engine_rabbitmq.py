"""The queue suite on a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rabbit_engines import rabbit_engines
from settled.testing.engine_tools import EngineFactory
from settled.testing.queue_conformance import QueueConformance

pytestmark = pytest.mark.xdist_group("rabbitmq")


class TestRabbitQueue(QueueConformance):
    lease_s = 2.0  # the shortest heartbeat is one second

    @pytest.fixture
    def engine_factory(self) -> Iterator[EngineFactory]:
        with rabbit_engines() as open_engine:
            yield open_engine
