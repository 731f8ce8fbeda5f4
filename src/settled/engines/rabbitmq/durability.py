"""What a confirm means, by the form of the topic and by how many nodes the URL names.

A quorum queue is synced to the disks of a majority before it confirms. A stream is not, and copies do not make up for
it: while a stream looks for another leader the broker confirms messages that it stores nowhere (decision 040).
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
    """`told`, as one node has it; with three or more a quorum confirms what goes to queues."""
    return told if len(settings.addresses) < QUORUM else msgspec.structs.replace(told, durability=ALL)


def require_synced(durability: Durability, kept: frozenset[Durability], topic: str) -> None:
    """Raises Unsupported for a durability that a log does not keep."""
    if durability not in kept:
        raise Unsupported(
            f"durability `{durability}` of topic {topic!r}: a stream confirms what is not synced to disk, and what is "
            "sent to a leader that died",
            field="durability",
            value=durability,
            hint="ask for `memory`, use a queue, or keep the log on the embedded engine or on Kafka",
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
            "queues keep on the disks of the nodes that there are",
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
