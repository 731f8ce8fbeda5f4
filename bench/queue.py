"""The queue form of the embedded engine: against the log form, by prefetch, and against huey for the same effect."""

from __future__ import annotations

import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from bench import runs
from bench.workload import EFFECT, EFFECT_TABLE, TOPIC, Order, folder, messages
from settled import scheduling
from settled.record import Message

PREFETCH = (1, 10, 100, 1000, 10_000)
COMPARED = 100  # the prefetch whose rate is compared
HUEY_TASKS = 3000
SCHEDULED = 100_000
TENANTS = 1000
WATCHED_S = 10.0


def compare(count: int, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Records a second, runs interleaved, medians; ratios of the queue at COMPARED to the log at the same
    prefetch, and to huey."""
    made = messages(count, 250)
    of_tenants = [msgspec.structs.replace(m, headers=_tenant(n % TENANTS)) for n, m in enumerate(made)]
    rates: dict[str, list[float]] = {"log": [], "log_prefetch": [], "queue": [], "queue_tenants": [], "huey": []}
    rates |= {f"queue_prefetch_{prefetch}": [] for prefetch in PREFETCH}
    for run in range(repeats):
        rates["log"].append(_settled(made, form="log"))
        rates["log_prefetch"].append(_settled(made, form="log", in_flight={"records": COMPARED}))
        rates["queue"].append(_settled(made, form="queue"))
        rates["queue_tenants"].append(_settled(of_tenants, form="queue"))  # with order by key, too
        for prefetch in PREFETCH:
            some = made[: min(count, 1000 * prefetch)]
            rate = _settled(some, form="queue", ordering="none", in_flight={"records": prefetch})
            rates[f"queue_prefetch_{prefetch}"].append(rate)
        rates["huey"].append(_by_huey(made[:HUEY_TASKS]))
        say(f"queue {run + 1}/{repeats}: " + ", ".join(f"{name} {each[-1]:,.0f}/s" for name, each in rates.items()))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    compared = medians[f"queue_prefetch_{COMPARED}"]
    scheduled = _scheduled()
    say(f"{SCHEDULED:,} scheduled: {scheduled}")
    return {
        "records_per_s": medians,
        "ratio": {"log": compared / medians["log_prefetch"], "huey": compared / medians["huey"]},
        "scheduled": scheduled,
    }


def _tenant(number: int) -> tuple[tuple[str, bytes | None], ...]:
    return scheduling.headers(tenant=f"t{number}")


def _settled(made: list[Message], *, form: str, **delivery: Any) -> float:
    with folder() as place:
        log = place / "log.db"
        with runs.app(log, place / "unused.db", "none", form=form) as bench:
            producer = bench.producer()
            for message in made:
                producer.send(message)
            producer.close()
        return runs.settle(log, place / "effects.db", "g", len(made), runs.with_statement, form=form, **delivery)


def _by_huey(made: list[Message]) -> float:
    """A task for each order in SqliteHuey, one worker, the effect committed by each task."""
    from huey import SqliteHuey

    with folder() as place:
        tasks = SqliteHuey(filename=str(place / "huey.db"))
        effects = sqlite3.connect(place / "effects.db", check_same_thread=False, isolation_level=None)
        effects.execute("PRAGMA journal_mode = WAL")
        effects.execute(EFFECT_TABLE)

        def reserve(value: bytes) -> None:
            order = msgspec.json.decode(value, type=Order)
            effects.execute(EFFECT, (order.order_id, order.version, order.sku, order.quantity))

        task = tasks.task()(reserve)
        for message in made:
            task(message.value)
        consumer = tasks.create_consumer(workers=1, periodic=False, initial_delay=0.001, max_delay=0.01)
        began = time.perf_counter()
        consumer.start()
        while effects.execute("SELECT count(*) FROM reservation").fetchone()[0] < len(made):
            time.sleep(0.005)
        seconds = time.perf_counter() - began
        consumer.stop(graceful=True)
        effects.close()
    return len(made) / seconds


def _scheduled() -> dict[str, float]:
    """What a worker process costs beside SCHEDULED records that are due in an hour, and beside none."""
    found: dict[str, float] = {}
    for name, count in (("none", 0), ("scheduled", SCHEDULED)):
        with folder() as place:
            headers = scheduling.headers(not_before=datetime.now(UTC) + timedelta(hours=1))
            with runs.app(place / "log.db", place / "unused.db", "none", form="queue") as bench:
                producer = bench.producer()
                for number in range(count):
                    producer.send(Message(topic=TOPIC, id=f"e-{number}", value=b"x" * 250, headers=headers))
                producer.close()
            command = [sys.executable, "-m", "bench.queue", str(place / "log.db"), str(place / "effects.db")]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            told: dict[str, float] = msgspec.json.decode(done.stdout)
            found |= {f"{name}_{what}": value for what, value in told.items()}
    return found


def watched(log: str, effects: str) -> None:
    """Run a worker that has nothing to do; print its peak memory and the CPU it took by the second once it stood."""
    import threading

    with runs.app(Path(log), Path(effects), "g", form="queue") as bench:
        bench.handler(runs.nothing)
        worker = bench.worker()
        thread = threading.Thread(target=worker.run)
        thread.start()
        while not any(member.partitions for group in bench.engine.groups("g") for member in group.members):
            time.sleep(0.05)
        time.sleep(2.0)
        before = time.process_time()
        time.sleep(WATCHED_S)
        cpu = (time.process_time() - before) / WATCHED_S
        worker.stop()
        thread.join()
    print(msgspec.json.encode({"peak_mb": runs.peak_mb(), "cpu": cpu}).decode())


if __name__ == "__main__":
    watched(*sys.argv[1:])
