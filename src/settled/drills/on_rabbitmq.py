"""Drills by name that RabbitMQ has: nodes that die, clients that are cut off, alarms, claims that are held too long.
Each takes a world with nodes that it may harm; see `named` for the form."""

from __future__ import annotations

from collections.abc import Sequence

from settled.drills import rabbitmq
from settled.drills.named import NamedDrill
from settled.errors import Refused
from settled.testing.rabbitmq_nodes import Nodes


def require_nodes(names: Sequence[str], engine: str, nodes: Nodes | None) -> int:
    """How many nodes of its own the drill needs. Raises Refused for drills that may not be done to the nodes
    there."""
    if not rabbitmq.is_rabbitmq(engine):
        return 0
    hint = f"--engine {rabbitmq.OWN} starts nodes of its own (Debian's package rabbitmq-server is needed)"
    asked = [name for name in names if name in ON_RABBITMQ]
    if asked and nodes is None and not engine.startswith(rabbitmq.OWN):
        raise Refused(f"{', '.join(asked)} harms nodes, and does that only to its own", hint=hint)
    return rabbitmq.nodes_needed(names)


ON_RABBITMQ: dict[str, NamedDrill] = {}
