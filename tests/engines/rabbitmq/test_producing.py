"""The producer: what is confirmed is there, what is not is said, whatever happens to the connection meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import address, channel, delete, put
from yard import Yard

from settled.app import App
from settled.drills.proxy import Proxy
from settled.engine import Producer, ProducerSpec, TopicSpec
from settled.engines.rabbitmq import RabbitEngine
from settled.errors import ContractError, Unavailable
from settled.outbox.policy import RelayPolicy
from settled.record import Record
from settled.store import Tx
from settled.testing import rabbitmq
from settled.testing.engine_tools import DEADLINE_S, eventually, message, names, publish
from settled.testing.queue_tools import QueueMember, make_queue, ready
from waiting import until

pytestmark = pytest.mark.xdist_group("rabbitmq")


@pytest.fixture
def engine() -> Iterator[RabbitEngine]:
    names.fresh()
    opened = RabbitEngine(rabbitmq.url())
    yield opened
    opened.close()
    names.plain()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    opened = Proxy(address(), random.Random(1))
    yield opened
    opened.close()


def through(proxy: Proxy, query: str = "") -> RabbitEngine:
    return RabbitEngine(f"rabbitmq://guest:guest@127.0.0.1:{proxy.port}/{query}")


def test_an_unroutable_message_fails_and_the_others_do_not(engine: RabbitEngine) -> None:
    """B014: the queue goes away under a producer that knows it."""
    make_queue(engine, 2)
    engine.ensure_topic(TopicSpec(name=f"{names.topic}-2", form="queue", partitions=2))
    producer = engine.producer(ProducerSpec())
    producer.send(message(0)).result(DEADLINE_S)
    delete(names.topic)
    sent = [producer.send(message(n, topic=names.topic if n % 2 else f"{names.topic}-2")) for n in range(10)]
    with pytest.raises(ContractError, match="5 messages"):
        producer.flush()
    for number, pending in enumerate(sent):
        if number % 2:
            with pytest.raises(ContractError, match="unroutable"):
                pending.result(0)
        else:
            assert pending.result(0).id == f"e{number}"
    make_queue(engine, 2)
    producer.send(message(1)).result(DEADLINE_S)
    producer.close()
    assert ready(engine) == 1


def test_an_outbox_row_waits_until_there_is_a_queue(tmp_path: Path) -> None:
    """B014: the relay's refusal leaves the row where it is, with the reason; later it arrives once."""
    yard = Yard(tmp_path, rabbitmq.url())

    def passes_on(tx: Tx, record: Record) -> None:
        tx.publish(b"v", topic=f"{yard.topic}-out", id=f"out-{record.id}")

    app = yard.app(passes_on)
    out = TopicSpec(name=f"{yard.topic}-out", form="queue", partitions=2)
    app.engine.ensure_topic(out)
    outbox = app.store.outbox
    relay = app.relay(policy=RelayPolicy(first_s=0.2, most_s=0.2, attempts=1000))
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        with yard.working(app):
            yard.publish(["e1"])
            until(lambda: _ready(app, out.name) == 1)
            delete(out.name)
            yard.publish(["e2"])
            until(lambda: outbox.status().failing == 1)
            (row,) = outbox.rows()
            assert (row.message.id, "unroutable" in row.error) == ("out-e2", True)
            app.engine.ensure_topic(out)
            until(lambda: _ready(app, out.name) == 1)
            until(lambda: outbox.status().failing + outbox.status().pending == 0)
    finally:
        relay.stop()
        thread.join(DEADLINE_S)
        yard.close()


def _ready(app: App, topic: str) -> int:
    (info,) = app.engine.topics([topic])
    assert info.queue is not None
    return info.queue.ready


def test_a_message_that_is_not_stored_is_said_so(engine: RabbitEngine) -> None:
    with channel() as opened:
        limited = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
        opened.queue_declare(names.topic, durable=True, arguments=limited)
    other = RabbitEngine(f"{rabbitmq.url()}?publish_timeout=1")
    producer = other.producer(ProducerSpec())
    stored = next(number for number in range(1000) if not _sends(producer, number))
    with pytest.raises(Unavailable, match="could not store"):
        producer.close()
    assert stored > 0
    assert ready(engine) == stored
    other.close()


def test_connections_that_break_lose_nothing(engine: RabbitEngine, proxy: Proxy) -> None:
    """Again and again while messages are on their way: each is there, in its thread's order, some of them twice."""
    make_queue(engine, 1)
    other = through(proxy)
    producer = other.producer(ProducerSpec(buffer_bytes=100_000))
    stop = threading.Event()

    def cut() -> None:
        while not stop.wait(0.05):
            proxy.shut()
            proxy.reopen()

    cutter = threading.Thread(target=cut)
    cutter.start()
    sent = [producer.send(message(n)) for n in range(3000)]
    stop.set()
    cutter.join()
    producer.close()
    assert [pending.result(0).id for pending in sent] == [f"e{n}" for n in range(3000)]
    member = QueueMember(engine, ordered=True)
    while len(set(member.ids)) < 3000:
        count = len(member.records)
        member.until(lambda: len(member.records) > count, "more of them")  # noqa: B023
        member.settle()
    first = list(dict.fromkeys(member.ids))
    assert first == [f"e{n}" for n in range(3000)]
    member.leave()
    other.close()


