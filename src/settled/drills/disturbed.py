"""What drills share that disturb brokers, or the way to them: workers that outlive it, looks that wait for answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from settled.drills.crew import Process
from settled.drills.history import Event
from settled.drills.named import BUSY_S, waited
from settled.drills.rounds import Round
from settled.drills.world import World
from settled.errors import Unavailable

OWN_S = 30.0


class Way(Protocol):
    """The way to brokers: shut until `reopen`, or one on which all is held back until `release`."""

    def shut(self) -> None: ...
    def reopen(self) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...


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


def cut_off(world: World, times: int, way: Way, engine: str) -> str:
    """A worker that finds the brokers at `engine`, by this way, is cut off beyond its lease, another takes over, then
    the first is let back in. Returns a remark."""
    for number in range(times):
        cut = world.start(engine=engine, pause_s=BUSY_S)
        waited(lambda cut=cut: world.owns(cut), OWN_S)  # type: ignore[misc]
        world.publish(world.supply.take(60))
        world.writer.write(Event(what="death", window="partition-cut", pid=cut.pid, note="cut off"))
        if number % 2:
            way.shut()
        else:
            way.hold()
        successor = world.start()
        waited(lambda successor=successor: world.owns(successor), OWN_S)  # type: ignore[misc]
        waited(world.settled, OWN_S)
        way.release()
        way.reopen()
        world.publish(world.supply.take(60))
        waited(world.settled, OWN_S)
        look(world)
        require_alive(world, cut)
        world.stop([cut, successor])
    return "now packets vanish, now connections are refused"
