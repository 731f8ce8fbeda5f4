"""The outbox: the relay against the engine's own publishing, what one outbox row costs a transaction on PostgreSQL, and
a backlog drained at a governed rate in flat memory.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import psycopg

from bench import runs
from bench.workload import TOPIC, folder, messages
from settled import connect, outbox
from settled.drills.server import started
from settled.engine import TopicSpec
from settled.outbox import Relay, RelayPolicy
from settled.outbox_row import INSERT, row_of
from settled.record import Message
from settled.store import Store
from settled.testing.postgres import database

REPEATS = 5
OTHER = "INSERT INTO app_other (id, customer, sku, quantity) VALUES (%s, %s, %s, %s)"
OTHERS = "CREATE TABLE app_other (id text PRIMARY KEY, customer text, sku text, quantity integer)"
ORDER = "INSERT INTO app_order (id, customer, sku, quantity) VALUES (%s, %s, %s, %s)"
ORDERS = (
    "CREATE TABLE app_order"
    " (id text PRIMARY KEY, customer text, sku text, quantity integer, at timestamptz DEFAULT now())"
)


def compare(count: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    return {
        "relay": compare_relay(count // 2, say),
        "insert": compare_insert(10.0, say),
        "backlog": measure_backlog(count, 5000.0),
    }


def compare_relay(count: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Records a second: the engine's own publishing, and the relay from a SQLite store and from PostgreSQL."""
    made = messages(count, 1000)
    rates: dict[str, list[float]] = {"engine": [], "relay_sqlite": [], "relay_postgres": []}
    for run in range(REPEATS):
        with folder() as place, database() as server:
            rates["engine"].append(runs.publish(place / "own.db", made, 12))
            rates["relay_sqlite"].append(_relay(f"sqlite:///{place}/effects.db", place / "one.db", made))
            rates["relay_postgres"].append(_relay(server, place / "two.db", made))
        say(f"relay {run + 1}/{REPEATS}: " + ", ".join(f"{name} {each[-1]:,.0f}/s" for name, each in rates.items()))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    return {
        "records_per_s": medians,
        "ratio": {name: medians[name] / medians["engine"] for name in ("relay_sqlite", "relay_postgres")},
    }


def _relay(url: str, log: Path, made: list[Message]) -> float:
    with closing(connect.store(url)) as store, closing(connect.engine(f"sqlite:///{log}")) as engine:
        store.migrate()
        fill(store, made)
        engine.ensure_topic(TopicSpec(name=TOPIC, partitions=12))
        relay = Relay(store, engine)
        began = time.perf_counter()
        relay.run(drain=True)
        seconds = time.perf_counter() - began
        assert relay.relayed == len(made)
        return len(made) / seconds


def fill(store: Store, made: list[Message]) -> None:
    """Rows as `settled.outbox.add` writes them, in one transaction."""
    rows = [row_of(message) for message in made]
    if store.name == "sqlite":
        connection = apsw.Connection(store.url.removeprefix("sqlite:///"))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT["sqlite"], rows)
        connection.execute("COMMIT")
        connection.close()
        return
    with psycopg.connect(store.url) as server, server.cursor() as cursor:
        insert = INSERT["postgresql"].replace("settled_outbox", "settled.outbox").replace("?", "%s")
        cursor.executemany(insert, rows)


