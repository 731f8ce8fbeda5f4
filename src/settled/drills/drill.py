"""A drill: a round of deaths for each window, then a verdict. Windows run side by side, each on fresh databases of its
own unless the caller names some; a SQLite file that is named takes one window after the other. Each window has a topic
and a group of its own, so that a drill never publishes among the records of others.
"""

from __future__ import annotations

import random
import secrets
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from settled import connect
from settled.contract.model import Contract
from settled.drills import apps, crew, kafka, rabbitmq, report
from settled.drills.checker import EXCUSED, NO_EFFECT, Facts, Violation, check
from settled.drills.crew import Crew
from settled.drills.database import Look, with_schema
from settled.drills.elsewhere import EMBEDDED, KAFKA, RABBITMQ, elsewhere, engine_of
from settled.drills.history import Event
from settled.drills.named import NAMED, NamedDrill
from settled.drills.on_kafka import ON_KAFKA, require_possible
from settled.drills.on_rabbitmq import ON_RABBITMQ, require_nodes
from settled.drills.report import Report, Row
from settled.drills.rounds import JOURNEY, RANDOM, Round
from settled.drills.world import QUICK, SETTLE_S, World
from settled.errors import ContractError, Refused
from settled.testing.kafka_cluster import Cluster
from settled.testing.rabbitmq_nodes import Nodes
from settled.windows import NAMES, WINDOWS

