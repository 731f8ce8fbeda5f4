"""How far the effects are behind the log, and whether all is settled."""

from __future__ import annotations

from collections.abc import Callable

from settled.contract import specs
from settled.contract.model import Contract
from settled.engine import Engine
from settled.store import Store


def is_drained(engine: Engine, store: Store, contract: Contract) -> Callable[[], bool]:
    """A question to ask again and again: is every record that the topic holds now, as this is called, settled?"""
    topic = contract.transport.topic
    consumer = specs.consumer_spec(contract).consumer
    wanted = {
        part.partition: part.end for info in engine.topics([topic]) for part in info.partitions if part.end > part.begin
    }

    def drained() -> bool:
        reached = {found.partition: found.frontier for _, found in store.positions(consumer) if found.topic == topic}
        return all(reached.get(number, -1) >= end for number, end in wanted.items())

    return drained
