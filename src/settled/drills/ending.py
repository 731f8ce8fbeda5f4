"""The end of a drill, as the databases tell it: log, effects, endings and quarantine, of this drill's records only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from settled.drills import history, rabbitmq
from settled.drills.database import Look
from settled.drills.history import Event
from settled.outcome import Outcome
from settled.record import Message, Record
from settled.store import QuarantineEntry, Selection

if TYPE_CHECKING:
    from settled.drills.world import World


def collect(world: World) -> list[Event]:
    """Write all of it down. Returns the whole history."""
    for info in world.engine.topics([world.topic]):
        for part in info.partitions if info.queue is None else ():  # what a slot holds is no history
            world.writer.write(Event(what="begin", partition=part.partition, offset=part.begin))
            if info.spec.compact:
                world.writer.write(Event(what="compacted", partition=part.partition))
            for record in world.read(part.partition, part.begin):
                if record.id.startswith(world.prefix):
                    world.writer.write(history.of_record("log", record))
    if not world.readable:
        _queue(world)
    look = Look(world.store_url)
    try:
        world.writer.write_all(_effect(row) for row in look.effects(world.prefix))
    finally:
        look.close()
    for entry in _entries(world):
        why = f"{entry.failure.error}: {entry.failure.message}"
        world.writer.write(Event(what="entry", id=entry.record.id, outcome=entry.state, note=why))
    for id, outcome in ended(world, world.sent.values(), by_effects=False).items():
        world.writer.write(Event(what="ended", id=id, outcome=outcome.name.lower()))
    return history.read(world.folder)


def ended(world: World, messages: Iterable[Message], *, by_effects: bool = True) -> dict[str, Outcome]:
    """Which of them ended, and how. Where there is no inbox quarantine says so, and `by_effects` the side table."""
    asked = list(messages)
    if world.contract.delivery.mode == "effectively-once":
        outcomes = world.outcomes([_named(message) for message in asked])
        return {message.id: outcome for message, outcome in zip(asked, outcomes, strict=True) if outcome is not None}
    found = {entry.record.id: Outcome.QUARANTINED for entry in _entries(world) if entry.state in ("held", "requested")}
    if by_effects:
        look = Look(world.store_url)
        try:
            found |= {row[1]: Outcome.APPLIED for row in look.effects(world.prefix)}
        finally:
            look.close()
    return {message.id: found[message.id] for message in asked if message.id in found}


def _queue(world: World) -> None:
    """Nothing may be left in the queue, nor beside it."""
    queue = rabbitmq.queue_of(world.contract)
    ready, dead = rabbitmq.held(world.engine_url, queue)
    world.writer.write(Event(what="bound", note=f"what is left in {queue}", n=ready, offset=0))
    world.writer.write(Event(what="bound", note=f"what the broker gave up in {queue}", n=dead, offset=0))


def _entries(world: World) -> list[QuarantineEntry]:
    quarantine = world.store.quarantine
    entries = quarantine.entries(quarantine.select(Selection(consumer=world.consumer, states=())))
    return [entry for entry in entries if entry.record.id.startswith(world.prefix)]


def _named(message: Message) -> Record:
    """A record of which only the id matters."""
    return Record(message.topic, 0, 0, message.key, message.value, message.headers, message.id)


def _effect(row: Sequence[Any]) -> Event:
    n, id, key, partition, offset, epoch, digest, pid = row
    return Event(
        what="effect",
        n=n,
        id=id,
        key=key,
        partition=partition,
        offset=offset,
        epoch=epoch,
        digest=digest,
        pid=pid,
    )
