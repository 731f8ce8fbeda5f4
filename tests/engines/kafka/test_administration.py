"""Topics, groups and positions on real brokers, and what people are told when something is missing."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from old_broker import old_broker

from settled.engine import Durability, TopicSpec
from settled.engines.kafka import KafkaEngine, topic_settings
from settled.engines.kafka.admin import Admin
from settled.engines.kafka.config import parse
from settled.errors import ContractError, Unavailable, Unsupported
from settled.testing.kafka import VARIABLE, bootstrap, cluster, unique
from waiting import until

pytestmark = [pytest.mark.xdist_group("kafka"), pytest.mark.timeout(180)]
QUIET = {"log_level": 0}


@pytest.fixture(scope="module")
def admin() -> Iterator[Admin]:
    opened = Admin(parse(f"kafka://{bootstrap()}", {}))
    yield opened
    opened.close()


@functools.cache
def raw() -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap(), **QUIET})


def made(name: str, **config: Any) -> str:
    """A topic that settled did not make. Its records are kept, however old their times say that they are."""
    partitions, replicas = config.pop("partitions", 1), config.pop("replicas", 1)
    config.setdefault("retention.ms", "-1")  # records of long ago stay
    settings = {"retention.ms": "-1", **config}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=settings)
    raw().create_topics([topic])[name].result(30)
    brokers = [AdminClient({"bootstrap.servers": one, **QUIET}) for one in bootstrap().split(",")]
    until(lambda: all(name in broker.list_topics(timeout=30).topics for broker in brokers))
    return name


def produced(topic: str, *records: tuple[int, int], **settings: Any) -> None:
    """Records, each with its partition and its time in milliseconds."""
    producer = Producer({"bootstrap.servers": bootstrap(), **QUIET, **settings})
    for partition, at in records:
        producer.produce(topic, b"v", partition=partition, timestamp=at)
    assert producer.flush(30) == 0


def test_a_topic_is_made_as_the_contract_wants_it(admin: Admin) -> None:
    name = unique("made")
    spec = TopicSpec(name=name, partitions=3, retention_s=3600, retention_bytes=3_000_000, max_message_bytes=5000)
    info = admin.ensure_topic(spec)
    assert (info.spec.partitions, info.spec.retention_s, info.spec.retention_bytes) == (3, 3600, 3_000_000)
    assert (info.spec.max_message_bytes, info.spec.replicas, info.spec.min_isr) == (5000, 3, 2)
    assert info.notes == ()
    assert [part.end for part in info.partitions] == [0, 0, 0]
    config = admin._configs([name])[name]
    assert config["retention.bytes"] == "1000000"  # Kafka counts per partition
    assert config["max.message.bytes"] == str(5000 + topic_settings.ROOM)
    assert config["message.timestamp.type"] == "LogAppendTime"
    again = admin.ensure_topic(TopicSpec(name=name, partitions=3, retention_s=60, min_isr=1))
    assert again.identity == info.identity
    assert (again.spec.retention_s, again.spec.retention_bytes, again.spec.min_isr) == (60, None, 1)
    assert again.spec.max_message_bytes == 5000  # left open, left as it is
    with pytest.raises(ContractError, match="has 3 partitions, not 6"):
        admin.ensure_topic(TopicSpec(name=name, partitions=6))


def test_replicas_that_the_cluster_does_not_have(admin: Admin) -> None:
    with pytest.raises(ContractError, match="INVALID_REPLICATION_FACTOR"):
        admin.ensure_topic(TopicSpec(name=unique("many"), replicas=9))
    with pytest.raises(ContractError, match="min_isr"):
        admin.ensure_topic(TopicSpec(name=unique("many"), replicas=2, min_isr=3))


def test_what_weakens_a_promise_is_noted(admin: Admin) -> None:
    name = made(unique("weak"), **{"cleanup.policy": "compact", "unclean.leader.election.enable": "true"})
    notes = " ".join(admin.topics([name])[0].notes)
    for word in ("CreateTime", "unclean", "compact"):
        assert word in notes


@pytest.mark.parametrize(
    ("config", "kept", "refused"),
    [
        ({"replicas": 3, "min.insync.replicas": "2"}, ("memory", "local", "committed"), {}),
        ({"replicas": 3, "min.insync.replicas": "1"}, ("memory",), {"local": "of which 1", "committed": "of which 1"}),
        ({"min.insync.replicas": "1"}, ("memory",), {"local": "1 replicas", "committed": "1 replicas"}),
        ({"min.insync.replicas": "1", "flush.messages": "1"}, ("memory", "local"), {"committed": "1 replicas"}),
        (
            {"replicas": 3, "min.insync.replicas": "2", "unclean.leader.election.enable": "true"},
            ("memory",),
            {"local": "unclean", "committed": "unclean"},
        ),
        ({"min.insync.replicas": "2"}, (), {"memory": "accepts nothing", "committed": "accepts nothing"}),
    ],
)
def test_a_durability_that_the_topic_cannot_keep_is_refused(
    admin: Admin, config: dict[str, Any], kept: tuple[Durability, ...], refused: dict[Durability, str]
) -> None:
    name = made(unique("kept"), **config)
    for durability in kept:
        admin.require_durability(name, durability)
    for durability, word in refused.items():
        with pytest.raises(ContractError, match=word) as told:
            admin.require_durability(name, durability)
        assert told.value.field == "producer.durability"
        assert told.value.hint


def test_b030_a_time_beyond_the_end_gives_the_end(admin: Admin) -> None:
    """Records at the times 1 to 10 in two of four partitions; empty partitions never fail."""
    name = made(unique("times"), partitions=4)
    produced(name, *((number % 2, number) for number in range(1, 11)))

    def left(ms: int) -> list[int]:
        ends = admin.positions.ends(name, range(4))
        return [ends[number] - admin.offset_at(name, number, ms * 1000) for number in range(4)]

    assert left(11) == [0, 0, 0, 0]
    assert left(5) == [3, 3, 0, 0]
    assert left(0) == [5, 5, 0, 0]
    assert admin.offset_at(name, 1, 4_001) == 2  # microseconds are rounded up to the next millisecond: 5, not 3


def test_positions_follow_what_is_removed(admin: Admin) -> None:
    """B042: the begin moves when records go; a read from before it begins there."""
    name = made(unique("gone"))
    produced(name, *((0, 1000 + number) for number in range(10)))
    before = admin.topics([name])[0].partitions[0]
    assert (before.begin, before.end, before.records, before.oldest_us) == (0, 10, 10, 1_000_000)
    raw().delete_records([TopicPartition(name, 0, 6)])[TopicPartition(name, 0, 6)].result(30)
    after = admin.topics([name])[0].partitions[0]
    assert (after.begin, after.end, after.records, after.oldest_us) == (6, 10, 4, 1_006_000)
    assert [message.offset() for message in admin.read(name, 0, 0)] == [6, 7, 8, 9]
    assert admin.read(name, 0, 10) == []


def test_an_open_transaction_is_beyond_the_end_and_an_aborted_one_holds_nothing(admin: Admin) -> None:
    name = made(unique("aborted"))
    writer = Producer({"bootstrap.servers": bootstrap(), "transactional.id": unique("tx"), **QUIET})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(name, b"never", partition=0)
    writer.flush(30)
    assert admin.positions.ends(name, [0]) == {0: 0}
    writer.abort_transaction(30)
    until(lambda: admin.positions.ends(name, [0]) == {0: 2})  # a record that is skipped, and a marker
    assert admin.read(name, 0, 0) == []


def test_groups_with_members_and_positions(admin: Admin) -> None:
    name, group = made(unique("read"), partitions=2), unique("group")
    produced(name, (0, 1), (0, 2), (1, 3))
    assert admin.groups(group) == []
    settings = {"bootstrap.servers": bootstrap(), "group.id": group, "client.id": "member-1", **QUIET}
    consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([name])
        assert len(consumer.consume(3, timeout=60)) == 3
        places = [TopicPartition(name, 0, 1), TopicPartition(name, 1, 1, metadata="epoch=7;clean=1")]
        consumer.commit(offsets=places, asynchronous=False)
        found = admin.groups(group)[0]
        assert [member.member for member in found.members] == ["member-1"]
        assert found.members[0].partitions == [(name, 0), (name, 1)]
        assert found.committed == {(name, 0): 1, (name, 1): 1}
        assert found.epochs == {(name, 0): 0, (name, 1): 7}
        assert group in [info.group for info in admin.groups()]
    finally:
        consumer.close()
    gone = admin.groups(group)[0]
    assert gone.members == []
    assert gone.committed == {(name, 0): 1, (name, 1): 1}


def test_growing(admin: Admin) -> None:
    name = made(unique("grow"), partitions=2)
    assert len(admin.grow_topic(name, 5).partitions) == 5
    assert len(admin.grow_topic(name, 5).partitions) == 5
    with pytest.raises(ContractError, match="cannot have 3"):
        admin.grow_topic(name, 3)


def test_what_is_not_there_is_named(admin: Admin) -> None:
    name = made(unique("there"))
    for call in (
        lambda: admin.read("nosuch", 0, 0),
        lambda: admin.offset_at("nosuch", 0, 0),
        lambda: admin.grow_topic("nosuch", 2),
        lambda: admin.require_durability("nosuch", "local"),
        lambda: admin.read(name, 1, 0),
    ):
        with pytest.raises(ContractError, match=r"no topic 'nosuch'|no partition 1"):
            call()
    assert admin.topics(["nosuch"]) == []
    assert "nosuch" not in raw().list_topics(timeout=30).topics  # looking did not make it


def test_no_broker_is_told_in_bounded_time() -> None:
    began = time.monotonic()
    lost = Admin(parse("kafka://127.0.0.1:1,127.0.0.1:2", {}), call_s=1.0)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2") as told:
        lost.connect()
    assert told.value.exit_code == 69
    assert time.monotonic() - began < 30
    lost.close()


def test_brokers_that_are_too_old_are_told_at_the_first_look() -> None:
    with old_broker() as address:
        old = Admin(parse(f"kafka://{address}", {}))
        with pytest.raises(Unsupported, match="too old") as told:
            old.connect()
        assert "2.8" in told.value.hint
        old.close()


# As people see it: the command, a user without rights, another contract.


def settled(folder: Path, url: str, *arguments: object, code: int) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    done = subprocess.run(
        [sys.executable, "-m", "settled", *map(str, arguments)],
        cwd=folder,
        env={**kept, "SETTLED_ENGINE": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a contract of a topic of its own, and three events."""
    topic = unique("orders")
    (tmp_path / "contract.yaml").write_text(
        f"name: {topic}\ntransport: {{topic: {topic}, partitions: 3, key: order_id, record_limit: 2kB}}\n"
        "producer: {batch: {bytes: 1kB}}\n"
    )
    events = [json.dumps({"order_id": f"o{number}", "sku": "lamp"}) for number in range(3)]
    (tmp_path / "events.jsonl").write_text("\n".join(events) + "\n")
    (tmp_path / "topic").write_text(topic)
    return tmp_path


