"""The campaign behind `make drills`: `python -m settled.drills.campaign [--full]`.

Thousands of deaths over all windows on both stores, stopped and woken workers, and on PostgreSQL what a server can do
to its clients. One table comes out of it (what, how often, seed, seconds, violations) and, with --json, a file.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from settled.drills import campaign_kafka, campaign_rabbitmq, report, server
from settled.drills.checker import check
from settled.drills.crew import Crew, Process
from settled.drills.drill import Drill, reachable, run
from settled.drills.report import Report, Row
from settled.drills.server import Server
from settled.drills.world import QUICK, World

WINDOWS = campaign_kafka.WINDOWS  # as --drill: deaths in all windows
COUNTS = {WINDOWS: 2000}  # deaths over all windows, and faults of each drill by name; for each store
COUNTS |= {"stall": 200, "rolling-deploy": 60, "poison-burst": 40, "hot-key": 60, "slow-store": 40}
COUNTS |= {"store-restart": 40, "clock-jump": 60, "disk-full": 40}
COUNTS |= {"relay": 300, "external-call": 300}
SERVER_COUNTS = {"backends": 500, "restarts": 20, "cuts": 200}
SMALL = 20  # a run without --full does a twentieth
AT_ONCE = 6
RELAYS_AT_ONCE = 3  # a relay has several connections, and a server has a hundred


class Line(msgspec.Struct, frozen=True):
    """One line of the table."""

    id: str
    what: str
    count: int
    seed: int
    seconds: float
    violations: int
    rows: list[Row]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m settled.drills.campaign", description="Drill both stores.")
    parser.add_argument("--full", action="store_true", help="thousands of deaths; else a twentieth of it")
    parser.add_argument("--kills", type=int, metavar="N", help="so many faults in each line of the table")
    parser.add_argument("--seed", type=int, help="repeat the plan of an earlier run")
    brokers = "kafka: three brokers of its own; rabbitmq: nodes of its own"
    parser.add_argument("--engine", choices=("sqlite", "kafka", "rabbitmq"), default="sqlite", help=brokers)
    forms = "of the topics; log, pubsub: everywhere, queue: on the embedded engine and RabbitMQ"
    parser.add_argument("--form", choices=("log", "queue", "pubsub"), help=forms)
    parser.add_argument("--store", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--postgres", default="", metavar="URL", help="a server on which databases may be made")
    named = "only this drill by name, or the windows; repeatable"
    known = sorted({*COUNTS, *campaign_kafka.COUNTS, *campaign_rabbitmq.COUNTS})
    parser.add_argument("--drill", action="append", choices=known, help=named)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there")
    asked = parser.parse_args(arguments)
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    lines: list[Line] = []
    if asked.kills is not None and asked.kills < 1:
        parser.error(f"--kills {asked.kills}: give 1 or more")
    form = asked.form or ("queue" if asked.engine == "rabbitmq" else "log")
    if asked.engine == "kafka" and form == "queue":
        parser.error(f"--form {form}: on kafka there are logs and pub/sub")
    whole = {
        "sqlite": COUNTS | SERVER_COUNTS,
        "kafka": campaign_kafka.COUNTS,
        "rabbitmq": campaign_rabbitmq.counts_of(form),
    }[asked.engine]
    counts = {name: asked.kills or (count if asked.full else -(-count // SMALL)) for name, count in whole.items()}
    only = asked.drill or ()
    for name in only:
        if name not in counts:
            why = campaign_rabbitmq.NOT_OF_LOGS.get(name, "") if (asked.engine, form) == ("rabbitmq", "log") else ""
            there = ", ".join(sorted(counts))
            parser.error(f"--drill {name}: not on {asked.engine} with form {form}; {why or f'there are {there}'}")
    if asked.engine == "kafka":
        found = _reported(campaign_kafka.found(form, asked.store, asked.postgres, seed, counts, only))
    elif asked.engine == "rabbitmq":
        found = _reported(campaign_rabbitmq.found(form, asked.store, asked.postgres, seed, counts, only))
    else:
        found = _lines(asked.store, asked.postgres, seed, counts, only, form)
    for line in found:
        lines.append(line)
        print(f"{line.id:12} {line.what:38} {line.count:6} kills {line.seconds:7.1f} s {line.violations:3} violations")
        for row in line.rows:
            for text in report.remarks(row) if row.failed else ():
                print(text)
        sys.stdout.flush()
    violations = sum(line.violations for line in lines)
    kills = sum(line.count for line in lines)
    print(f"{kills} faults, {violations} violations, seed {seed}")
    if asked.json is not None:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode({"seed": seed, "lines": lines})))
    return 1 if violations else 0


def _lines(
    store: str, postgres: str, seed: int, counts: Mapping[str, int], only: Sequence[str], form: str
) -> Iterator[Line]:
    if store in ("sqlite", "both"):
        yield from _drills("sqlite", "", seed, counts, only, form)
    if store in ("postgresql", "both"):
        with server.started(postgres) as found:
            with found.database() as url:
                yield from _drills("postgresql", url, seed, counts, only, form)
            if only or form == "queue":
                return
            yield _of(
                "pg-backends", "backends terminated", _faults(found, terminate_backends, seed, counts, "backends")
            )
            yield _of("pg-cuts", "commits cut before their answer", _faults(found, cut_commits, seed, counts, "cuts"))
            if found.can_stop:
                restarted = _faults(found, restart_server, seed, counts, "restarts")
                yield _of("pg-restarts", "server stopped (immediate), started", restarted)


def _reported(drilled: Iterator[tuple[str, str, Report]]) -> Iterator[Line]:
    for name, what, found in drilled:
        yield _of(name, what, (found.seed, found.windows, found.seconds))


def _drills(
    name: str, url: str, seed: int, counts: Mapping[str, int], only: Sequence[str], form: str
) -> Iterator[Line]:
    """All windows, then the drills by name; or only those named."""
    changes = {**QUICK, "transport": {"form": form}}
    if not only or WINDOWS in only:
        windows = reachable("effectively-once")
        kills = max(1, -(-counts[WINDOWS] // len(windows)))
        found = run(Drill(kills=kills, seed=seed, store=url, at_once=AT_ONCE, yes=True, changes=changes))
        yield _of(f"{name}-windows", f"{len(windows)} windows", (found.seed, found.windows, found.seconds))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for drill in [name for name in only or COUNTS if name != WINDOWS]:
            at_once = RELAYS_AT_ONCE if drill == "relay" else AT_ONCE
            share = max(2, -(-counts[drill] // at_once))
            shares = [
                Drill(named=(drill,), kills=share, seed=seed + at, store=url, yes=True, changes=changes)
                for at in range(at_once)
            ]
            began = time.monotonic()
            rows = [row for found in pool.map(run, shares) for row in found.windows]
            yield _of(name, drill, (seed, rows, time.monotonic() - began))


def _of(id: str, what: str, found: tuple[int, list[Row], float]) -> Line:
    seed, rows, seconds = found
    violations = sum(len(row.violations) for row in rows)
    return Line(id, what, sum(row.kills for row in rows), seed, round(seconds, 1), violations, rows)


# What a server can do to its clients.

Fault = Callable[[World, Server, str, int, random.Random], int]


def _faults(
    found: Server, fault: Fault, seed: int, counts: Mapping[str, int], name: str
) -> tuple[int, list[Row], float]:
    began = time.monotonic()
    times = max(2, counts[name])
    chance = random.Random(f"{seed}:{name}")
    with tempfile.TemporaryDirectory(prefix="settled-campaign-") as folder, Crew() as crew, found.database() as url:
        with World(crew, Path(folder), store=url, changes=QUICK, prefix=f"{name}-{seed}-") as world:
            count = fault(world, found, url, times, chance)
            worker = world.start(drained=True)
            done = world.crew.wait_ended(worker, world.settle_s) and world.settled()
            world.tell_drained(done)
            world.require_sound()
            world.snapshot()
            history = world.collect()
        violations = check(history)
    seconds = time.monotonic() - began
    return seed, [report.row(name, history, violations, kills=count, seconds=seconds)], seconds


def _owners(world: World, **fields: Any) -> list[Process]:
    """Two workers that have begun: one that does not reach the store at its start ends, as it should."""
    workers = [world.start(**fields) for _ in range(2)]
    deadline = time.monotonic() + world.settle_s
    while not all(world.owns(worker) for worker in workers) and time.monotonic() < deadline:
        world.crew.wait(workers, 0.05)
    return workers


def terminate_backends(world: World, found: Server, url: str, times: int, chance: random.Random) -> int:
    """The backends of the workers are terminated while they work."""
    before = found.backends(url)
    workers = _owners(world)
    ended = 0
    while ended < times and all(worker.alive for worker in workers):
        world.publish(world.supply.take(20))
        for _ in range(5):
            ended += found.terminate(url, keeping=before)
            world.crew.wait(workers, chance.uniform(0.005, 0.05))
    world.stop(workers)
    return ended


def cut_commits(world: World, found: Server, url: str, times: int, chance: random.Random) -> int:
    """The answers of commits are lost on their way."""
    with _proxy(url, chance) as proxy:
        workers = _owners(world, store=proxy.url)
        proxy.cut_share = 0.4
        while proxy.cuts < times and all(worker.alive for worker in workers):
            world.publish(world.supply.take(30))
            world.crew.wait(workers, 0.1)
        proxy.cut_share = 0.0
        world.stop(workers)
        return proxy.cuts


@contextmanager
def _proxy(url: str, chance: random.Random) -> Iterator[server.PostgresProxy]:
    proxy = server.PostgresProxy(url, chance)
    try:
        yield proxy
    finally:
        proxy.close()


def restart_server(world: World, found: Server, url: str, times: int, chance: random.Random) -> int:
    """The server is stopped without any good-bye, and started again; the workers carry on by themselves."""
    workers = _owners(world)
    for _ in range(times):
        world.publish(world.supply.take(60))
        world.crew.wait(workers, chance.uniform(0.0, 0.2))
        found.restart()
        deadline = time.monotonic() + 20.0
        while not world.settled_if_reachable() and time.monotonic() < deadline:
            time.sleep(0.05)
    alive = all(worker.alive for worker in workers)
    world.tell_drained(alive, note="a worker ended when the server was restarted")
    world.stop(workers)
    return times


if __name__ == "__main__":
    raise SystemExit(main())