ALONE: dict[str, dict[str, NamedDrill]] = {KAFKA: ON_KAFKA, RABBITMQ: ON_RABBITMQ}  # what is done to brokers
_TITLES = {KAFKA: "Kafka", RABBITMQ: "RabbitMQ"}
EVERY_NAMED = frozenset({*NAMED, *ON_KAFKA, *ON_RABBITMQ})
LOADED = {"delivery": {"group_size": {"records": 200}}}  # thousands of records a second, not single deaths
BEHIND: dict[str, Any] = {  # a compacted topic, and a group that is behind: compaction has something to spare
    "retention": {"compact": True},
    "transport": {"form": "log"},
    "delivery": {"in_flight": {"records": 8}, "group_size": {"records": 8, "linger": "40ms"}},
}
CHANGED: dict[str, dict[str, Any]] = {  # what has to be different for a window to be reached
    "retention-uncommitted": {"retention": {"bytes": "2kB", "age": "7d"}, "transport": {"form": "log"}},
    "claim-written": {"transport": {"form": "queue"}},
    "claim-committed": {"transport": {"form": "queue"}},
    "claims-removed": {"transport": {"form": "queue"}},
    "compaction-uncommitted": BEHIND,
    "compaction-unrecorded": BEHIND,
}


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    app            the application as `settled run` takes it; "" is the sample
    windows        which; none: all that the contract's mode reaches, and `random`
    named          drills by name instead of windows: `named.NAMED`, `on_kafka.ON_KAFKA`, `on_rabbitmq.ON_RABBITMQ`
    kills          deaths in each window
    records        a file of records to publish, one JSON object a line
    check          a query on the effect database: one row per effect (event id, then key and order if any)
    engine, store  addresses; none: fresh SQLite files. The engine `kafka-test:` is three brokers of the drill's own,
                   `rabbitmq-test:` a node, or three
    cluster        brokers behind `kafka-test:` that are there already
    nodes          nodes behind `rabbitmq-test:` that are there already
    folder         where databases and histories go; none: a temporary folder, kept only if something failed
    seed           repeats a plan; none: a new one
    at_once        how many windows side by side, at most
    yes            also on databases that hold other data
    settle_s       how long beyond the lease the last records may take once nothing dies any more
    command        starts the fork server
    changes        sections of the contract that are stated differently meanwhile
    """

    app: str = ""
    windows: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    kills: int = 5
    records: Path | None = None
    check: str = ""
    engine: str = ""
    store: str = ""
    cluster: Cluster | None = None
    nodes: Nodes | None = None
    folder: Path | None = None
    seed: int | None = None
    at_once: int = 4
    yes: bool = False
    settle_s: float = SETTLE_S
    command: Sequence[str] = crew.COMMAND
    changes: Mapping[str, Any] = msgspec.field(default_factory=lambda: dict(QUICK))


def run(drill: Drill, *, told: Callable[[Row], None] = lambda row: None) -> Report:
    """Do it. `told` is called with each row as it is ready, on any thread.

    Raises ContractError (an unknown window, an app that does not load), Refused (other data in the databases),
    Unavailable.
    """
    of_brokers = require_nodes(drill.named, drill.engine, drill.nodes)
    with (
        kafka.opened(drill.engine, drill.cluster) as (address, cluster),
        rabbitmq.opened(address, drill.nodes, of_brokers) as (engine, nodes),
    ):
        changes = drill.changes
        if kafka.is_kafka(engine):
            changes = kafka.with_lease(changes, engine)
        elif rabbitmq.is_rabbitmq(engine):
            changes = rabbitmq.with_lease(changes)
        return _run(msgspec.structs.replace(drill, engine=engine, cluster=cluster, nodes=nodes, changes=changes), told)


def _run(drill: Drill, told: Callable[[Row], None]) -> Report:
    began = time.monotonic()
    seed = secrets.randbelow(2**31) if drill.seed is None else drill.seed
    contract = apps.looked_at(drill.app, drill.engine, drill.store, drill.changes).contract
    names = _chosen(drill, contract)
    _refuse_other_data(drill, contract)
    folder = drill.folder or Path(tempfile.mkdtemp(prefix="settled-drill-"))
    not_here = elsewhere(engine_of(drill.engine), contract.transport.form)
    unreached = [_unreached(name, why) for name, why in not_here.items() if name in names]
    names = [name for name in names if name not in {row.window for row in unreached}]
    of_brokers = ALONE.get(engine_of(drill.engine), {})
    alone = any(name in of_brokers for name in names)  # what is done to brokers is done to all their clients
    one_file = drill.engine.startswith("sqlite:") or drill.store.startswith("sqlite:")
    with Crew(drill.command) as processes:
        task = _Task(drill, seed, folder, processes, contract.delivery.mode, told)
        with ThreadPoolExecutor(1 if one_file or alone else max(1, drill.at_once)) as pool:
            rows = [*pool.map(task.row, names), *unreached]
    failed = any(each.failed for each in rows)
    if drill.folder is None and not failed:
        shutil.rmtree(folder, ignore_errors=True)
    verdict = "fail" if failed else "pass"
    return Report(verdict=verdict, seed=seed, windows=rows, seconds=round(time.monotonic() - began, 2))


class _Task:
    """The windows of one drill. Any thread."""

    def __init__(
        self, drill: Drill, seed: int, folder: Path, processes: Crew, mode: str, told: Callable[[Row], None]
    ) -> None:
        self._drill, self._seed, self._folder, self._crew = drill, seed, folder, processes
        self._mode, self._told, self._lock = mode, told, threading.Lock()

    def row(self, name: str) -> Row:
        drill, began = self._drill, time.monotonic()
        folder = self._folder / name
        prefix = f"drill-{self._seed}-{name}"
        apart = {"transport": {"topic": prefix}, "delivery": {"group": prefix}}  # never among the application's own
        changes = _merged(drill.changes, apart)
        changes = _merged(changes, CHANGED.get(name, {}))
        engine = engine_of(drill.engine)
        by_name = (NAMED | ALONE.get(engine, {})).get(name)
        if name in ON_KAFKA and engine == KAFKA:
            changes = _merged(changes, LOADED)
        chance = random.Random(f"{self._seed}:{name}")
        with World(
            self._crew,
            folder,
            app=drill.app,
            engine=drill.engine,
            store=with_schema(drill.store, prefix.replace("-", "_")) if _relays(name) else drill.store,
            changes=changes,
            prefix=f"{prefix}-",
            records=drill.records,
            settle_s=drill.settle_s,
            cluster=drill.cluster,
            nodes=drill.nodes,
        ) as world:
            if by_name is not None:
                kills, note = by_name(world, drill.kills, chance)
            else:
                found = Round(world, name, drill.kills, chance)
                found.run()
                kills, note = found.deaths, ""
                if kills < drill.kills:
                    note = f"{kills} of {drill.kills} kills came about: the window was not reached more often"
            world.require_sound()
            history = world.collect()
            resumed = report.resumes(history)
            world.writer.write_all(resumed)
        violations = check([*history, *resumed], mode=self._mode, order=world.order)
        if drill.check:
            violations = _by_query(drill, history, violations, self._mode, world.store_url)
        violations += _nothing_applied(history)
        row = report.row(
            name,
            [*history, *resumed],
            violations,
            kills=kills,
            seconds=time.monotonic() - began,
            note=note,
            kept=str(folder) if violations else "",
        )
        if engine == KAFKA and not violations:
            kafka.forget(drill.engine, prefix, prefix)
        elif engine == RABBITMQ:
            rabbitmq.forget(drill.engine, world.contract)
        with self._lock:
            self._told(row)
        return row


def _relays(name: str) -> bool:
    """Whether relays run: they would publish another drill's rows, to a log that is not theirs."""
    return name == "relay" or JOURNEY.get(name) == "relay"


def _chosen(drill: Drill, contract: Contract) -> list[str]:
    known = NAMES | {RANDOM}
    for field, wanted, there in (("window", drill.windows, known), ("drill", drill.named, EVERY_NAMED)):
        for name in wanted:
            if name not in there:
                raise ContractError(
                    f"there is no {field} {name!r}", field=field, value=name, hint=f"known: {', '.join(sorted(there))}"
                )
    _require_brokers(drill)
    require_possible(drill.named, drill.engine, drill.cluster)
    if drill.windows or drill.named:
        return list(dict.fromkeys([*drill.windows, *drill.named]))
    outside = any((contract.external.repeat, contract.external.reconcile, contract.external.quarantine))
    names = reachable(contract.delivery.mode, outside=outside, engine=engine_of(drill.engine))
    by_key = contract.transport.key is not None and contract.transport.form != "queue"
    return [name for name in names if by_key or not name.startswith("compaction-")]


