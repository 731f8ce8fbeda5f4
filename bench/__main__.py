"""Runs the benchmarks in a fixed order, prints one JSON document with ratios and floors, exits 1 below a floor.

Runs of settled and of its floor are interleaved and the medians of five are compared: the machine may be noisy.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from bench import floors, runs
from bench.workload import folder, messages

REPEATS = 5
FLOORS = {
    "publish": 0.7,
    "settle": 0.6,
    "settle_batch": 0.8,
    "postgres": 0.85,
    "postgres_set_based": 0.75,
    "one_percent_failing": 0.5,
    "others_beside_slow_key": 0.9,
    "relay": 0.7,
    "kafka_publish": 0.5,
    "kafka_consume": 0.4,
    "kafka_postgres": 0.8,
    "rabbitmq_publish": 0.6,
    "rabbitmq_postgres": 0.5,
    "without_outbox_row": 0.85,
    "backlog_rate": 0.95,
    "queue_log": 0.5,
    "queue_huey": 10.0,
}
AIMS = {
    "fence_cost": 0.05,
    "latency_p99_ms": 15.0,
    "growth_flat": 0.85,
    "growth_peak_mb": 150.0,
    "token_p99_ms": 20.0,
    "token_cpu_idle": 0.01,
    "resume_after_kill_p99_s": 7.0,
    "resume_after_stop_p99_s": 1.0,
    "compaction_publish_p99_times": 2.0,
    "compaction_memory_times": 1.1,
}


PARTS = [
    "publish",
    "settle",
    "latency",
    "postgres",
    "outbox",
    "growth",
    "tokens",
    "queue",
    "compaction",
    "resume",
    "kafka",
    "rabbitmq",
]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compare_publish(count: int) -> dict[str, Any]:
    """Against a loop that packs, compresses and inserts each batch: 1 kB records, batches of 400, durability local."""
    made = messages(count, 1000)
    rates: dict[str, list[float]] = {"floor": [], "settled": [], "settled_12_partitions": []}
    for run in range(REPEATS):
        with folder() as place:
            rates["floor"].append(floors.publish(place / "floor.db", made))
            rates["settled"].append(runs.publish(place / "one.db", made, 1))
            rates["settled_12_partitions"].append(runs.publish(place / "twelve.db", made, 12))
        say(f"publish {run + 1}/{REPEATS}: " + ", ".join(f"{name} {each[-1]:,.0f}/s" for name, each in rates.items()))
    return _compared(rates)


def compare_settle(count: int) -> dict[str, Any]:
    """Against a single-threaded loop over the same log that makes the same inbox and effect rows in groups of 400."""
    rates: dict[str, list[float]] = {
        name: [] for name in ("floor", "settled", "settled_batch", "noop_inbox", "noop_at_least_once")
    }
    with folder() as place:
        log = place / "log.db"
        runs.publish(log, messages(count, 250), 12)
        for run in range(REPEATS):
            rates["floor"].append(floors.settle(log, place / f"floor-{run}.db"))
            for name, handler, batch, mode in (
                ("settled", runs.with_statement, False, "effectively-once"),
                ("settled_batch", runs.with_batch, True, "effectively-once"),
                ("noop_inbox", runs.nothing, False, "effectively-once"),
                ("noop_at_least_once", runs.nothing, False, "at-least-once"),
            ):
                effects = place / f"{name}-{run}.db"
                rates[name].append(runs.settle(log, effects, f"{name}-{run}", count, handler, batch=batch, mode=mode))
            say(
                f"settle {run + 1}/{REPEATS}: " + ", ".join(f"{name} {each[-1]:,.0f}/s" for name, each in rates.items())
            )
    return _compared(rates)


def _compared(rates: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(each) for name, each in rates.items()}
    ratios = {name: medians[name] / medians["floor"] for name in medians if name != "floor"}
    return {"records_per_s": medians, "ratio_to_floor": ratios}


def measure_growth(counts: list[int]) -> dict[str, Any]:
    found = {}
    for count in counts:
        with folder() as place:
            found[str(count)] = runs.growth(place / "log.db", place / "effects.db", count)
        say(f"growth {count:,}: {found[str(count)]}")
    rates = [each["records_per_s"] for each in found.values()]
    return {
        "by_backlog": found,
        "flat": min(rates) / max(rates),
        "peak_mb": max(each["peak_mb"] for each in found.values()),
    }


def measure_latency() -> dict[str, Any]:
    with folder() as place:
        found = runs.latency(place / "log.db", place / "effects.db", rate=500, seconds=10)
    say(f"latency at 500/s: {found}")
    return found


def asked() -> tuple[list[str], int]:
    """Which parts, and on how many records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--records", type=int, default=100_000)
    arguments = parser.parse_args()
    wanted = arguments.only or PARTS
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return wanted, arguments.records


def main() -> int:
    wanted, records = asked()
    results: dict[str, Any] = {"schema_version": 1, "floors": FLOORS, "aims": AIMS}
    ratios: dict[str, float] = {}
    if "publish" in wanted:
        results["publish"] = compare_publish(records)
        ratios["publish"] = results["publish"]["ratio_to_floor"]["settled"]
    if "settle" in wanted:
        results["settle"] = compare_settle(records)
        ratios["settle"] = results["settle"]["ratio_to_floor"]["settled"]
        ratios["settle_batch"] = results["settle"]["ratio_to_floor"]["settled_batch"]
    if "latency" in wanted:
        results["latency"] = measure_latency()
    if "growth" in wanted:
        results["growth"] = measure_growth([10_000, 100_000, 1_000_000])
    for name in ("tokens", "compaction"):
        if name in wanted:
            results[name] = importlib.import_module(f"bench.{name}").compare(say)
    if "postgres" in wanted:
        from bench import postgres

        count = records // 5
        found = results["postgres"] = postgres.compare(count, REPEATS, say)
        ratios["postgres"] = found["ratio_to_floor"]["settled"]
        ratios["postgres_set_based"] = found["ratio_to_floor"]["settled_set_based"]
        ratios |= postgres.failures(count, say)
    if "resume" in wanted:
        from bench import resume

        results["resume"] = resume.compare(50, say)
    for name in ("kafka", "queue", "rabbitmq"):
        if name in wanted:
            found = results[name] = importlib.import_module(f"bench.{name}").compare(records, REPEATS, say)
            ratios |= {f"{name}_{part}": ratio for part, ratio in found["ratio"].items()}
    if "outbox" in wanted:
        from bench import outbox

        found = results["outbox"] = outbox.compare(records, say)
        ratios["relay"] = found["relay"]["ratio"]["relay_sqlite"]
        ratios["without_outbox_row"] = 1 - found["insert"]["cost"]  # of a transaction's time
        ratios["backlog_rate"] = 1 - found["backlog"]["off"]
    results["ratios"] = ratios
    below = {name: ratio for name, ratio in ratios.items() if ratio < FLOORS[name]}
    results["below_floor"] = below
    text = json.dumps(results, indent=2)
    Path(__file__).with_name("results.json").write_text(text + "\n")
    print(text)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
