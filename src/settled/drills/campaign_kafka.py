"""The part of the campaign that runs on Kafka: `python -m settled.drills.campaign --engine kafka`. Three brokers of its
own serve all of it; what is done to brokers is done by one drill at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from settled.drills import kafka, server
from settled.drills.drill import Drill, reachable, run
from settled.drills.elsewhere import KAFKA
from settled.drills.on_kafka import ON_KAFKA
from settled.drills.report import Report
from settled.drills.world import QUICK
from settled.testing.kafka_cluster import Cluster, started

WINDOWS = "windows"
COUNTS = {WINDOWS: 200}  # deaths over all windows, and faults of each drill by name; for each store
COUNTS |= {"leader-kill": 20, "broker-rolling-restart": 9, "lost-ack": 60, "rebalance-storm": 20, "partition-cut": 12}
COUNTS |= {"stall": 12, "rolling-deploy": 20}
AT_ONCE = 4
LEAST = 2


def found(
    form: str, store: str, postgres: str, seed: int, counts: Mapping[str, int], only: Sequence[str]
) -> Iterator[tuple[str, str, Report]]:
    """What was drilled, in words, and what came of it. `counts`: as COUNTS. `only`: these drills by name."""
    with started() as cluster:
        if store in ("sqlite", "both"):
            yield from _drills("kafka-sqlite", form, cluster, "", seed, counts, only)
        if store in ("postgresql", "both"):
            with server.started(postgres) as own, own.database() as url:
                yield from _drills("kafka-pg", form, cluster, url, seed, counts, only)


def _drills(
    name: str, form: str, cluster: Cluster, store: str, seed: int, counts: Mapping[str, int], only: Sequence[str]
) -> Iterator[tuple[str, str, Report]]:
    drill = Drill(
        seed=seed,
        store=store,
        engine=kafka.OWN,
        cluster=cluster,
        at_once=AT_ONCE,
        yes=True,
        changes={**QUICK, "transport": {"form": form}},
    )
    if not only or WINDOWS in only:
        windows = reachable("effectively-once", engine=KAFKA)
        kills = max(1, -(-counts[WINDOWS] // len(windows)))
        yield name, f"{len(windows)} windows, {form}", run(msgspec.structs.replace(drill, kills=kills))
    for named in [name for name in only or counts if name != WINDOWS]:
        if store and named in ON_KAFKA and not only:
            continue  # of the log alone: once is enough
        kills = max(LEAST, counts[named])
        yield name, f"{named}, {form}", run(msgspec.structs.replace(drill, named=(named,), kills=kills))
