"""Drills by name: faults that are more than a death in one window. Each takes a world, how often, and chance; it leaves
a history behind and returns how many faults there were, with a remark.
"""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from settled import sqlite
from settled.drills.history import Event
from settled.drills.order import Death
from settled.drills.outside import external_call, relay
from settled.drills.proxy import PostgresProxy
from settled.drills.rounds import TICK_S, Round
from settled.drills.world import World

NamedDrill = Callable[[World, int, random.Random], tuple[int, str]]
BUSY_S = 0.005  # each handler takes so much longer, so that there is work under way when a worker is told to stop
HOLD_THE_LOCK = frozenset({"effect-made", "marks-written", "handler"})  # on SQLite nobody else can write meanwhile
ZOMBIE_WINDOWS = ("unit-begun", "effect-made", "marks-written", "effect-committed", "fence-unwritten", "handler")


def stall(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """A worker is stopped (SIGSTOP) beyond its lease; another takes over and works; then it goes on, a zombie."""
    finish = Round(world, "random", 0, chance)
    zombies = overtaken = 0
    for number in range(times):
        world.publish(world.supply.take(30))
        window = ZOMBIE_WINDOWS[number % len(ZOMBIE_WINDOWS)]
        zombie = world.start(death=Death(window=window, nth=chance.randint(1, 2), action="stop"))
        if not world.crew.wait_stopped(zombie, 10.0) or not zombie.stopped:
            world.stop([zombie])
            continue
        successor = world.start()
        locked = world.store_url.startswith("sqlite:") and window in HOLD_THE_LOCK
        waited(lambda successor=successor: world.owns(successor), world.takeover_s if locked else 10.0)  # type: ignore[misc]
        overtaken += waited(world.settled, world.takeover_s)
        world.crew.send(zombie, signal.SIGCONT)
        zombies += 1
        waited(world.settled, 10.0)
        world.snapshot()
        world.stop([zombie, successor])
    finish.settle()
    world.snapshot()
    return zombies, f"{zombies} zombies, for {overtaken} of which others had settled all before they went on"


def rolling_deploy(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """Three workers are replaced one after the other (SIGTERM), again and again, under load."""
    workers = [world.start(pause_s=BUSY_S) for _ in range(3)]
    stopped = 0
    for number in range(times):
        world.publish(world.supply.take(40))
        old = workers[number % 3]
        workers[number % 3] = world.start(pause_s=BUSY_S)
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
        waited(lambda worker=worker: not worker.alive or world.settled(), 10.0)  # type: ignore[misc]
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


def slow_store(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """The effect store takes its time, again and again, while workers die."""
    with _disturbed(world, chance) as store:
        worker = world.start(store=store.url)
        deaths = 0
        for _ in range(times):
            world.publish(world.supply.take(30))
            store.slow(0.3)
            if chance.random() < 0.5:
                world.writer.write(Event(what="death", window="slow-store", pid=worker.pid))
                world.crew.end(worker)
                deaths += 1
                worker = world.start(store=store.url)
            store.quick()
            world.snapshot()
        world.stop([worker])
    Round(world, "random", 0, chance).settle()
    return times, f"{store.did} {times} times, {deaths} deaths meanwhile"


def store_restart(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """The effect store goes away and comes back; the same workers carry on, and no attempt is burnt."""
    with _disturbed(world, chance) as store:
        worker = world.start(store=store.url)
        waited(lambda: world.owns(worker), 10.0)  # a worker that finds no store when it starts ends at once
        for _ in range(times):
            world.publish(world.supply.take(30))
            store.away(chance.uniform(0.1, 0.6))
            waited(world.settled, 15.0)
            world.snapshot()
        carried_on = worker.alive
        world.stop([worker])
    if not carried_on:
        world.writer.write(Event(what="drained", step="fail", note=f"the worker ended with code {worker.code}"))
    Round(world, "random", 0, chance).settle()
    return times, f"{store.gone} {times} times"


def clock_jump(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """Workers whose own wall clock is an hour or a month off take over from one another."""
    found = Round(world, "effect-made", times, chance)
    found.clocks = (3600.0, -3600.0, 30 * 86400.0, -30 * 86400.0, 0.0)
    found.run()
    note = "each worker's own clock (time.time) is off by up to a month; the kernel's, which leases go by, is not"
    return found.deaths, note


def disk_full(world: World, times: int, chance: random.Random) -> tuple[int, str]:
    """Files cannot grow (RLIMIT_FSIZE) for a while; the worker waits, and carries on when there is room again."""
    worker = world.start()
    no_limit = resource.RLIM_INFINITY
    for _ in range(times):
        waited(lambda: world.owns(worker), 10.0)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (chance.choice((0, 4096, 65536)), no_limit))
        world.publish(world.supply.take(30))
        world.crew.wait([worker], 0.4)
        if worker.alive:
            resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (no_limit, no_limit))
        waited(world.settled, 15.0)
        world.snapshot()
        if not worker.alive:
            break
    if not worker.alive:
        world.writer.write(Event(what="drained", step="fail", note=f"the worker ended with code {worker.code}"))
    world.stop([worker])
    Round(world, "random", 0, chance).settle()
    return times, f"no file of the worker could grow for a while, {times} times"


class _Lock:
    """A SQLite store that is disturbed: its write lock is held from outside."""

    did = gone = "the database was locked"

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = sqlite.open_connection(sqlite.path_of(url)[0])

    def slow(self, seconds: float) -> None:
        self.away(seconds)

    def quick(self) -> None:
        """It is already."""

    def away(self, seconds: float) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


class _Way:
    """A PostgreSQL store that is disturbed: on the way to it."""

    did, gone = "each packet took 50 ms", "all connections were cut and none was let through"

    def __init__(self, url: str, chance: random.Random) -> None:
        self._proxy = PostgresProxy(url, chance)
        self.url = self._proxy.url

    def slow(self, seconds: float) -> None:
        self._proxy.delay_s = 0.05
        time.sleep(seconds)

    def quick(self) -> None:
        self._proxy.delay_s = 0.0

    def away(self, seconds: float) -> None:
        self._proxy.shut()
        time.sleep(seconds)
        self._proxy.reopen()

    def close(self) -> None:
        self._proxy.close()


@contextmanager
def _disturbed(world: World, chance: random.Random) -> Iterator[_Lock | _Way]:
    url = world.store_url
    store = _Lock(url) if url.startswith("sqlite:") else _Way(url, chance)
    try:
        yield store
    finally:
        store.close()


def waited(done: Callable[[], bool], seconds: float) -> bool:
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
    "slow-store": slow_store,
    "store-restart": store_restart,
    "hot-key": hot_key,
    "clock-jump": clock_jump,
    "disk-full": disk_full,
    "relay": relay,
    "external-call": external_call,
}
