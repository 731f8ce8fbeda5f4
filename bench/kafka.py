"""Kafka through settled against bare loops of confluent-kafka, and against the embedded engine: three local brokers,
one run, the same records, headers and settings.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from bench import postgres, runs
from bench.workload import Order, folder, messages
from settled import App
from settled.engine import ProducerSpec, TopicSpec
from settled.engines.kafka import KafkaEngine
from settled.engines.kafka.records import headers_of
from settled.events import Event
from settled.events import Settled as SettledEvent
from settled.record import Message, Record
from settled.testing.kafka import bootstrap, unique
from settled.testing.postgres import database

PARTITIONS = 12
TOGETHER = 1000
WAIT_S = 60.0


def topic(engine: KafkaEngine) -> str:
    return engine.ensure_topic(TopicSpec(name=unique("bench"), partitions=PARTITIONS)).spec.name


def bare_publish(servers: str, name: str, made: Sequence[Message], warm: str) -> float:
    """Records a second, each acknowledged by all replicas in sync. First one for each partition of another topic: who
    takes part, and the producer's number, are asked of the brokers once, with half a second between two tries."""
    spec, failed = ProducerSpec(), list[object]()
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": spec.linger_s * 1000,
            "batch.size": spec.batch_bytes,
            "batch.num.messages": spec.batch_records,
            "compression.type": spec.compression,
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
        }
    )

    def ended(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for partition in range(PARTITIONS):
        producer.produce(warm, b"", partition=partition)
    assert producer.flush(WAIT_S) == 0
    began = time.perf_counter()
    for message in made:
        while True:
            try:
                producer.produce(name, message.value, message.key, headers=headers_of(message), on_delivery=ended)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert not failed
    return len(made) / (time.perf_counter() - began)


def publish(engine: KafkaEngine, name: str, made: Sequence[Message], warm: str) -> float:
    """The same through settled, which gives each record a receipt."""
    own = [Message(topic=name, key=m.key, value=m.value, id=m.id, type=m.type) for m in made]
    producer = engine.producer(ProducerSpec())
    for partition in range(PARTITIONS):
        producer.send(Message(topic=warm, id=f"warm-{partition}", value=b""))
    producer.flush(WAIT_S)
    began = time.perf_counter()
    for message in own:
        producer.send(message)
    producer.flush(WAIT_S)
    seconds = time.perf_counter() - began
    producer.close()
    return len(made) / seconds


def bare_consume(servers: str, name: str, count: int) -> float:
    """Records a second from the first on; their bytes are looked at, nothing is kept or committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": unique("bare"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([name])
    seen, size, began = 0, 0, 0.0
    try:
        while seen < count:
            for message in consumer.consume(TOGETHER, timeout=1.0):
                if message.error() is not None:
                    raise KafkaException(message.error())
                began = began or time.perf_counter()
                size += len(message.value() or b"") + len(message.headers() or ())
                seen += 1
        return count / (time.perf_counter() - began)
    finally:
        consumer.close()


def nothing(tx: Any, record: Record) -> None:
    """A handler that does nothing."""


def settle(engine: str, store: str, name: str, count: int, handler: Callable[..., None], **delivery: Any) -> float:
    """Records a second from the first one handled until all are settled."""
    made = App(
        engine=engine,
        store=store,
        transport={"topic": name, "partitions": PARTITIONS},
        delivery={"group": unique("bench"), **delivery},
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
        made.setup(lambda tx: tx.execute(postgres.TABLE) if store.startswith("postgres") else None)
        made.handler(handler)
        made.events.listen(told)
        made.drain()
    assert ended, f"{done[0]} of {count} records were settled"
    return count / (ended[0] - began[0])


def compare(count: int, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures, each a ratio of medians."""
    servers = bootstrap()
    url, made = f"kafka://{servers}", messages(count, 250)
    rates: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)

    engine = KafkaEngine(url)
    try:
        with folder() as place:
            log = place / "log.db"
            runs.publish(log, made, PARTITIONS)
            warm = topic(engine)
            for run in range(repeats):
                bare = topic(engine)
                note("bare_publish", bare_publish(servers, bare, made, warm))
                name = topic(engine)
                note("publish", publish(engine, name, made, warm))
                note("bare_consume", bare_consume(servers, name, count))
                effects = f"sqlite:///{place}/noop-{run}.db"
                note("consume", settle(url, effects, name, count, nothing, mode="at-least-once"))
                with database() as store:
                    note("postgres_embedded", settle(f"sqlite:///{log}", store, made[0].topic, count, with_statement))
                with database() as store:
                    note("postgres", settle(url, store, name, count, with_statement))
                say(f"kafka {run + 1}/{repeats}: " + ", ".join(f"{n} {each[-1]:,.0f}/s" for n, each in rates.items()))
    finally:
        engine.close()
    medians = {name: statistics.median(each) for name, each in rates.items()}
    return {
        "records_per_s": medians,
        "ratio": {
            "publish": medians["publish"] / medians["bare_publish"],
            "consume": medians["consume"] / medians["bare_consume"],
            "postgres": medians["postgres"] / medians["postgres_embedded"],
        },
    }


def with_statement(tx: Any, order: Order) -> None:
    postgres.with_statement(tx, order)