def _require_brokers(drill: Drill) -> None:
    """Raises ContractError for drills that this engine does not have."""
    there = NAMED.keys() | ALONE.get(engine_of(drill.engine), {}).keys()
    for name in drill.named:
        if name not in there:
            having = " and ".join(_TITLES[engine] for engine, drills in ALONE.items() if name in drills)
            raise ContractError(
                f"only {having} has {name}",
                field="engine",
                value=drill.engine,
                hint=f"--engine {kafka.OWN} or {rabbitmq.OWN} starts brokers of the drill's own",
            )


def reachable(mode: str, *, outside: bool = True, engine: str = EMBEDDED, form: str = "") -> list[str]:
    """The windows that a process comes by under a delivery mode, and `random`; `outside`: it makes calls outside.
    `form` leaves out those that only other forms have."""
    place = {"at-most-once": "most", "at-least-once": "least", "effectively-once": "effectively"}[mode]
    there = [window for window in WINDOWS if window.name not in elsewhere(engine, form)]
    names = [window.name for window in there if getattr(window, place).lost != "not reached"]
    names = [name for name in names if outside or JOURNEY[name] != "external"]
    return [*names, RANDOM]


def _unreached(name: str, why: str) -> Row:
    """A window that no process of ours comes by on this engine."""
    return report.row(name, [], [], kills=0, seconds=0.0, note=f"not reached: {why}")


def _refuse_other_data(drill: Drill, contract: Contract) -> None:
    """A drill publishes and kills: not beside data of others, unless told so."""
    if drill.yes or not (drill.engine or drill.store):
        return
    app = apps.looked_at(drill.app, drill.engine, drill.store, drill.changes)
    with app:
        if drill.engine:
            held = [info.spec.name for info in app.engine.topics() if any(part.end for part in info.partitions)]
            _refuse(drill.engine, held, "topics with records")
        if drill.store:
            connect.store(drill.store).close()  # what is wrong with the address is told as everywhere
            look = Look(drill.store)
            try:
                _refuse(drill.store, look.tables(), "tables with rows")
            finally:
                look.close()


def _refuse(url: str, held: Sequence[str], what: str) -> None:
    if held:
        place = url.rpartition("@")[2]
        raise Refused(
            f"{place} holds other data ({what}: {', '.join(held[:5])})",
            hint="give the drill databases of its own, or --yes to drill beside this data",
        )


def _merged(changes: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**changes, **{name: {**changes.get(name, {}), **value} for name, value in more.items()}}


def _by_query(
    drill: Drill, history: Sequence[Event], violations: Sequence[Violation], mode: str, store_url: str
) -> list[Violation]:
    """Loss, doubling and order by the user's own rows; what else the history shows stays."""
    look = Look(store_url)
    try:
        rows = look.check(drill.check)
    finally:
        look.close()
    facts = Facts(history)
    published = facts.logged.keys() | {event.id for event in facts.accepted}
    found = [violation for violation in violations if violation.kind not in ("lost", "doubled", "order", "hollow")]
    found += compared(published, facts.outcomes, rows)
    return [violation for violation in found if violation.kind not in EXCUSED[mode]]


def compared(published: set[str], outcomes: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> list[Violation]:
    """What was published against what the query found: (event id [, key [, order]]) in order of insertion."""
    if rows and not isinstance(rows[0][0], str):
        raise ContractError(
            f"the check query's first column holds {rows[0][0]!r}",
            field="check",
            hint="its first column must be the event id, as text",
        )
    counts = Counter(row[0] for row in rows if row[0] in published)
    found = []
    for id in sorted(published):
        if not counts[id] and outcomes.get(id) not in NO_EFFECT:
            found.append(Violation("I1", "lost", f"{id} has no row", id))
        elif counts[id] > 1:
            found.append(Violation("I2", "doubled", f"{id} has {counts[id]} rows", id))
    last: dict[Any, Any] = {}
    seen: set[str] = set()
    for row in rows:
        if len(row) < 3 or row[0] in seen or row[0] not in published:
            continue
        seen.add(row[0])
        if row[1] in last and row[2] < last[row[1]]:
            what = f"key {row[1]}: {row[2]} ({row[0]}) stands after {last[row[1]]}"
            found.append(Violation("I3", "order", what, row[0]))
        last[row[1]] = row[2]
    return found


def _nothing_applied(history: Sequence[Event]) -> list[Violation]:
    """A drill in which every record was refused proves nothing."""
    facts = Facts(history)
    if facts.accepted and not facts.effects and "quarantined" in facts.outcomes.values():
        what = "every record went to quarantine, so nothing was tried; give records that the handler takes (--records)"
        return [Violation("I1", "nothing-applied", what)]
    return []
