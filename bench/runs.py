"""The same work through settled, and what only settled does: latency at a rate, growth with the backlog."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.workload import EFFECT, EFFECT_TABLE, TOPIC, Order, messages
from settled import App
from settled.events import Event
from settled.events import Settled as SettledEvent
from settled.operations.progress import is_drained
from settled.record import Message, Record


def app(log: Path, effects: Path, group: str, *, partitions: int = 12, form: str = "log", **delivery: Any) -> App:
    made = App(
        engine=f"sqlite:///{log}",
        store=f"sqlite:///{effects}",
        transport={"topic": TOPIC, "partitions": partitions, "form": form},
        delivery={"group": group, **delivery},
        poison={"owner": "bench"},
    )

    @made.setup
    def tables(tx: Any) -> None:
        tx.execute(EFFECT_TABLE)

    return made


def publish(log: Path, made: Sequence[Message], partitions: int) -> float:
    """Records a second, each accepted at durability `local`."""
    with app(log, log.with_suffix(".unused"), "none", partitions=partitions) as bench:
        producer = bench.producer()
        began = time.perf_counter()
        for message in made:
            producer.send(message)
        producer.flush()
        seconds = time.perf_counter() - began
        producer.close()
    return len(made) / seconds


def with_statement(tx: Any, order: Order) -> None:
    tx.execute(EFFECT, (order.order_id, order.version, order.sku, order.quantity))


def with_batch(tx: Any, orders: list[Order]) -> None:
    tx.executemany(EFFECT, [(order.order_id, order.version, order.sku, order.quantity) for order in orders])


def nothing(tx: Any, record: Record) -> None:
    pass


def settle(log: Path, effects: Path, group: str, count: int, handler: Any, *, batch: bool = False, **kw: Any) -> float:
    """Records a second from the first poll to the last frontier."""
    with app(log, effects, group, **kw) as bench:
        bench.handler(batch=batch)(handler)
        worker = bench.worker()
        drained = is_drained(bench.engine, bench.store, bench.contract)
        began = time.perf_counter()
        worker.run(drained=drained)
        seconds = time.perf_counter() - began
    return count / seconds


def latency(log: Path, effects: Path, *, rate: int, seconds: int) -> dict[str, float]:
    """Milliseconds from the call of `send` to the durable effect, at a steady rate, worker in a process of its own."""
    command = [sys.executable, "-m", "bench.runs", "latency-worker", str(log), str(effects)]
    with app(log, effects, "latency") as bench:
        _ = bench.engine
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        worker.stdout.readline()
        producer = bench.producer()
        began = time.monotonic()
        for number in range(rate * seconds):
            wait = began + number / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            sent = time.monotonic_ns().to_bytes(8, "big")
            producer.send(Message(topic=TOPIC, key=b"k-%d" % (number % 500), value=sent, id=f"l-{number}"))
        producer.close()
        worker.terminate()
        took = sorted(json.loads(worker.stdout.read()))
        worker.wait()
    warm = took[: int(len(took) * 1.0)]
    return {
        "p50_ms": warm[len(warm) // 2],
        "p99_ms": warm[int(len(warm) * 0.99)],
        "max_ms": warm[-1],
        "records": float(len(took)),
    }


def latency_worker(log: str, effects: str) -> None:
    """Prints a line once it owns the partitions, and at the end the latencies of all records as JSON."""
    sent: deque[int] = deque()
    took: list[float] = []
    bench = app(Path(log), Path(effects), "latency")

    def note(event: Event) -> None:
        if isinstance(event, SettledEvent):
            now = time.monotonic_ns()
            for _ in range(sum(event.counts.values())):
                took.append((now - sent.popleft()) / 1e6)

    def handler(tx: Any, record: Record) -> None:
        assert record.value is not None
        tx.execute(EFFECT, (record.id, 1, "sku", 1))
        sent.append(int.from_bytes(record.value, "big"))

    bench.handler(handler)
    bench.events.listen(note)

    def announce() -> None:
        while not any(group.committed or group.epochs for group in bench.engine.groups("latency")):
            time.sleep(0.05)
        print("ready", flush=True)

    threading.Thread(target=announce, daemon=True).start()
    bench.run()
    bench.close()
    print(json.dumps(took))


def growth(log: Path, effects: Path, count: int) -> dict[str, float]:
    """Of a worker process that settles a backlog of `count`: records a second from the beginning of the first group to
    the end of the last, peak memory, and the seconds before and after (joining, twelve fences; finding that nothing is
    left)."""
    for start in range(0, count, 100_000):
        publish(log, messages(min(100_000, count - start), 250, seed=start), 12)
    command = [sys.executable, "-m", "bench.runs", "growth-worker", str(log), str(effects), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def growth_worker(log: str, effects: str, count: str) -> None:
    ends: list[tuple[float, float]] = []

    def note(event: Event) -> None:
        if isinstance(event, SettledEvent):
            now = time.perf_counter()
            ends.append((now - event.seconds, now))

    with app(Path(log), Path(effects), "growth") as bench:
        bench.handler(with_statement)
        bench.events.listen(note)
        worker = bench.worker()
        drained = is_drained(bench.engine, bench.store, bench.contract)
        began = time.perf_counter()
        worker.run(drained=drained)
        around = time.perf_counter() - began
    seconds = ends[-1][1] - ends[0][0]
    found = {"records_per_s": int(count) / seconds, "around_s": around - seconds, "peak_mb": peak_mb()}
    print(json.dumps(found))


def peak_mb() -> float:
    """Of this process since it began its program; getrusage would count what its parent held when it forked."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    {"latency-worker": latency_worker, "growth-worker": growth_worker}[sys.argv[1]](*sys.argv[2:])
