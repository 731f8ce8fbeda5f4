"""The suite of readers without a group on a real node, for the forms that RabbitMQ keeps in exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from settled.engine import ConsumerGroup, Engine
from settled.engines.rabbitmq import RabbitEngine
from settled.testing import rabbitmq
from settled.testing.engine_conformance import TailConformance
from settled.testing.engine_tools import EngineFactory, names

pytestmark = pytest.mark.xdist_group("rabbitmq")


class RabbitTails(TailConformance):
    @pytest.fixture
    def engine_factory(self) -> Iterator[EngineFactory]:
        opened: list[RabbitEngine] = []

        def open_engine() -> RabbitEngine:
            opened.append(RabbitEngine(rabbitmq.url()))
            return opened[-1]

        yield open_engine
        for engine in opened:
            engine.close()


class TestRabbitNotification(RabbitTails):
    form = "notification"
    groups = False


class TestRabbitPubSub(RabbitTails):
    form = "pubsub"

    def _make(self, engine: Engine, partitions: int = 1, **fields: Any) -> None:
        super()._make(engine, partitions, **fields)
        group = ConsumerGroup(group=names.group, topics=(names.topic,), ordered=partitions == 1)
        engine.consumer(group).close()  # its subscription takes what nobody listens to