def compare_insert(seconds: float, say: Callable[[str], None] = print) -> dict[str, Any]:
    """What one outbox row costs a transaction with one business insert, as a share of that transaction's time, on a
    server of its own whose commits are synced. Measured inside the transactions, so that a disk whose syncs take now
    one and now four milliseconds does not decide; a second insert of the application's beside it, for comparison.
    `pipelined`: the share of the whole transaction's time in psycopg's pipeline mode, where no statement waits."""
    message = Message(topic=TOPIC, key=b"o-1", value=b"x" * 250, id="e", type="OrderPlaced")
    costs: dict[str, list[float]] = {"outbox_row": [], "second_insert": []}
    rest: list[float] = []
    pipelined: dict[str, list[float]] = {"without": [], "with": []}
    with started() as server, server.database() as url:
        with closing(connect.store(url)) as store:
            store.migrate()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(ORDERS)
            connection.execute(OTHERS)

            def second() -> None:
                connection.execute(OTHER, (str(time.monotonic_ns()), "c-1", "sku-1", 3))

            def row() -> None:
                outbox.add(connection, message)

            def order() -> None:
                connection.execute(ORDER, (str(time.monotonic_ns()), "c-1", "sku-1", 3))

            until = time.perf_counter() + seconds
            while (began := time.perf_counter()) < until:
                for name, work in (("outbox_row", row), ("second_insert", second)):
                    began = time.perf_counter()
                    with connection.transaction():
                        order()
                        before = time.perf_counter()
                        work()
                        took = time.perf_counter() - before
                    costs[name].append(took)
                    rest.append(time.perf_counter() - began - took)
                for name, each in (("without", (order,)), ("with", (order, row))):
                    began = time.perf_counter()
                    with connection.pipeline(), connection.transaction():
                        for work in each:
                            work()
                    pipelined[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(each) for name, each in costs.items()}
    transaction = statistics.median(rest)
    found = {
        "transaction_us": 1e6 * transaction,
        "outbox_row_us": 1e6 * medians["outbox_row"],
        "second_insert_us": 1e6 * medians["second_insert"],
        "cost": medians["outbox_row"] / transaction,
        "pipelined": statistics.median(pipelined["with"]) / statistics.median(pipelined["without"]) - 1,
    }
    say(f"outbox insert: {found}")
    return found


def measure_backlog(count: int, rate: float) -> dict[str, Any]:
    """A backlog as after an outage, drained by a process of its own."""
    with folder() as place:
        with closing(connect.store(f"sqlite:///{place}/effects.db")) as store:
            store.migrate()
            for start in range(0, count, 50_000):
                made = messages(min(50_000, count - start), 1000, seed=start)
                fill(store, [msgspec.structs.replace(m, id=f"e-{start + n:09}") for n, m in enumerate(made)])
        command = [sys.executable, "-m", "bench.outbox", str(place), str(rate)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {"rows": count, **found}


def drain(place: str, rate: str) -> None:
    """Prints, as JSON, the rate over the middle of the drain, the memory at a tenth and at the end, and order."""
    url = f"sqlite:///{place}/effects.db"
    with closing(connect.store(url)) as store, closing(connect.engine(f"sqlite:///{place}/log.db")) as engine:
        engine.ensure_topic(TopicSpec(name=TOPIC, partitions=4))
        relay = Relay(store, engine, RelayPolicy(rate=float(rate)))
        total = store.outbox.status().pending
        moments: list[tuple[float, int, float]] = []

        def look() -> None:
            while relay.relayed < total:
                moments.append((time.monotonic(), relay.relayed, runs.peak_mb()))
                time.sleep(0.2)

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        relay.run(drain=True)
        watcher.join()
        seen: dict[bytes | None, str] = {}
        ordered, read = True, 0
        for part in engine.topics()[0].partitions:
            offset = 0
            while offset < part.end:
                for record in engine.read(TOPIC, part.partition, offset, records=1000):
                    ordered &= seen.get(record.key, "") < record.id
                    seen[record.key] = record.id
                    offset, read = record.offset + 1, read + 1
    first = next(moment for moment in moments if moment[1] > total * 0.1)
    last = [moment for moment in moments if moment[1] < total * 0.95][-1]
    reached = (last[1] - first[1]) / (last[0] - first[0])
    print(
        json.dumps(
            {
                "rate": float(rate),
                "reached": reached,
                "off": abs(reached / float(rate) - 1),
                "peak_mb_at_a_tenth": first[2],
                "peak_mb": moments[-1][2],
                "ordered": ordered and read == total,
            }
        )
    )


if __name__ == "__main__":
    drain(*sys.argv[1:])
