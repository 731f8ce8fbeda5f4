"""The part of the campaign that runs on RabbitMQ: `python -m settled.drills.campaign --engine rabbitmq --form queue`. A
node of its own serves all of it, three the drill that kills leaders. Queues and subscriptions are drilled in both
orders: several slots that compete, and one that keeps the order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from settled.drills import rabbitmq, server
from settled.drills.campaign_kafka import WINDOWS
from settled.drills.drill import Drill, reachable, run
from settled.drills.elsewhere import RABBITMQ
from settled.drills.report import Report
from settled.drills.server import Server
from settled.drills.world import QUICK
from settled.testing.rabbitmq_nodes import Nodes, started

COUNTS = {WINDOWS: 500}  # deaths over all windows, and faults of each drill by name; for each form and store
COUNTS |= {"stall": 120, "leader-kill": 20, "partition-cut": 12, "frame-cut": 320}
COUNTS |= {"memory-alarm": 8, "consumer-timeout": 12}
COUNTS |= {"relay": 60, "rolling-deploy": 40, "poison-burst": 20, "store-restart": 20}
PARTITIONS = {("log", "key"): 4, ("queue", "none"): 4, ("queue", "key"): 1, ("pubsub", "none"): 4, ("pubsub", "key"): 1}
SETTLE_S = 40.0
NOT_OF_LOGS = {  # drill -> why
    "consumer-timeout": "nothing of a log is claimed",
    "leader-kill": "a stream without a leader confirms what it does not store: see decision 040",
}
AT_ONCE = 4
LEAST = 2


def counts_of(form: str) -> dict[str, int]:
    """COUNTS, as far as a topic of this form can be drilled."""
    return {name: count for name, count in COUNTS.items() if form != "log" or name not in NOT_OF_LOGS}


def found(
    form: str, store: str, postgres: str, seed: int, counts: Mapping[str, int], only: Sequence[str]
) -> Iterator[tuple[str, str, Report]]:
    """What was drilled, in words, and what came of it. `counts`: as COUNTS. `only`: these by name, or windows."""
    for count in (1, 3):
        names = [name for name in only or counts if rabbitmq.nodes_needed([name]) == count]
        if not names:
            continue
        with started(count) as nodes:
            if store in ("sqlite", "both"):
                yield from _drills("sqlite", form, nodes, None, seed, counts, names)
            if store in ("postgresql", "both"):
                with server.started(postgres) as own:
                    yield from _drills("pg", form, nodes, own, seed, counts, names)


def _drills(
    store: str,
    form: str,
    nodes: Nodes,
    postgres: Server | None,
    seed: int,
    counts: Mapping[str, int],
    names: Sequence[str],
) -> Iterator[tuple[str, str, Report]]:
    windows = reachable("effectively-once", engine=RABBITMQ, form=form)
    orders = [order for of, order in PARTITIONS if of == form]
    for name in names:
        share = len(orders) * (len(windows) if name == WINDOWS else 1)
        kills = max(1 if name == WINDOWS else LEAST, -(-counts[name] // share))
        for order in orders:
            changes = changed(form, order)
            drill = Drill(
                windows=tuple(windows) if name == WINDOWS else (),
                named=() if name == WINDOWS else (name,),
                kills=kills,
                seed=seed,
                engine=rabbitmq.OWN,
                nodes=nodes,
                at_once=AT_ONCE,
                settle_s=SETTLE_S,
                yes=True,
                changes=changes,
            )
            what = f"{len(windows)} windows" if name == WINDOWS else name
            with nullcontext("") if postgres is None else postgres.database() as url:  # ids are the same in each
                report = run(msgspec.structs.replace(drill, store=url))
            yield f"rabbitmq-{store}", f"{what}, {form}, ordering {order}", report


def changed(form: str, ordering: str) -> dict[str, Any]:
    """What a drill of this form and order states differently from the application's contract."""
    changes = {
        **QUICK,
        "transport": {"form": form, "partitions": PARTITIONS[form, ordering]},
        "delivery": {**QUICK["delivery"], "ordering": ordering},
    }
    if form == "log":
        changes["producer"] = {**QUICK["producer"], "durability": "memory"}
    return changes
