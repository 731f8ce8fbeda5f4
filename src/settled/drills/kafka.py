"""What a drill on Kafka needs beside the engine: a cluster that it may harm, leases that the brokers take, windows that
this process does not come by, and topics and groups that go when the drill is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from settled import connect
from settled.contract.units import duration
from settled.errors import Unavailable
from settled.testing.kafka_cluster import Cluster, started

OWN = "kafka-test:"  # as an engine's address: three brokers of the drill's own
ELSEWHERE = {  # windows of the embedded log; on Kafka a broker is there, and no process of ours
    "append-written": "on Kafka the brokers append; their deaths are `leader-kill` and `broker-rolling-restart`",
    "claim-written": "on Kafka there are no queues",
    "claim-committed": "on Kafka there are no queues",
    "claims-removed": "on Kafka there are no queues",
    "retention-uncommitted": "on Kafka the brokers apply retention",
    "compaction-uncommitted": "on Kafka the brokers compact",
    "compaction-unrecorded": "on Kafka the brokers compact",
}
CALL_S = 30.0
LEASE_S = 1.0


def is_kafka(engine: str) -> bool:
    return engine.startswith(("kafka:", OWN))


@contextmanager
def opened(engine: str, cluster: Cluster | None) -> Iterator[tuple[str, Cluster | None]]:
    """The engine's address, and the cluster behind it where the drill may harm its brokers."""
    if not engine.startswith(OWN):
        yield engine, cluster
    elif cluster is not None:
        yield address(cluster.bootstrap), cluster
    else:
        connect.require_engine(address(""))
        with started() as own:
            yield address(own.bootstrap), own


def address(bootstrap: str) -> str:
    return f"kafka://{bootstrap}"


def with_lease(changes: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """The changes, with a lease that is not below what the brokers take, nor below LEASE_S: a lease is a session there,
    and its end makes the group meet anew."""
    from settled.engines.kafka import config

    delivery = dict(changes.get("delivery", {}))
    asked = duration(delivery.get("lease", f"{LEASE_S:g}s"))
    least = max(LEASE_S, asked, _least_session_s(config.parse(engine)))
    return {**changes, "delivery": {**delivery, "lease": f"{round(least * 1000)}ms"}}


def forget(engine: str, topic: str, group: str) -> None:
    """Remove the topic and the group of a drill that is over. What cannot be removed stays."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from settled.engines.kafka import config

    admin = AdminClient(config.parse(engine).admin())
    for future in (
        *admin.delete_topics([topic], operation_timeout=CALL_S).values(),
        *admin.delete_consumer_groups([group], request_timeout=CALL_S).values(),
    ):
        with contextlib.suppress(KafkaException):
            future.result(CALL_S)


def _least_session_s(settings: Any) -> float:
    """The shortest session that the brokers let a member ask for."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource

    admin = AdminClient(settings.admin())
    try:
        broker = str(next(iter(admin.list_topics(timeout=CALL_S).brokers)))
        resource = ConfigResource(ConfigResource.Type.BROKER, broker)
        found = admin.describe_configs([resource], request_timeout=CALL_S)[resource].result(CALL_S)
    except KafkaException as error:
        hint = "look whether the brokers run, and whether this user may describe them"
        raise Unavailable(
            f"the brokers do not say which sessions they take: {error.args[0].str()}", hint=hint
        ) from error
    return int(found["group.min.session.timeout.ms"].value) / 1000
