"""Topics that brokers compact: made, adopted and described in settled's words, and worked on where holes are."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from settled import App
from settled.contract.load import from_mapping
from settled.engine import TopicSpec
from settled.engines.kafka import KafkaEngine
from settled.errors import ContractError
from settled.operations.findings import require_startable
from settled.operations.status import status
from settled.operations.topics import compare
from settled.record import Record
from settled.sqlite import open_connection
from settled.store import Tx
from settled.testing.kafka import bootstrap, unique
from waiting import until

pytestmark = [pytest.mark.xdist_group("kafka"), pytest.mark.timeout(240)]
SEGMENT_S = 0.2
EAGER = {  # a closed segment for what is older than this, and a cleaner that finds any of it worth its while
    "segment.ms": str(round(SEGMENT_S * 1000)),
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}


@pytest.fixture
def engine() -> Iterator[KafkaEngine]:
    engine = KafkaEngine(f"kafka://{bootstrap()}")
    yield engine
    engine.close()


@functools.cache
def client() -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap()})


def settings(topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = client().describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in found.items()}


def test_compaction_is_made_adopted_and_told(engine: KafkaEngine) -> None:
    spec = TopicSpec(name=unique("compacted"), compact=True, tombstone_s=90.0, retention_s=None)
    made = engine.ensure_topic(spec)
    assert (made.spec.compact, made.spec.tombstone_s, made.spec.pass_groups) == (True, 90.0, True)
    assert "latest record" in " ".join(made.notes)
    config = settings(spec.name)
    assert (config["cleanup.policy"], config["delete.retention.ms"]) == ("compact", "90000")
    bounded = TopicSpec(name=spec.name, compact=True, tombstone_s=60.0, retention_s=3600.0)
    told = {difference.field for difference in compare(bounded, made)}
    assert told == {"retention.tombstones", "retention.age"}
    engine.ensure_topic(bounded)
    until(lambda: not compare(bounded, engine.topics([spec.name])[0]))  # each broker hears of it in its time
    until(lambda: set(settings(spec.name)["cleanup.policy"].split(",")) == {"compact", "delete"})
    config = settings(spec.name)
    assert (config["delete.retention.ms"], config["retention.ms"]) == ("60000", "3600000")


def test_a_topic_of_others_is_compacted_from_now_on_and_never_told_to_stop(engine: KafkaEngine) -> None:
    name = unique("plain")
    client().create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(30)
    until(lambda: engine.topics([name]))
    assert not engine.topics([name])[0].spec.compact
    [difference] = [
        one for one in compare(TopicSpec(name=name, compact=True), engine.topics([name])[0]) if "compact" in one.field
    ]
    assert (difference.wanted, difference.found) == ("true", "false")
    engine.ensure_topic(TopicSpec(name=name, compact=True))
    until(lambda: engine.topics([name])[0].spec.compact)
    assert engine.ensure_topic(TopicSpec(name=name)).spec.compact
    until(lambda: settings(name)["cleanup.policy"] == "compact")


def test_a_contract_that_waits_for_groups_is_refused() -> None:
    waits = from_mapping({"name": "x", "retention": {"compact": True}})
    with pytest.raises(ContractError, match="pass_groups"):
        require_startable(waits, KafkaEngine.capabilities)
    passes = from_mapping({"name": "x", "retention": {"compact": True, "pass_groups": True}})
    require_startable(passes, KafkaEngine.capabilities)


def test_b002_survivors_run_and_nothing_lags(tmp_path: Path) -> None:
    app = App(
        topic=unique("b002"),
        group=unique("g"),
        engine=f"kafka://{bootstrap()}",
        store=f"sqlite:///{tmp_path}/effects.db",
        transport={"partitions": 1},
        retention={"compact": True, "pass_groups": True},
        poison={"owner": "tests"},
    )
    app.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS effects (event_id TEXT)"))

    @app.handler
    def insert(tx: Tx, record: Record) -> None:
        tx.execute("INSERT INTO effects VALUES (?)", (record.id,))

    with app:
        topic = app.contract.transport.topic
        app.publish(b"x", key="a", id="e0")
        app.drain()
        _alter(topic, EAGER)
        for number, key in enumerate("bacba", 1):
            app.publish(b"x", key=key, id=f"e{number}")
        closed = time.monotonic() + 3 * SEGMENT_S
        until(lambda: time.monotonic() > closed)
        app.publish(b"x", key="d", id="e6")  # the segment before it is closed now
        until(lambda: [one.offset for one in app.engine.read(topic, 0, 0)] == [3, 4, 5, 6], 120, every=0.2)
        [before] = status(app.engine, app.store, app.contract).consumers
        assert (before.lag_records, before.state) == (4, "behind")
        app.drain()
        [after] = status(app.engine, app.store, app.contract).consumers
        assert (after.lag_records, after.state, after.gaps) == (0, "settled", [])
        assert [part.frontier for part in after.partitions] == [7]
    connection = open_connection(tmp_path / "effects.db")
    assert [id for (id,) in connection.execute("SELECT event_id FROM effects ORDER BY rowid")] == [
        "e0",
        "e3",
        "e4",
        "e5",
        "e6",
    ]
    connection.close()


def _alter(topic: str, config: dict[str, Any]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client().incremental_alter_configs([resource])[resource].result(30)
    until(lambda: all(settings(topic)[name] == value for name, value in config.items()))