def test_each_message_ends_however_a_connection_breaks_under_a_burst(engine: RabbitEngine, proxy: Proxy) -> None:
    """Also those behind the one that could not be handed to a connection which had just closed."""
    make_queue(engine, 2)
    other = through(proxy)
    producer = other.producer(ProducerSpec())
    producer.send(message(0)).result(DEADLINE_S)
    broken = threading.Event()

    def breaks() -> None:
        for _ in range(100):
            proxy.shut()
            proxy.reopen()
            broken.wait(0.03)
        broken.set()

    breaking = threading.Thread(target=breaks)
    breaking.start()
    sent = []
    while not broken.is_set():
        sent += [producer.send(message(len(sent) + n)) for n in range(3)]
        broken.wait(0.002)
    breaking.join()
    eventually(lambda: all(pending.done() for pending in sent), "all have ended")
    other.close()


def test_a_broker_that_does_not_confirm(engine: RabbitEngine, proxy: Proxy) -> None:
    """The buffer fills up and senders wait; after a while both are told, and nothing is known of what was sent."""
    make_queue(engine, 2)
    other = through(proxy, "?publish_timeout=1")
    producer = other.producer(ProducerSpec(buffer_bytes=20_000))
    producer.send(message(0)).result(DEADLINE_S)
    proxy.hold()
    sent = [producer.send(message(n, value=b"x" * 1000)) for n in range(1, 30)]  # more than the buffer takes
    with pytest.raises(Unavailable, match="confirm"):
        sent[0].result(DEADLINE_S)
    proxy.release()
    with pytest.raises(Unavailable):
        producer.flush()
    eventually(lambda: _sends(producer), "it goes on")
    producer.close()
    other.close()


def _sends(producer: Producer, number: int = 99) -> bool:
    try:
        producer.send(message(number)).result(DEADLINE_S)
    except Unavailable:
        return False
    return True


def test_a_message_that_closes_the_channel_is_found(engine: RabbitEngine) -> None:
    """The exchange of a topic is deleted: only its messages fail."""
    engine.ensure_topic(TopicSpec(name=f"{names.topic}-2", form="pubsub"))
    make_queue(engine, 2)
    with channel() as opened:
        opened.queue_declare(f"{names.topic}-sub", durable=True, arguments={"x-queue-type": "quorum"})
        opened.queue_bind(f"{names.topic}-sub", f"{names.topic}-2")
    producer = engine.producer(ProducerSpec())
    producer.send(message(0, topic=f"{names.topic}-2")).result(DEADLINE_S)
    with channel() as opened:
        opened.exchange_delete(f"{names.topic}-2")
    sent = [producer.send(message(n, topic=f"{names.topic}-2" if n == 20 else names.topic)) for n in range(40)]
    with pytest.raises(ContractError, match="1 messages"):
        producer.close()
    assert [number for number, pending in enumerate(sent) if pending.error is not None] == [20]
    member = QueueMember(engine)
    member.until(lambda: len(set(member.ids)) == 39, "all the others")
    member.leave()


def test_a_timeout_says_how_many(engine: RabbitEngine, proxy: Proxy) -> None:
    make_queue(engine, 2)
    other = through(proxy)
    producer = other.producer(ProducerSpec())
    producer.send(message(0)).result(DEADLINE_S)
    proxy.hold()
    pending = producer.send(message(1))
    with pytest.raises(TimeoutError, match="e1"):
        pending.result(0.05)
    with pytest.raises(TimeoutError, match="1 messages"):
        producer.flush(0.05)
    assert not pending.done()
    proxy.release()
    producer.close()
    assert pending.result(0).id == "e1"
    other.close()


def test_nobody_there_is_said_in_bounded_time() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2"):
        RabbitEngine("rabbitmq://guest:guest@127.0.0.1:1,127.0.0.1:2/")


@pytest.mark.parametrize(("login", "vhost"), [("guest:wrong", ""), ("guest:guest", "nosuch")])
def test_a_login_that_is_not_accepted(login: str, vhost: str) -> None:
    host, port = address()
    with pytest.raises(ContractError) as refused:
        RabbitEngine(f"rabbitmq://{login}@{host}:{port}/{vhost}")
    assert "wrong" not in str(refused.value)
    assert ("virtual host" in str(refused.value)) == bool(vhost)


def test_a_foreign_message_and_ours_share_a_queue(engine: RabbitEngine) -> None:
    make_queue(engine, 1)
    put(names.topic, b"theirs", message_id="f1")
    publish(engine, [message(1)])
    member = QueueMember(engine)
    assert [record.id for record in member.receives(2)] == ["f1", "e1"]
    member.leave()
