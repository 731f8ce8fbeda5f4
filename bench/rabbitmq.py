"""RabbitMQ through settled against bare loops of pika: one node, one run, the same messages, headers and windows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pika
from pika.adapters.select_connection import SelectConnection

from bench import postgres
from bench.workload import TOPIC, folder, messages
from settled import App
from settled.engine import ProducerSpec, TopicSpec
from settled.engines.rabbitmq import RabbitEngine
from settled.engines.rabbitmq.producer import OVERHEAD
from settled.engines.rabbitmq.records import properties_of
from settled.events import Event
from settled.events import Settled as SettledEvent
from settled.record import Message
from settled.testing.postgres import database
from settled.testing.rabbitmq import unique, url

SLOTS = 4
WINDOW = 1000  # messages without a confirm
WAIT_S = 120.0


def queue(engine: RabbitEngine) -> str:
    return engine.ensure_topic(TopicSpec(name=unique("bench"), form="queue", partitions=SLOTS)).spec.name


def parameters(address: str) -> pika.ConnectionParameters:
    login, _, hosts = urlsplit(address).netloc.rpartition("@")
    host, _, port = hosts.split(",")[0].partition(":")
    user, _, password = login.partition(":")
    return pika.ConnectionParameters(host, int(port or 5672), credentials=pika.PlainCredentials(user, password))


def bare_publish(address: str, name: str, made: Sequence[Message]) -> float:
    """Records a second, each confirmed and mandatory, WINDOW of them on their way, in the caller's thread."""
    left, out, began = iter(made), 0, 0.0
    done = [0]

    def more(channel: Any) -> None:
        nonlocal out
        while out < WINDOW and (message := next(left, None)) is not None:
            out += 1
            channel.basic_publish("", name, message.value, properties_of(message), mandatory=True)

    def opened(channel: Any) -> None:
        def confirmed(frame: Any) -> None:
            nonlocal out
            method = frame.method
            count = method.delivery_tag - done[0] if method.multiple else 1
            done[0] += count
            out -= count
            if done[0] == len(made):
                connection.close()
            more(channel)

        def ready(_: Any) -> None:
            nonlocal began
            began = time.perf_counter()
            more(channel)

        channel.confirm_delivery(confirmed, ready)

    connection = SelectConnection(
        parameters(address),
        lambda made: made.channel(on_open_callback=opened),
        on_close_callback=lambda closed, _: closed.ioloop.stop(),
    )
    connection.ioloop.start()
    return len(made) / (time.perf_counter() - began)


def publish(engine: RabbitEngine, name: str, made: Sequence[Message]) -> float:
    """The same through settled, which gives each record a receipt."""
    own = [Message(topic=name, key=m.key, value=m.value, id=m.id, type=m.type) for m in made]
    producer = engine.producer(ProducerSpec(buffer_bytes=WINDOW * (own[0].size + OVERHEAD)))
    producer.send(Message(topic=queue(engine), id="warm", value=b"")).result(WAIT_S)
    began = time.perf_counter()
    for message in own:
        producer.send(message)
    producer.flush(WAIT_S)
    seconds = time.perf_counter() - began
    producer.close()
    return len(made) / seconds


def bare_consume(address: str, name: str, count: int) -> float:
    """Records a second, acknowledged by the hundred, 2000 of them handed out ahead."""
    began, seen = 0.0, 0

    def taken(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal began, seen
        began = began or time.perf_counter()
        seen += 1
        if seen % 100 == 0 or seen == count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen == count:
            connection.close()

    def opened(channel: Any) -> None:
        channel.basic_qos(prefetch_count=2000)
        channel.basic_consume(name, taken)

    connection = SelectConnection(
        parameters(address),
        lambda made: made.channel(on_open_callback=opened),
        on_close_callback=lambda closed, _: closed.ioloop.stop(),
    )
    connection.ioloop.start()
    return count / (time.perf_counter() - began)


def settle(engine: str, store: str, name: str, count: int) -> float:
    """Records a second from the first one handled until all are settled."""
    made = App(
        engine=engine,
        store=store,
        transport={"topic": name, "form": "queue", "partitions": SLOTS},
        delivery={"group": "bench", "ordering": "none"},
        poison={"owner": "bench"},
    )
    began, ended, done = list[float](), list[float](), [0]

    def told(event: Event) -> None:
        if isinstance(event, SettledEvent):
            began.append(time.perf_counter() - event.seconds)
            done[0] += sum(event.counts.values())
            if done[0] >= count:
                ended.append(time.perf_counter())

    with made:
        made.setup(lambda tx: tx.execute(postgres.TABLE))
        made.handler(postgres.with_statement)
        made.events.listen(told)
        made.drain()
    assert ended, f"{done[0]} of {count} records were settled"
    return count / (ended[0] - began[0])


def embedded(place: Any, run: int, made: Sequence[Message]) -> str:
    """The same records in a queue of the embedded engine."""
    address = f"sqlite:///{place}/log-{run}.db"
    with App(engine=address, topic=TOPIC, group="none", transport={"form": "queue", "partitions": SLOTS}) as bench:
        producer = bench.producer()
        for message in made:
            producer.send(message)
        producer.close()
    return address


def compare(count: int, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures, each a ratio of medians."""
    address, made = url(), messages(count, 250)
    rates: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)

    engine = RabbitEngine(address)
    try:
        with folder() as place:
            for run in range(repeats):
                bare = queue(engine)
                note("bare_publish", bare_publish(address, bare, made))
                note("bare_consume", bare_consume(address, bare, count))
                name = queue(engine)
                note("publish", publish(engine, name, made))
                with database() as store:
                    note("postgres_embedded", settle(embedded(place, run, made), store, TOPIC, count))
                with database() as store:
                    note("postgres", settle(address, store, name, count))
                told = ", ".join(f"{name} {each[-1]:,.0f}/s" for name, each in rates.items())
                say(f"rabbitmq {run + 1}/{repeats}: {told}")
    finally:
        engine.close()
    medians = {name: statistics.median(each) for name, each in rates.items()}
    return {
        "records_per_s": medians,
        "ratio": {
            "publish": medians["publish"] / medians["bare_publish"],
            "postgres": medians["postgres"] / medians["postgres_embedded"],
        },
    }
