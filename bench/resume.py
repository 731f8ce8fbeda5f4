"""How long the work of a worker waits that was killed, or was asked to stop, until another runs its records.

Two real workers with a lease of 5 s; each time one of them is ended while records arrive, and another is started in its
place. Time runs from the signal until another process runs a record of the partitions that the ended one had; after a
SIGKILL it must be a record that waited at that moment (a worker that is asked to stop runs what it holds first).
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from settled.drills import history, report, server
from settled.drills.checker import check
from settled.drills.crew import Crew, Process
from settled.drills.history import Event
from settled.drills.world import QUICK, World

LEASE_S = 5.0
WORLDS = 5  # side by side: most of the time is waiting
WAITING = 160  # records that are there when the worker ends
PAUSE_S = 0.005  # each record takes so long
CHANGES = QUICK | {"delivery": {**QUICK["delivery"], "lease": f"{LEASE_S:g}s"}}


def compare(times: int, say: Callable[[str], None]) -> dict[str, Any]:
    """`times` kills and `times` clean stops on each store; seconds, and what the checker found wrong."""
    found: dict[str, Any] = {}
    with server.started() as postgres:
        for name, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGTERM)):
            found[f"sqlite_{name}"] = _side_by_side(number, times, [""] * WORLDS)
            say(f"resume sqlite {name}: {found[f'sqlite_{name}']}")
            with postgres.database() as url:
                found[f"postgresql_{name}"] = _side_by_side(number, times, [url] * WORLDS)
            say(f"resume postgresql {name}: {found[f'postgresql_{name}']}")
    return {"lease_s": LEASE_S, **found}


def _side_by_side(number: signal.Signals, times: int, stores: list[str]) -> dict[str, Any]:
    share = -(-times // len(stores))
    with ThreadPoolExecutor(len(stores)) as pool:
        parts = list(pool.map(lambda each: _world(number, share, *each), enumerate(stores)))
    seconds = sorted(each for part, _ in parts for each in part)
    return {
        "ended": share * len(stores),
        "measured": len(seconds),
        "p50_s": round(seconds[len(seconds) // 2], 3),
        "p99_s": round(seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))], 3),
        "most_s": round(seconds[-1], 3),
        "violations": sum(wrong for _, wrong in parts),
    }


def _world(number: signal.Signals, times: int, at: int, store: str) -> tuple[list[float], int]:
    chance = random.Random(at)
    name = f"resume-{number.name.lower()}-{at}"
    changes = CHANGES | {"transport": {"topic": name}, "delivery": {**CHANGES["delivery"], "group": name}}
    with tempfile.TemporaryDirectory(prefix="settled-bench-") as folder, Crew() as crew:
        with World(crew, Path(folder), store=store, changes=changes, prefix=f"{name}-") as world:
            workers = [world.start(pause_s=PAUSE_S) for _ in range(2)]
            for _ in range(times):
                _both_own(world, workers)
                world.publish(world.supply.take(WAITING))
                ended = workers.pop(chance.randrange(2))
                world.writer.write(Event(what="death", window="random", pid=ended.pid))
                crew.send(ended, number)
                world.publish(world.supply.take(WAITING))
                workers.append(world.start(pause_s=PAUSE_S))
                _wait(world.settled, LEASE_S + world.settle_s)
            world.tell_drained(world.settled())
            world.stop(workers)
            world.snapshot()
            events = world.collect()
        written = history.read(Path(folder))
        killed = number == signal.SIGKILL
        return ([event.seconds for event in report.resumes(written)] if killed else _handed_over(written)), len(
            check(events)
        )


def _handed_over(events: list[Event]) -> list[float]:
    """From each stop until another process ran a record of one of the partitions that the stopped one had then."""
    owned: dict[int, set[int]] = {}
    waiting: tuple[Event, frozenset[int]] | None = None
    found = []
    for event in sorted(events, key=lambda event: event.t):
        if event.what == "owner":
            mine = owned.setdefault(event.pid, set())
            (mine.add if event.outcome == "assigned" else mine.discard)(event.partition)
        elif event.what == "death":
            waiting = event, frozenset(owned.get(event.pid, ()))
        elif event.what == "deliver" and waiting and event.pid != waiting[0].pid and event.partition in waiting[1]:
            found.append(event.t - waiting[0].t)
            waiting = None
    return found


def _both_own(world: World, workers: list[Process]) -> None:
    _wait(lambda: all(world.owns(worker) for worker in workers), LEASE_S + world.settle_s)


def _wait(reached: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.02)
