"""What a drill on RabbitMQ needs beside the engine: nodes that it may harm, a look at queues that cannot be read,
windows that this process does not come by, and queues that go when the drill is over."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from settled import connect
from settled.contract.model import Contract
from settled.contract.units import duration
from settled.errors import SettledError, Unsupported
from settled.testing.rabbitmq_keeper import installed
from settled.testing.rabbitmq_nodes import Nodes, started

OWN = "rabbitmq-test:"  # as an engine's address: nodes of the drill's own
ELSEWHERE = {  # windows of other engines; here a broker is there, and no process of ours
    "append-written": "on RabbitMQ the broker appends; its deaths are `leader-kill`",
    "claim-written": "on RabbitMQ the broker hands claims out",
    "claim-committed": "on RabbitMQ the broker hands claims out",
    "claims-removed": "on RabbitMQ the broker removes what is acknowledged",
    "retention-uncommitted": "on RabbitMQ the broker applies retention, where there is any",
    "compaction-uncommitted": "on RabbitMQ nothing is compacted",
    "compaction-unrecorded": "on RabbitMQ nothing is compacted",
}
LEASE_S = 2.0  # a shorter one is not kept: the broker's heartbeats are a second apart at least
BEATS_S = 3.0  # until the broker lets go of a client that is silent, with such a lease


def is_rabbitmq(engine: str) -> bool:
    return engine.startswith(("rabbitmq:", "rabbitmqs:", OWN))


@contextmanager
def opened(engine: str, nodes: Nodes | None, count: int = 1) -> Iterator[tuple[str, Nodes | None]]:
    """The engine's address, and the nodes behind it where the drill may harm them; `count`: so many are started."""
    if not engine.startswith(OWN):
        yield engine, nodes
    elif nodes is not None:
        yield nodes.url, nodes
    else:
        connect.require_engine("rabbitmq://localhost")
        if installed() is None:
            raise Unsupported("there is no RabbitMQ to drill", field="engine", hint="install rabbitmq-server")
        with started(count) as own:
            yield own.url, own


def with_lease(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, with a lease that the broker keeps."""
    delivery = dict(changes.get("delivery", {}))
    least = max(LEASE_S, duration(delivery.get("lease", f"{LEASE_S:g}s")))
    return {**changes, "delivery": {**delivery, "lease": f"{round(least * 1000)}ms"}}


def queue_of(contract: Contract) -> str:
    """Where the group's messages are; of a log, those of partition 0."""
    from settled.engines.rabbitmq.facts import stream_of

    topic, group = contract.transport.topic, contract.delivery.group
    return {"pubsub": f"{topic}:{group}", "log": stream_of(topic, 0)}.get(contract.transport.form, topic)


def held(engine: str, queue: str) -> tuple[int, int]:
    """How many messages are ready in the queue, and how many the broker gave up to deliver."""
    with _channel(engine) as channel:
        ready, dead = (channel.queue_declare(name, passive=True).method for name in (queue, f"{queue}:dead"))
        return ready.message_count, dead.message_count


def leader(nodes: Nodes, queue: str) -> int:
    """The number of the node that leads a quorum queue."""
    asked = next(number for number in nodes.ports if nodes.speaks(number))
    told = json.loads(nodes.ctl("list_queues", "name", "leader", "--formatter", "json", "--quiet", node=asked))
    name = next(row["leader"] for row in told if row["name"] == queue)
    return nodes.names.index(name) + 1


def forget(engine: str, contract: Contract) -> None:
    """Remove what a drill that is over has made. What cannot be removed stays."""
    topic, form, queue = contract.transport.topic, contract.transport.form, queue_of(contract)
    names = _streams(contract) if form == "log" else [queue, f"{queue}:dead"]
    with contextlib.suppress(SettledError), _channel(engine) as channel:
        for name in names:
            channel.queue_delete(name)
        if form == "pubsub":
            channel.exchange_delete(topic)


def _streams(contract: Contract) -> list[str]:
    """What a log consists of; its facts go first, then it is not there any more."""
    from settled.engines.rabbitmq.board import board_of
    from settled.engines.rabbitmq.facts import stream_of
    from settled.engines.rabbitmq.topology import facts_of

    topic = contract.transport.topic
    partitions = [stream_of(topic, number) for number in range(contract.transport.partitions)]
    return [facts_of(topic), *partitions, board_of(topic, contract.delivery.group)]


@contextmanager
def _channel(engine: str) -> Iterator[Any]:
    """A plain client, at the first node that answers. Raises Unavailable."""
    import pika

    from settled.engines.rabbitmq import faults, settings

    known = settings.parse(engine)
    fault: BaseException | None = None
    for turn in range(len(known.addresses)):
        try:
            connection = pika.BlockingConnection(known.parameters(turn, "settled-drill"))
        except faults.ERRORS as error:
            fault = error
            continue
        try:
            yield connection.channel()
        except faults.ERRORS as error:
            raise faults.translate(error, "looking at a queue", known) from error
        finally:
            if connection.is_open:
                connection.close()
        return
    assert fault is not None
    raise faults.translate(fault, "looking at a queue", known) from fault


def nodes_needed(names: Sequence[str]) -> int:
    """A leader that dies leaves others only in a cluster."""
    return 3 if "leader-kill" in names else 1
