"""Drills by name: faults that are more than a death in one window. Each takes a world, how often, and chance; it leaves
a history behind and returns how many faults there were, with a remark.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from settled.drills.history import Event
from settled.drills.order import Death
from settled.drills.rounds import TICK_S, Round
from settled.drills.world import World

NamedDrill = Callable[[World, int, random.Random], tuple[int, str]]
ZOMBIE_WINDOWS = ("unit-begun", "effect-made", "marks-written", "effect-committed", "fence-unwritten", "handler")


def stall(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """A worker is stopped (SIGSTOP) beyond its lease; another takes over and works; then it goes on, a zombie."""
    finish = Round(world, "random", 0, chance)
    zombies = 0
    for number in range(times):
        world.publish(world.supply.take(30))
        window = ZOMBIE_WINDOWS[number % len(ZOMBIE_WINDOWS)]
        zombie = world.start(death=Death(window=window, nth=chance.randint(1, 2), action="stop"))
        if not world.crew.wait_stopped(zombie, 10.0) or not zombie.stopped:
            world.stop([zombie])
            continue
        successor = world.start()
        _wait(lambda: world.settled(), world.lease_s * 3)  # behind a lock that the zombie holds it settles nothing
        world.crew.send(zombie, signal.SIGCONT)
        zombies += 1
        _wait(lambda: world.settled(), 10.0)
        world.snapshot()
        world.stop([zombie, successor])
    finish.settle()
    world.snapshot()
    return zombies, f"{zombies} zombies"


def rolling_deploy(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """Three workers are replaced one after the other (SIGTERM), again and again, under load."""
    workers = [world.start() for _ in range(3)]
    stopped = 0
    for number in range(times):
        world.publish(world.supply.take(40))
        old = workers[number % 3]
        workers[number % 3] = world.start()
        world.crew.terminate(old)
        worked = world.owns(old)
        if not world.crew.wait_ended(old, 20.0) or (old.code != 0 and worked):
            note = f"a worker ended with code {old.code} on SIGTERM"
            world.writer.write(Event(what="drained", step="fail", note=note))
        stopped += 1
        world.snapshot()
    world.stop(workers)
    Round(world, "random", 0, chance).settle()
    return stopped, f"{stopped} clean stops"


def poison_burst(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """A third of the records is rejected, while workers die at random."""
    accept = world.folder / "accept"
    deaths = 0
    for _ in range(times):
        world.publish(world.supply.take(60, reject_every=3, accept=accept))
        worker = world.start(death=Death(window="effect-committed", nth=chance.randint(1, 12)))
        _wait(lambda worker=worker: not worker.alive or world.settled(), 10.0)  # type: ignore[misc]
        deaths += worker.killed
        world.stop([worker] if worker.alive else [])
        world.snapshot()
    Round(world, "random", 0, chance).settle()
    return deaths, "a third of the records rejected"


def hot_key(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """Every record has the same key, while workers die."""
    world.supply.one_key()
    found = Round(world, "effect-made", times, chance)
    found.run()
    return found.deaths, "one key"


def _wait(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(TICK_S)
    return True


NAMED: dict[str, NamedDrill] = {
    "stall": stall,
    "rolling-deploy": rolling_deploy,
    "poison-burst": poison_burst,
    "hot-key": hot_key,
}