def test_publish_and_describe_and_grow(folder: Path) -> None:
    url, topic = f"kafka://{bootstrap()}", (folder / "topic").read_text()
    settled(folder, url, "publish", "events.jsonl", code=0)
    described = json.loads(
        settled(folder, url, "topic", "describe", topic, "--contract", "contract.yaml", code=0).stdout
    )
    assert (described["records"], described["bytes"], described["differences"]) == (3, None, [])
    other = (folder / "contract.yaml").read_text().replace("partitions: 3", "partitions: 4, replicas: 2")
    (folder / "other.yaml").write_text(other + "retention: {age: 1h}\n")
    drift = settled(folder, url, "topic", "describe", topic, "--contract", "other.yaml", code=1)
    assert {each["field"]: each["found"] for each in json.loads(drift.stdout)["differences"]} == {
        "transport.partitions": "3",
        "transport.replicas": "3",
        "retention.age": "604800 s",
    }
    wrong = settled(folder, url, "publish", "events.jsonl", "--contract", "other.yaml", code=2)
    assert "has 3 partitions, not 4" in wrong.stderr
    refused = settled(folder, url, "topic", "grow", topic, "--partitions", 4, "--yes", code=3)
    assert "would move" in refused.stderr
    grown = settled(folder, url, "topic", "grow", topic, "--partitions", 4, "--review", "--yes", code=0)
    assert json.loads(grown.stdout)["review"]["keys"] == 3
    assert json.loads(settled(folder, url, "topic", "describe", topic, code=0).stdout)["partitions"] == 4


