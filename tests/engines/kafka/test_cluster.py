"""The test cluster itself: real brokers that die, come back and can be cut off."""

import random
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from settled.drills.kafka_proxy import produces, proxied
from settled.errors import Refused
from settled.testing.kafka import bootstrap, cluster, own_cluster, unique
from settled.testing.kafka_cluster import Cluster
from waiting import until

pytestmark = [pytest.mark.xdist_group("kafka-cluster"), pytest.mark.timeout(240)]
QUIET = {"log_level": 0}


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    with own_cluster() as opened:
        yield opened


def make_topic(servers: str) -> str:
    name = unique("cluster")
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=3)])[name].result(30)
    until(lambda: name in admin.list_topics(timeout=10).topics)
    return name


def produce(servers: str, topic: str, value: bytes, **settings: object) -> list[object]:
    """Produce a record and wait for its end: an error or None."""
    ended: list[object] = []
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **QUIET, **settings})
    producer.produce(topic, value, on_delivery=lambda error, _: ended.append(error))
    producer.flush(60)
    return ended


def stored(servers: str, topic: str) -> int:
    """How many offsets the topic holds."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "look", **QUIET})
    try:
        begin, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        return int(end - begin)
    finally:
        consumer.close()


def test_a_killed_leader_is_followed_by_another_and_comes_back_in_sync(own: Cluster) -> None:
    topic = make_topic(own.bootstrap)
    until(lambda: own.in_sync(topic, 0) == {1, 2, 3}, 60)
    dead = own.leader(topic, 0)
    own.kill(dead)
    assert own.processes()[dead] == 0
    until(lambda: own.leader(topic, 0) not in (dead, -1), 60)
    assert produce(own.bootstrap, topic, b"while it is dead") == [None]
    own.start(dead)
    own.wait_ready()
    assert own.in_sync(topic, 0) == {1, 2, 3}
    assert stored(own.bootstrap, topic) == 1


def test_a_broker_that_is_stopped_hands_over_first(own: Cluster) -> None:
    topic = make_topic(own.bootstrap)
    stopped = until(lambda: max(own.leader(topic, 0), 0))
    own.stop(stopped)
    until(lambda: own.leader(topic, 0) not in (stopped, -1), 60)
    own.start(stopped)
    own.wait_ready()


def test_a_suspended_leader_is_given_up_and_returns(own: Cluster) -> None:
    topic = make_topic(own.bootstrap)
    silent = until(lambda: max(own.leader(topic, 0), 0))
    own.suspend(silent)
    try:
        until(lambda: own.leader(topic, 0) not in (silent, -1), 60)
    finally:
        own.resume(silent)
    own.wait_ready()


def test_all_share_one_cluster_and_nobody_harms_it() -> None:
    assert cluster() is cluster()
    with pytest.raises(Refused):
        cluster().kill(1)


def test_a_user_without_rights_is_told_so() -> None:
    topic = make_topic(cluster().bootstrap)
    settings = {name: value for name, value in cluster().limited.items() if name != "bootstrap.servers"}
    (error,) = produce(
        cluster().limited["bootstrap.servers"], topic, b"no", **{**settings, "enable.idempotence": False}
    )
    assert isinstance(error, KafkaError)
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_client_behind_the_proxies_can_be_cut_off_and_comes_back() -> None:
    topic = make_topic(cluster().bootstrap)
    with proxied(cluster(), random.Random(1)) as proxies:
        assert produce(proxies.bootstrap, topic, b"before") == [None]
        proxies.shut()
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": proxies.bootstrap, **QUIET}).list_topics(timeout=1)
        proxies.reopen()
        assert produce(proxies.bootstrap, topic, b"after") == [None]
    assert stored(cluster().bootstrap, topic) == 2


def test_what_is_held_back_arrives_when_it_is_released() -> None:
    topic = make_topic(cluster().bootstrap)
    ended: list[object] = []
    with proxied(cluster(), random.Random(1)) as proxies:
        producer = Producer({"bootstrap.servers": proxies.bootstrap, "enable.idempotence": True, **QUIET})
        producer.list_topics(topic, timeout=30)
        proxies.hold()
        producer.produce(topic, b"late", on_delivery=lambda error, _: ended.append(error))
        assert producer.flush(1) == 1
        proxies.release()
        assert producer.flush(60) == 0
    assert ended == [None]


def test_an_answer_that_is_cut_leaves_one_record() -> None:
    topic = make_topic(cluster().bootstrap)
    with proxied(cluster(), random.Random(1)) as proxies:
        proxies.cut_answers(1.0)
        producer = Producer({"bootstrap.servers": proxies.bootstrap, "enable.idempotence": True, **QUIET})
        producer.produce(topic, b"once")
        until(lambda: producer.flush(0.05) is not None and proxies.cuts > 0, 60)
        proxies.cut_answers(0.0)
        assert producer.flush(60) == 0
    assert stored(cluster().bootstrap, topic) == 1


def test_produce_requests_are_found_in_any_pieces() -> None:
    metadata = (10).to_bytes(4) + (3).to_bytes(2) + b"12345678"
    request = (10).to_bytes(4) + (0).to_bytes(2) + b"12345678"
    stream = metadata + request + metadata
    for size in range(1, len(stream) + 1):
        spot = produces()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        found = [at for at, piece in enumerate(pieces) if spot(piece)]
        assert found == [(len(metadata + request) - 1) // size]


def test_a_cluster_given_by_its_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTLED_TEST_KAFKA", "given:9092")
    assert bootstrap() == "given:9092"
