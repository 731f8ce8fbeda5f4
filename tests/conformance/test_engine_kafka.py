"""The engine suite on a real cluster of three brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from settled.engine import Engine
from settled.engines.kafka import KafkaEngine
from settled.testing import kafka
from settled.testing.engine_conformance import EngineConformance
from settled.testing.engine_tools import EngineFactory, eventually, topic_of

pytestmark = pytest.mark.xdist_group("kafka")


class TestKafkaEngine(EngineConformance):
    lease_s = 1.0  # the test cluster's group.min.session.timeout.ms
    retention: ClassVar[dict[str, Any]] = {}
    fetches_ahead_s = 3.0
    flows_while_giving_back = False  # librdkafka fetches nothing while a partition is being given back

    @pytest.fixture
    def engine_factory(self) -> Iterator[EngineFactory]:
        opened: list[KafkaEngine] = []

        def open_engine() -> KafkaEngine:
            opened.append(KafkaEngine(f"kafka://{kafka.bootstrap()}"))
            return opened[-1]

        yield open_engine
        for engine in opened:
            engine.close()

    def damage(self, engine: Engine, topic: str, partition: int, offset: int) -> None:
        pytest.skip("the brokers' files are not within reach")

    def remove(self, engine: Engine, topic: str, partition: int, before: int) -> None:
        client = AdminClient({"bootstrap.servers": kafka.bootstrap()})
        for future in client.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result()
        eventually(lambda: topic_of(engine).partitions[partition].begin == before, "the records are gone")
