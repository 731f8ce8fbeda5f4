"""Relays that are killed, stopped and doubled: nothing is lost, repeats carry the same id, a group makes one effect."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from relay_bench import RelayBench, in_order, message

from settled import App, outbox
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


KEYS = 20


class Writers:
    """Threads that write rows until they are told to end. A key's numbers follow one another by its row lock; some
    transactions last, so that on PostgreSQL rows are committed long after others that have higher numbers."""

    def __init__(self, bench: RelayBench) -> None:
        self._bench, self._ended = bench, threading.Event()
        bench.store.prepare(lambda tx: tx.execute("CREATE TABLE counter (id integer PRIMARY KEY, last integer)"))
        for key in range(KEYS):
            bench.store.prepare(lambda tx, key=key: tx.execute(f"INSERT INTO counter VALUES ({key}, 0)"))
        self._threads = [threading.Thread(target=self._write, args=(random.Random(seed),)) for seed in range(3)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _write(self, chance: random.Random) -> None:
        while not self._ended.wait(0.005):
            with self._bench.kind.transaction(self._bench.store_url) as connection:
                for key in sorted(chance.sample(range(KEYS), 3)):  # in order: no deadlocks
                    change = f"UPDATE counter SET last = last + 1 WHERE id = {key} RETURNING last"
                    [(number,)] = connection.execute(change).fetchall()
                    outbox.add(connection, message(f"e-{key}-{number}", b"k%d" % key))
                    if self._bench.store.name == "postgresql" and chance.random() < 0.1:
                        self._ended.wait(0.05)

    def written(self) -> list[str]:
        with self._bench.kind.transaction(self._bench.store_url) as connection:
            last = dict(connection.execute("SELECT id, last FROM counter").fetchall())
        return [f"e-{key}-{number}" for key in last for number in range(1, last[key] + 1)]


def test_relays_come_and_go_are_stopped_and_killed_while_others_write(bench: RelayBench) -> None:
    """Several at once, also those that start together: each key has one owner, and no row is lost or overtaken."""
    bench.topic()
    chance = random.Random(4)
    living: list[Any] = []
    ended: Counter[str] = Counter()
    with Writers(bench) as writers:
        while sum(ended.values()) < 9:
            few = {"rows": chance.choice([20, 200, 2000]), "lease_s": 1.0}
            living += [bench.process(policy=few) for _ in range(chance.choice([1, 2, 2]))]
            until(lambda: bench.store.outbox.status().relays)
            threading.Event().wait(chance.uniform(0.05, 0.3))
            while len(living) > 3:
                relay = living.pop(chance.randrange(len(living)))
                how = chance.choice(["kill", "terminate", "stop"])
                ended[how] += 1
                if how == "kill":
                    relay.kill()
                elif how == "terminate":
                    relay.terminate()
                else:
                    os.kill(relay.pid, signal.SIGSTOP)
                    threading.Event().wait(chance.choice([0.3, 1.5]))
                    os.kill(relay.pid, signal.SIGCONT)
                    living.append(relay)
    for relay in living:
        relay.terminate()
    for relay in living:
        relay.communicate(timeout=30)
        assert relay.returncode == 0
    bench.relay().run(drain=True)
    records = bench.records()
    assert sorted({record.id for record in records}) == sorted(writers.written())
    assert in_order(records)
    assert bench.empty()
    assert len(ended) == 3
