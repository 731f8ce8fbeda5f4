"""What a confirm means, by the form of the topic and by how many nodes the URL names.

A quorum queue is synced to the disks of a majority before it confirms; a stream is not: only copies on other nodes make
its records outlive a power cut. AMQP does not tell how many there are.
"""

from __future__ import annotations

import msgspec

from settled.engine import Capabilities, Durability, Examined, TopicSpec
from settled.engines.rabbitmq.settings import Settings
from settled.engines.rabbitmq.topology import Topology
from settled.errors import Unsupported

QUORUM = 3  # nodes
ALL: frozenset[Durability] = frozenset({"memory", "local", "committed"})


def kept(told: Capabilities, settings: Settings) -> Capabilities:
    """`told`, as one node has it; with three or more a quorum confirms, and streams have copies."""
    if len(settings.addresses) < QUORUM:
        return told
    differing = {form: {**fields, "durability": ALL} for form, fields in told.differing.items()}
    return msgspec.structs.replace(told, durability=ALL, differing=differing)


def require_synced(durability: Durability, kept: frozenset[Durability], topic: str) -> None:
    """Raises Unsupported for a durability of a log that one node cannot keep."""
    if durability not in kept:
        raise Unsupported(
            f"durability `{durability}` of topic {topic!r}: a stream confirms before it is synced to disk",
            field="durability",
            value=durability,
            hint=f"ask for `memory`, use a queue, or name {QUORUM} nodes of a cluster: then copies make up for it",
        )


def require_cluster(durability: Durability, topology: Topology) -> None:
    """Raises Unsupported unless the URL names three nodes, most answer, and all say the same cluster name."""
    addresses = topology.settings.addresses
    clusters = topology.connect() if len(addresses) >= QUORUM else []
    if len(clusters) <= len(addresses) // 2 or len(set(clusters)) != 1:
        raise Unsupported(
            f"durability `{durability}` needs a quorum of at least {QUORUM} nodes of one cluster; the URL names "
            f"{len(addresses)}, of which {len(clusters)} answered",
            field="durability",
            value=durability,
            hint="name all nodes in the URL, and the cluster (rabbitmqctl set_cluster_name); or ask for `local`, which "
            "queues keep on the disks of the nodes that there are, and logs as `memory`",
        )


def examined(durability: Durability, topology: Topology, kept: Capabilities, spec: TopicSpec | None) -> list[Examined]:
    """What a topic with this durability lacks, where more is asked than one node's word."""
    log = spec is not None and spec.form == "log"
    if durability == "memory" or (durability == "local" and not log):
        return []
    try:
        if spec is not None and log:
            require_synced(durability, kept.of("log").durability, spec.name)
        require_cluster(durability, topology)
    except Unsupported as error:
        return [Examined(name="durability", state="bad", told=error.message, remedy=error.hint)]
    return [Examined(name="durability", state="ok", told="a quorum of nodes confirms")]
