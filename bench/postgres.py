"""Settling into PostgreSQL against hand-written grouped loops over the same log on the same server.

Also what failures cost: 1% of records failing for good, and one key whose effects take a second each.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from bench import floors, runs
from bench.workload import TOPIC, Order, folder, messages
from settled import App, Reject
from settled.operations.progress import is_drained
from settled.record import Message, Record
from settled.testing.postgres import database

TABLE = "CREATE TABLE IF NOT EXISTS reservation (order_id text, version bigint, sku text, quantity bigint)"
EFFECT = "INSERT INTO reservation VALUES (%s, %s, %s, %s)"
SET_BASED = "INSERT INTO reservation SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::bigint[])"
INBOX = (
    "CREATE TABLE inbox (consumer integer, place integer, place_offset bigint, settled_us bigint, outcome smallint,"
    ' event_id text COLLATE "C", PRIMARY KEY (consumer, event_id))'
)
MARK = (
    "INSERT INTO inbox SELECT 1, p, o, %s, 1, e FROM unnest(%s::int[], %s::bigint[], %s::text[]) AS x (p, o, e)"
    " ON CONFLICT DO NOTHING"
)


def floor(log: Path, url: str, *, set_based: bool) -> float:
    """Records a second: read, unpack and decode the batches; mark, write and commit in groups of 400."""
    decode = msgspec.json.Decoder(Order).decode
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (TABLE, INBOX, "CREATE TABLE frontier (place integer PRIMARY KEY, frontier bigint)"):
            connection.execute(statement)
        cursor = connection.cursor()
        began, total = time.perf_counter(), 0
        for group in floors.groups(log):
            now = time.time_ns() // 1000
            cursor.execute("BEGIN")
            orders = [decode(value) for _, _, _, value in group]
            if set_based:
                columns = zip(*[(o.order_id, o.version, o.sku, o.quantity) for o in orders], strict=True)
                cursor.execute(SET_BASED, [list(column) for column in columns])
            else:
                for order in orders:
                    cursor.execute(EFFECT, (order.order_id, order.version, order.sku, order.quantity))
            places, offsets, ids, _ = zip(*group, strict=True)
            cursor.execute(MARK, (now, list(places), list(offsets), list(ids)))
            reached = {place: offset + 1 for place, offset, _, _ in group}
            cursor.execute(
                "INSERT INTO frontier SELECT * FROM unnest(%s::int[], %s::bigint[])"
                " ON CONFLICT (place) DO UPDATE SET frontier = excluded.frontier",
                (list(reached), list(reached.values())),
            )
            cursor.execute("COMMIT")
            total += len(group)
        return total / (time.perf_counter() - began)


def with_statement(tx: Any, order: Order) -> None:
    tx.execute(EFFECT, (order.order_id, order.version, order.sku, order.quantity))


def with_set(tx: Any, orders: list[Order]) -> None:
    columns = zip(*[(o.order_id, o.version, o.sku, o.quantity) for o in orders], strict=True)
    tx.execute(SET_BASED, [list(column) for column in columns])


def app(log: Path, url: str, group: str, **delivery: Any) -> App:
    made = App(
        engine=f"sqlite:///{log}",
        store=url,
        transport={"topic": TOPIC},
        delivery={"group": group, **delivery},
        poison={"owner": "bench"},
    )

    @made.setup
    def tables(tx: Any) -> None:
        tx.execute(TABLE)

    return made


def settle(log: Path, url: str, group: str, count: int, handler: Any, *, batch: bool = False, **kw: Any) -> float:
    with app(log, url, group, **kw) as bench:
        bench.handler(batch=batch)(handler)
        worker = bench.worker()
        drained = is_drained(bench.engine, bench.store, bench.contract)
        began = time.perf_counter()
        worker.run(drained=drained)
        return count / (time.perf_counter() - began)


@contextmanager
def unfenced() -> Iterator[None]:
    """The PostgreSQL session without its check of the epoch at the beginning: what the fence costs is the difference.
    (The epoch in the frontier's UPDATE stays; the floor has the same UPDATE without it.)"""
    from settled.stores.postgres.session import PostgresSession

    before = PostgresSession._require
    PostgresSession._require = lambda self, progress, held: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        PostgresSession._require = before  # type: ignore[method-assign]


def compare(count: int, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    rates: dict[str, list[float]] = {}
    with folder() as place:
        log = place / "log.db"
        runs.publish(log, messages(count, 250), 12)
        for run in range(repeats):
            jobs: dict[str, Callable[[str], float]] = {
                "floor": lambda url: floor(log, url, set_based=False),
                "settled": lambda url: settle(log, url, "bench", count, with_statement),
                "settled_unfenced": lambda url: _unfenced(log, url, "unfenced", count),
                "floor_set_based": lambda url: floor(log, url, set_based=True),
                "settled_set_based": lambda url: settle(log, url, "sets", count, with_set, batch=True),
            }
            for name, job in jobs.items():
                with database() as url:
                    rates.setdefault(name, []).append(job(url))
            say(f"postgres {run + 1}/{repeats}: " + ", ".join(f"{n} {each[-1]:,.0f}/s" for n, each in rates.items()))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    return {
        "records_per_s": medians,
        "ratio_to_floor": {
            "settled": medians["settled"] / medians["floor"],
            "settled_set_based": medians["settled_set_based"] / medians["floor_set_based"],
        },
        "fence_cost": 1 - medians["settled"] / medians["settled_unfenced"],
    }


def _unfenced(log: Path, url: str, group: str, count: int) -> float:
    with unfenced():
        return settle(log, url, group, count, with_statement)


def failures(count: int, say: Callable[[str], None]) -> dict[str, float]:
    """Throughput with 1% of the records failing for good, and of the others while one key takes 1 s an effect, each
    relative to the clean run."""

    def one_in_hundred(tx: Any, order: Order) -> None:
        if order.version % 100 == 0:
            raise Reject("one in a hundred")
        with_statement(tx, order)

    with folder() as place:
        log = place / "log.db"
        runs.publish(log, messages(count, 250), 12)
        with database() as url:
            clean = settle(log, url, "clean", count, with_statement)
        with database() as url:
            failing = settle(log, url, "failing", count, one_in_hundred)
        slow = _slow_key(place / "slow.db", count)
    found = {"one_percent_failing": failing / clean, "others_beside_slow_key": slow}
    say(f"failures: clean {clean:,.0f}/s, ratios {found}")
    return found


def _slow_key(log: Path, count: int) -> float:
    """Others' rate with a slow key in the stream, to their rate without: time until all others are settled."""
    made = messages(count, 250)
    slow = [Message(topic=TOPIC, key=b"slow", value=made[0].value, id=f"slow-{n}") for n in range(5)]
    spread = [*made]
    for number, message in enumerate(slow):
        spread.insert((number + 1) * len(made) // 10, message)
    runs.publish(log, spread, 12)

    def measured(group: str, url: str, pause: float) -> float:
        left, done = [len(made)], threading.Event()

        def handler(tx: Any, record: Record) -> None:
            if record.key == b"slow":
                time.sleep(pause)
            else:
                left[0] -= 1
                if left[0] <= 0:
                    done.set()
            tx.execute(EFFECT, (record.id, 1, "", 1))

        with app(log, url, group) as bench:
            bench.handler(handler)
            worker = bench.worker()
            _ = bench.engine, bench.store
            runner = threading.Thread(target=worker.run)
            began = time.perf_counter()
            runner.start()
            done.wait(300)
            seconds = time.perf_counter() - began
            worker.stop()
            runner.join()
        return seconds

    with database() as url:
        without = measured("quick", url, 0.0)
    with database() as url:
        beside = measured("slow", url, 1.0)
    return without / beside