def test_a_record_above_the_limit_is_refused_with_both_sizes(folder: Path) -> None:
    (folder / "big.jsonl").write_text(json.dumps({"order_id": "o1", "sku": "x" * 3000}) + "\n")
    told = settled(folder, f"kafka://{bootstrap()}", "publish", "big.jsonl", code=1).stderr
    assert "2000" in told
    assert "above" in told


def limited() -> str:
    """The URL of a user without rights."""
    if os.environ.get(VARIABLE):
        pytest.skip("another cluster: it has no such user")
    said = cluster().limited
    return (
        f"kafka://{said['sasl.username']}:{said['sasl.password']}@{said['bootstrap.servers']}"
        f"?security.protocol={said['security.protocol']}&sasl.mechanism={said['sasl.mechanism']}"
    )


def allow(topic: str, *operations: AclOperation) -> None:
    """Give the user without rights some."""
    user = f"User:{cluster().limited['sasl.username']}"
    bindings = [
        AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, user, "*", operation, AclPermissionType.ALLOW
        )
        for operation in operations
    ]
    for future in raw().create_acls(bindings).values():
        future.result(30)


def test_missing_rights_come_with_the_acl_that_gives_them(folder: Path) -> None:
    url, topic = limited(), (folder / "topic").read_text()
    password = str(cluster().limited["sasl.password"])
    settled(folder, f"kafka://{bootstrap()}", "publish", "events.jsonl", code=0)
    blind = settled(folder, url, "publish", "events.jsonl", code=2)
    assert "no right to Describe" in blind.stderr
    assert f"--add --allow-principal User:limited --operation Describe --topic {topic}" in blind.stderr
    allow(topic, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    silent = settled(folder, url, "publish", "events.jsonl", code=2)
    assert f"--operation Write --topic {topic}" in silent.stderr
    allow(topic, AclOperation.WRITE)
    settled(folder, url, "publish", "events.jsonl", code=0)  # with the rights that the manual names
    examined = settled(folder, url, "doctor", "--contract", "contract.yaml", "-o", "table", code=1)
    assert f"no right to Read on topic {topic}" in examined.stdout
    for ran in (blind, silent, examined):
        assert password not in ran.stdout + ran.stderr


def test_a_wrong_password_is_told_at_once_and_not_shown(folder: Path) -> None:
    url = limited().replace(str(cluster().limited["sasl.password"]), "hunter2")
    told = settled(folder, url, "topic", "ls", code=2)
    assert "does not accept this login" in told.stderr
    assert "hunter2" not in told.stdout + told.stderr
    examined = settled(folder, url, "doctor", "-o", "table", code=1)
    assert "hunter2" not in examined.stdout + examined.stderr


def test_no_broker_ends_the_command_with_69(folder: Path) -> None:
    told = settled(folder, "kafka://127.0.0.1:1,127.0.0.1:2", "status", code=69)
    assert "127.0.0.1:1, 127.0.0.1:2" in told.stderr


def test_a_missing_topic_is_named(folder: Path) -> None:
    told = settled(folder, f"kafka://{bootstrap()}", "topic", "tail", "nosuch-topic", code=2)
    assert "no topic 'nosuch-topic'" in told.stderr


def test_a_queue_is_refused_with_the_reason_and_no_topic_is_made() -> None:
    engine = KafkaEngine(f"kafka://{bootstrap()}")
    name = unique("queue")
    with pytest.raises(Unsupported, match="share consumer") as told:
        engine.ensure_topic(TopicSpec(name=name, form="queue"))
    assert told.value.field == "transport.form"
    assert engine.topics([name]) == []
    engine.close()
