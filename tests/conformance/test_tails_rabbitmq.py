"""The suite of readers without a group on a real node, for the forms that RabbitMQ keeps in exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rabbit_engines import rabbit_engines
from settled.engine import ConsumerGroup, Engine
from settled.testing.engine_conformance import TailConformance
from settled.testing.engine_tools import EngineFactory, names

pytestmark = pytest.mark.xdist_group("rabbitmq")


class RabbitTails(TailConformance):
    @pytest.fixture
    def engine_factory(self) -> Iterator[EngineFactory]:
        with rabbit_engines() as open_engine:
            yield open_engine


class TestRabbitNotification(RabbitTails):
    form = "notification"
    groups = False


class TestRabbitPubSub(RabbitTails):
    form = "pubsub"

    def _make(self, engine: Engine, partitions: int = 1, **fields: Any) -> None:
        super()._make(engine, partitions, **fields)
        group = ConsumerGroup(group=names.group, topics=(names.topic,), ordered=partitions == 1)
        engine.consumer(group).close()  # its subscription takes what nobody listens to
