"""How far the effects are behind the log, and whether all is settled."""

from __future__ import annotations

from collections.abc import Callable

from settled.contract import specs
from settled.contract.model import Contract
from settled.engine import Engine
from settled.errors import SettledError
from settled.store import ConsumerSpec, Pause, Selection, Store


def is_drained(engine: Engine, store: Store, contract: Contract) -> Callable[[], bool]:
    """A question to ask again and again: is every record that the topic holds now, as this is called, settled, and
    every redrive that was asked for done? It raises SettledError when all that is left is in partitions that people
    paused."""
    topic = contract.transport.topic
    spec = specs.consumer_spec(contract)
    consumer = spec.consumer
    queued = any(info.queue is not None for info in engine.topics([topic]))
    if queued:
        return lambda: (
            not (_left_in_queue(engine, store, topic, consumer) or (spec.inbox and _asked(store, spec, topic)))
        )
    wanted = {
        part.partition: part.end for info in engine.topics([topic]) for part in info.partitions if part.end > part.begin
    }

    def drained() -> bool:
        reached = {found.partition: found.frontier for _, found in store.positions(consumer) if found.topic == topic}
        left = {number for number, end in wanted.items() if reached.get(number, -1) < end}
        if left:
            paused = [pause for pause in store.pauses(consumer) if pause.topic == topic and pause.partition in left]
            if len(paused) == len(left):
                raise _paused(paused)
        return not (left or (spec.inbox and _asked(store, spec, topic)))

    return drained


def _asked(store: Store, spec: ConsumerSpec, topic: str) -> int:
    """How many redrives are asked for. Raises SettledError when all of them are in partitions that people paused."""
    shelf = store.quarantine
    asked = shelf.select(Selection(consumer=spec.consumer, topic=topic, states=("requested",)))
    paused = {pause.partition: pause for pause in store.pauses(spec.consumer) if pause.topic == topic} if asked else {}
    if paused:
        places = {entry.record.partition for entry in shelf.entries(asked)}
        if places <= paused.keys():
            raise _paused([paused[place] for place in sorted(places)])
    return len(asked)


def _left_in_queue(engine: Engine, store: Store, topic: str, consumer: str) -> int:
    """How much of a queue is ready, or claimed and not settled. What is scheduled for later is not waited for. Raises
    SettledError when all that is left cannot be settled since people paused it."""
    reached = {found.partition: found.frontier for _, found in store.positions(consumer) if found.topic == topic}
    ready = claimed = held = 0
    stuck: list[Pause] = []
    paused = {pause.partition: pause for pause in store.pauses(consumer) if pause.topic == topic}
    for info in engine.topics([topic]):
        assert info.queue is not None
        ready += info.queue.ready
        for slot in info.partitions:
            if slot.records and reached.get(slot.partition, 0) < slot.end:
                claimed += slot.records
                if slot.partition in paused:
                    stuck.append(paused[slot.partition])
                    held += slot.records
        if paused and len(paused) == len(info.partitions) and ready + claimed:
            raise _paused(list(paused.values()))
    if stuck and not ready and held == claimed:
        raise _paused(stuck)
    return ready + claimed


def _paused(pauses: list[Pause]) -> SettledError:
    places = " ".join(f"{pause.topic}/{pause.partition}" for pause in pauses)
    return SettledError(
        f"what is left is paused: {places} ({pauses[0].who}: {pauses[0].reason})",
        hint=f"settled group resume {pauses[0].consumer.partition('/')[0]} {places}",
    )
