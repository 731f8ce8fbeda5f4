"""Reading your own writes: how long after the effect's commit a wait returns, and what waiting costs when nobody waits.

A worker in a process of its own tells when it committed; both processes read the same monotonic clock.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.workload import folder
from settled import App, Visible, windows
from settled.record import Message, Record, new_id

WAITERS = 64
IDLE_S = 3.0


def app(log: str, store: str) -> App:
    made = App(engine=log, store=store, topic="comments", group="page", transport={"partitions": 4})

    @made.setup
    def tables(tx: Any) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS shown (event_id VARCHAR(64))")

    return made


def worker(log: str, store: str) -> None:
    """Settles until its input ends; prints `event id, nanoseconds` for each committed effect."""
    made, mine = app(log, store), threading.local()  # each executor has a group of its own

    @made.handler
    def show(tx: Any, record: Record) -> None:
        mark = "?" if made.store.name == "sqlite" else "%s"
        tx.execute(f"INSERT INTO shown VALUES ({mark})", (record.id,))
        mine.__dict__.setdefault("ids", []).append(record.id)

    def committed(window: str) -> None:
        if window == "effect-committed":
            now = time.monotonic_ns()
            sys.stdout.write("".join(f"{event_id} {now}\n" for event_id in mine.__dict__.pop("ids", [])))
            sys.stdout.flush()

    windows.install(committed)
    running = made.worker()
    threading.Thread(target=lambda: (sys.stdin.read(), running.stop()), daemon=True).start()
    with made:
        running.run()


def measure(store: str, log: str, *, rate: int, seconds: int) -> dict[str, float]:
    """Milliseconds from commit to return, at `rate` waits a second; CPU shares of this process."""
    command = [sys.executable, "-m", "bench.tokens", log, store]
    returned: dict[str, int] = {}
    made = app(log, store)
    with made, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        committed: dict[str, int] = {}

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                event_id, _, at = line.partition(" ")
                committed[event_id] = int(at)

        reader = threading.Thread(target=read)
        reader.start()
        assert isinstance(made.wait(made.publish(b"x").token, 60), Visible)  # the worker is up
        waited: list[object] = []

        def request(event_id: str, due: float) -> None:
            pending = made.send(Message(topic="comments", key=event_id.encode(), value=b"x" * 200, id=event_id))
            waited.append(made.wait(made.token(pending.result(30)), 30))
            returned[event_id] = time.monotonic_ns()

        used, began = time.process_time(), time.monotonic()
        with ThreadPoolExecutor(WAITERS) as pool:
            for number in range(rate * seconds):
                due = began + number / rate
                time.sleep(max(0.0, due - time.monotonic()))
                pool.submit(request, new_id(), due)
        busy = (time.process_time() - used) / (time.monotonic() - began)
        used = time.process_time()
        time.sleep(IDLE_S)
        idle = (time.process_time() - used) / IDLE_S
        assert process.stdin is not None
        process.stdin.close()
        reader.join()
    late = sorted((returned[event_id] - committed[event_id]) / 1e6 for event_id in returned)
    assert len(late) == rate * seconds == sum(isinstance(each, Visible) for each in waited)
    return {
        "p50_ms": round(statistics.median(late), 2),
        "p99_ms": round(late[int(len(late) * 0.99)], 2),
        "most_ms": round(late[-1], 2),
        "cpu_busy": round(busy, 3),
        "cpu_idle": round(idle, 4),
    }


def compare(say: Callable[[str], None], *, rate: int = 200, seconds: int = 10) -> dict[str, Any]:
    """On both stores; PostgreSQL where there is a server."""
    found: dict[str, Any] = {"waits_per_s": rate}
    with folder() as place:
        log = f"sqlite:///{place}/log.db"
        found["sqlite"] = measure(f"sqlite:///{place}/effects.db", log, rate=rate, seconds=seconds)
    say(f"tokens on sqlite: {found['sqlite']}")
    from settled.testing.postgres import database

    with database() as url, folder() as place:
        found["postgresql"] = measure(url, f"sqlite:///{Path(place)}/log.db", rate=rate, seconds=seconds)
    say(f"tokens on postgresql: {found['postgresql']}")
    return found


if __name__ == "__main__":
    worker(sys.argv[1], sys.argv[2])
