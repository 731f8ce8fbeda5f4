"""What drills share that disturb brokers, or the way to them: workers that outlive it, looks that wait for answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from settled.drills.crew import Process
from settled.drills.named import waited
from settled.drills.rounds import Round
from settled.drills.world import World
from settled.errors import Unavailable

OWN_S = 30.0


@contextmanager
def working(world: World, count: int, engine: str = "") -> Iterator[list[Process]]:
    """Workers that have begun before the block, outlive it, and settle all that is left. `engine`: where they find it,
    if not where the others do."""
    where = {"engine": engine} if engine else {}
    workers = [world.start(**where) for _ in range(count)]
    for worker in workers[:1]:
        waited(lambda worker=worker: world.owns(worker), OWN_S)  # type: ignore[misc]
    yield workers
    waited(world.settled_if_reachable, OWN_S)
    for worker in workers:
        require_alive(world, worker)
    world.stop(workers)
    Round(world, "random", 0, random.Random(0)).settle()
    look(world)


def require_alive(world: World, worker: Process) -> None:
    """A worker waits for a log that is away; it does not end."""
    if not worker.alive:
        world.tell_drained(False, f"a worker ended with code {worker.code} while the log was disturbed")


def look(world: World) -> None:
    """A snapshot as soon as the brokers tell: who coordinates a group may be on the move."""

    def looked() -> bool:
        try:
            world.snapshot()
        except Unavailable:
            return False
        return True

    waited(looked, OWN_S)
