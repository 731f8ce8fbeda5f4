"""The part of the campaign that runs on RabbitMQ: `python -m settled.drills.campaign --engine rabbitmq --form queue`. A
node of its own serves all of it, three the drill that kills leaders. Each form is drilled in both orders: several slots
that compete, and one that keeps the order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

DEATHS = 500  # over all windows, for each form and store
COUNTS = {"stall": 120, "leader-kill": 20, "partition-cut": 12, "frame-cut": 320}
COUNTS |= {"memory-alarm": 8, "consumer-timeout": 12}
COUNTS |= {"relay": 60, "rolling-deploy": 40, "poison-burst": 20, "store-restart": 20}
ORDERS: dict[str, dict[str, Any]] = {"none": {"partitions": 4}, "key": {"partitions": 1}}
AT_ONCE = 4
LEAST = 2


def found(
    form: str, store: str, postgres: str, seed: int, part: int, only: Sequence[str]
) -> Iterator[tuple[str, str, Report]]:
    """What was drilled, in words, and what came of it; a `part`-th of all. `only`: these drills by name, or windows."""
    wanted = list(only or (WINDOWS, *COUNTS))
    for count in (1, 3):
        names = [name for name in wanted if rabbitmq.nodes_needed([name]) == count]
        if not names:
            continue
        with started(count) as nodes:
            if store in ("sqlite", "both"):
                yield from _drills("sqlite", form, nodes, None, seed, part, names)
            if store in ("postgresql", "both"):
                with server.started(postgres) as own:
                    yield from _drills("pg", form, nodes, own, seed, part, names)


def _drills(
    store: str, form: str, nodes: Nodes, postgres: Server | None, seed: int, part: int, names: Sequence[str]
) -> Iterator[tuple[str, str, Report]]:
    windows = reachable("effectively-once", engine=RABBITMQ)
    for name in names:
        whole = DEATHS if name == WINDOWS else COUNTS[name]
        share = len(ORDERS) * (len(windows) if name == WINDOWS else 1)
        kills = max(1 if name == WINDOWS else LEAST, -(-whole // part // share))
        for order in ORDERS:
            changes = changed(form, order)
            drill = Drill(
                windows=tuple(windows) if name == WINDOWS else (),
                named=() if name == WINDOWS else (name,),
                kills=kills,
                seed=seed,
                engine=rabbitmq.OWN,
                nodes=nodes,
                at_once=AT_ONCE,
                yes=True,
                changes=changes,
            )
            what = f"{len(windows)} windows" if name == WINDOWS else name
            with nullcontext("") if postgres is None else postgres.database() as url:  # ids are the same in each
                report = run(msgspec.structs.replace(drill, store=url))
            yield f"rabbitmq-{store}", f"{what}, {form}, ordering {order}", report


def changed(form: str, ordering: str) -> dict[str, Any]:
    """What a drill of this form and order states differently from the application's contract."""
    transport = {"form": form, **ORDERS[ordering]}
    return {**QUICK, "transport": transport, "delivery": {**QUICK["delivery"], "ordering": ordering}}
