"""Relays that are killed, stopped and doubled: nothing is lost, repeats carry the same id, a group makes one effect."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from relay_bench import RelayBench, in_order, message

from settled import App
from waiting import until

# window -> how many rows a relay that dies there the second time has at least published and not removed. It publishes
# 50 at a time; after every 100 they are removed, while the next ones are published.
WINDOWS = {
    "relay-read": 0,
    "batch-closed": 50,
    "append-written": 50,
    "append-committed": 90,
    "relay-sent": 90,
    "relay-marked": 0,
}


def effects(bench: RelayBench, folder: Path) -> list[str]:
    """What a consumer group makes of the topic: one line for each effect."""
    app = App(topic="t", group="g", engine=bench.engine_url, store=f"sqlite:///{folder}/consumer.db",
              transport={"topic": "t", "partitions": 2})  # fmt: skip

    @app.setup
    def table(tx: Any) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS effect (id TEXT)")

    @app.handler
    def handle(tx: Any, record: Any) -> None:
        tx.execute("INSERT INTO effect VALUES (?)", (record.id,))

    found: list[str] = []
    with app:
        app.drain()
        app.store.prepare(lambda tx: found.extend(row[0] for row in tx.execute("SELECT id FROM effect")))
    return found


@pytest.mark.parametrize("window", WINDOWS)
def test_a_relay_killed_in_a_window_loses_nothing_and_doubles_no_effect(
    window: str, bench: RelayBench, tmp_path: Path
) -> None:
    bench.topic()
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 10)) for number in range(400)))
    policy = {"rows": 100, "batch": 50}
    killed = bench.process(window=window, turn=2, policy=policy)
    assert killed.wait(60) == -signal.SIGKILL
    killed.communicate()
    follower = bench.process(drain=True, policy=policy)
    follower.communicate(timeout=60)
    assert follower.returncode == 0
    records = bench.records()
    wanted = sorted(f"e-{number}" for number in range(400))
    assert sorted({record.id for record in records}) == wanted
    assert in_order(records)
    assert WINDOWS[window] <= len(records) - 400 <= 200
    assert sorted(effects(bench, tmp_path)) == wanted
    assert bench.empty()


def test_b013_three_relays_and_one_that_dies(bench: RelayBench, tmp_path: Path) -> None:
    bench.topic()
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 10)) for number in range(500)))
    policy = {"rows": 40, "batch": 20, "rate": 80.0, "lease_s": 3.0}
    dying = bench.process(policy=policy, window="relay-sent", turn=3)
    relays = [bench.process(policy=policy) for _ in range(2)]
    assert dying.wait(60) == -signal.SIGKILL
    dying.communicate()
    relays.append(bench.process(policy=policy))
    until(bench.empty)
    for relay in relays:
        relay.terminate()
        relay.communicate(timeout=30)
        assert relay.returncode == 0
    records = bench.records()
    wanted = sorted(f"e-{number}" for number in range(500))
    assert sorted({record.id for record in records}) == wanted
    # What the relay that died had read: with a rate rows are removed before the next ones are read (docs/outbox.md).
    assert len(records) - 500 <= 40
    assert in_order(records)
    assert sorted(effects(bench, tmp_path)) == wanted


def test_a_stopped_relay_that_wakes_up_removes_nothing_that_is_anothers(bench: RelayBench, tmp_path: Path) -> None:
    bench.topic()
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 10)) for number in range(300)))
    stopped = bench.process(policy={"rows": 20, "batch": 20, "rate": 200.0})
    until(lambda: len(bench.ids()) >= 20)
    os.kill(stopped.pid, signal.SIGSTOP)
    with bench.relaying(rate=300.0):
        until(lambda: len(set(bench.ids())) >= 150)
        os.kill(stopped.pid, signal.SIGCONT)
        until(bench.empty)
    stopped.terminate()
    stopped.communicate(timeout=30)
    records = bench.records()
    wanted = sorted(f"e-{number}" for number in range(300))
    assert sorted({record.id for record in records}) == wanted
    assert in_order(records)
    assert sorted(effects(bench, tmp_path)) == wanted
