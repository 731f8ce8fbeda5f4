"""Readers without a group whose node is killed, whose connection is cut, and who are too slow for their queue."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from passing import DEADLINE_S, Passing, kill

from settled.drills.proxy import Proxy
from settled.engine import Engine, Form, ProducerSpec, Tail, TopicSpec
from settled.engines.rabbitmq import RabbitEngine
from settled.engines.rabbitmq import tail as tails
from settled.errors import ContractError, Unavailable
from settled.record import Record
from settled.testing import rabbitmq
from settled.testing.engine_tools import message, names
from settled.testing.rabbitmq import Nodes
from waiting import until

pytestmark = [pytest.mark.xdist_group("rabbitmq-nodes"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def node() -> Iterator[Nodes]:
    with rabbitmq.own_nodes() as found:
        yield found


def opened(url: str, form: Form = "notification") -> RabbitEngine:
    names.fresh()
    engine = RabbitEngine(url)
    engine.ensure_topic(TopicSpec(name=names.topic, form=form))
    return engine


def heard(tail: Tail, found: list[Record], last: str) -> None:
    """Poll until this one was given. An engine that is away is waited for."""

    def look() -> bool:
        try:
            found.extend(tail.poll(0.1, records=100, bytes=1_000_000))
        except Unavailable:
            return False
        return bool(found) and found[-1].id == last

    until(look, DEADLINE_S)


def publish(engine: Engine, numbers: range) -> None:
    """One at a time, until each is accepted: by one producer, whose numbers tell what is missing."""
    producer = engine.producer(ProducerSpec())
    for number in numbers:
        producer.send(message(number)).result(DEADLINE_S)
    producer.close()


def queues(nodes: Nodes, topic: str, node: int = 1) -> list[dict[str, object]]:
    told = json.loads(
        nodes.ctl("list_queues", "name", "arguments", "messages", "exclusive", "--formatter", "json", "-q", node=node)
    )
    return [row for row in told if row["name"].startswith(f"{topic}::tail:")]


def test_a_tail_goes_on_after_a_restart_and_says_that_it_was_away(node: Nodes) -> None:
    engine = opened(node.url)
    found: list[Record] = []
    try:
        tail = engine.tail(names.topic)
        producer = engine.producer(ProducerSpec())
        for number in range(20):
            producer.send(message(number)).result(DEADLINE_S)
        heard(tail, found, "e19")
        node.stop()
        with pytest.raises(Unavailable):
            until(lambda: tail.poll(0.1, records=100, bytes=1_000_000), DEADLINE_S)
        assert tail.interruptions == 0
        node.wait_ready()
        for number in range(20, 40):
            producer.send(message(number)).result(DEADLINE_S)
        until(lambda: not tail.poll(0.1, records=0, bytes=0) and len(queues(node, names.topic)) == 2, DEADLINE_S)
        producer.send(message(40)).result(DEADLINE_S)
        heard(tail, found, "e40")
        assert tail.interruptions == 1
        assert len(found) + tail.missed == 41
        tail.close()
    finally:
        engine.close()
        names.plain()


def test_a_cluster_loses_a_node_under_readers_and_senders() -> None:
    """The queue of a reader is on the node that it is connected to: it has another one on another node."""
    with rabbitmq.own_nodes(3) as nodes:
        engine = opened(nodes.url, "pubsub")
        found: list[Record] = []
        try:
            tail = engine.tail(names.topic)
            producer = engine.producer(ProducerSpec())
            for number in range(20):
                producer.send(message(number)).result(DEADLINE_S)
            heard(tail, found, "e19")
            pending = [producer.send(message(number)) for number in range(20, 120)]
            nodes.kill(1)
            pending += [producer.send(message(number)) for number in range(120, 220)]
            for one in pending:
                with contextlib.suppress(ContractError):  # unroutable: the reader had no queue yet
                    one.result(DEADLINE_S)
            until(lambda: len(queues(nodes, names.topic, 2)) == 2, DEADLINE_S)
            producer.send(message(220)).result(DEADLINE_S)
            heard(tail, found, "e220")
            assert tail.interruptions == 1
            ids = [one.id for one in found]
            assert len(ids) == len(set(ids))
            assert len(ids) + tail.missed == 221
            tail.close()
        finally:
            engine.close()
            names.plain()


def test_a_connection_that_is_cut_again_and_again(node: Nodes) -> None:
    proxy = Proxy((rabbitmq.HOST, node.ports[1]), random.Random(1))
    engine, reader = opened(node.url), RabbitEngine(f"rabbitmq://guest:guest@127.0.0.1:{proxy.port}/")
    found: list[Record] = []
    try:
        tail = reader.tail(names.topic)
        producer = engine.producer(ProducerSpec())
        sent = 0
        for cut in range(1, 6):
            for _ in range(30):
                producer.send(message(sent)).result(DEADLINE_S)
                sent += 1
            proxy.shut()
            for _ in range(10):
                producer.send(message(sent)).result(DEADLINE_S)
                sent += 1
            proxy.reopen()

            def counted(cut: int = cut) -> bool:
                try:
                    found.extend(tail.poll(0.1, records=100, bytes=1_000_000))
                except Unavailable:
                    return False
                return tail.interruptions == cut

            until(counted, DEADLINE_S)
        producer.send(message(sent)).result(DEADLINE_S)
        heard(tail, found, f"e{sent}")
        assert len(found) + tail.missed == sent + 1
        assert tail.missed >= 50
        tail.close()
    finally:
        reader.close()
        engine.close()
        proxy.close()
        names.plain()


def test_a_stopped_reader_costs_the_broker_no_more_than_its_bound(node: Nodes, tmp_path: Path) -> None:
    """What it was not given it is told of, the oldest; and that the broker dropped something."""
    with Passing(node.url, "notification", tmp_path, behind=200) as passing:
        reader = passing.reader()
        first, name = passing.publisher(count=50)
        assert first.wait(DEADLINE_S) == 0
        passing.hears_all(name)
        reader.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, reader.pid, os.WSTOPPED)
        publisher, name = passing.publisher(size=20_000, count=1_000)  # soon done: a reader silent for long is cut off
        assert publisher.wait(DEADLINE_S) == 0
        held = {len(str(row["name"]).split(":")): row for row in queues(node, passing.topic)}
        assert held[4]["messages"] == 200
        assert 1 <= int(str(held[5]["messages"])) <= 2  # handed out, and next: what was dropped is not kept either
        reader.send_signal(signal.SIGCONT)
        _, again = passing.publisher(count=1)
        passing.hears_all(again)
        assert passing.heard()[name] == 1_000  # the newest is there
        assert passing.accounted() == 50 + 1_000 + 1
        assert passing.lines()[-1][2] > 0


def test_nothing_is_left_of_a_reader(node: Nodes, tmp_path: Path) -> None:
    engine = opened(node.url)
    try:
        tail = engine.tail(names.topic, behind=300)
        rows = sorted(queues(node, names.topic), key=lambda row: len(str(row["name"])))
        assert [row["exclusive"] for row in rows] == [True, True]
        told = {name: value for name, _, value in rows[0]["arguments"]}  # type: ignore[attr-defined]
        assert told["x-max-length"] == 300
        assert told["x-max-length-bytes"] == tails.QUEUE_BYTES
        tail.close()
        until(lambda: not queues(node, names.topic), DEADLINE_S)
        with Passing(node.url, "notification", tmp_path) as passing:
            reader = passing.reader()
            assert len(queues(node, passing.topic)) == 2
            kill(reader)
            until(lambda: not queues(node, passing.topic), DEADLINE_S)
    finally:
        engine.close()
        names.plain()
