"""Bounds: memory whatever the backlog, records above a budget, batches that fire, a slow head with many behind it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from shop import Shop, heard, wait_settled, working

from settled.errors import TooLarge
from settled.outcome import Outcome
from settled.record import Message, Record
from settled.store import Tx
from waiting import until


def fill(shop: Shop, count: int, value: bytes = b"v", *, keys: int = 0, partitions: int = 1) -> None:
    app = shop.app(None, partitions=partitions)
    producer = app.producer()
    for number in range(count):
        key = b"k%d" % (number % keys if keys else number)
        producer.send(Message(topic="t", key=key, value=value, id=f"e{number}"))
    producer.close()


def resident_kib() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc here")
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS"))


def test_b005_many_complete_beyond_a_slow_head_within_the_window(shop: Shop) -> None:
    release = threading.Event()

    def handler(tx: Tx, record: Record) -> None:
        if record.id == "e0":
            release.wait(60)

    count, window = 5_000, 1_000
    fill(shop, count)
    app = shop.app(
        handler,
        delivery={"concurrency": 2, "in_flight": {"records": window}, "group_size": {"target": "5ms"}},
        producer={"batch": {"records": 50}},
    )
    with working(app) as worker:
        until(lambda: sum(shop.tally(app).values()) >= window - 400)
        assert shop.frontier(app) == 0
        assert worker._in_flight.records <= count
        release.set()
        wait_settled(shop, app, count)
    assert shop.tally(app) == {Outcome.APPLIED: count}


def test_b005_fifty_thousand_behind_a_slow_head(shop: Shop) -> None:
    release = threading.Event()

    def handler(tx: Tx, record: Record) -> None:
        if record.id == "e0":
            release.wait(60)

    count = 50_000
    fill(shop, count)
    app = shop.app(handler, delivery={"concurrency": 2, "in_flight": {"records": 100_000}})
    with working(app):
        until(lambda: sum(shop.tally(app).values()) == count - 1, 60)
        assert shop.frontier(app) == 0
        release.set()
        wait_settled(shop, app, count)
    assert shop.tally(app) == {Outcome.APPLIED: count}


def test_b036_a_record_above_the_byte_budget_comes_alone(shop: Shop) -> None:
    sizes = [10, 5 * 2**20, 10]
    app = shop.app(delivery={"in_flight": {"bytes": "1MiB"}, "group_size": {"bytes": "512KiB"}})
    for number, size in enumerate(sizes):
        app.publish(b"x" * size, key="k", id=f"e{number}")
    app.drain()
    assert shop.ids() == ["e0", "e1", "e2"]
    assert [row[0] for row in shop.rows("SELECT length(value) FROM effects ORDER BY n")] == sizes


def test_b036_above_the_hard_limit_nothing_is_stored(shop: Shop) -> None:
    app = shop.app(transport={"record_limit": "1MiB"})
    with pytest.raises(TooLarge) as caught:
        app.publish(b"x" * (2**20 + 1), key="k", id="e0")
    assert "1048576" in str(caught.value)
    app.publish(b"x", key="k", id="e1")
    app.drain()
    assert shop.ids() == ["e1"]


def test_b037_a_backlog_is_not_pulled_into_memory(shop: Shop) -> None:
    budget = 8 * 2**20
    fill(shop, 600, b"x" * 175_000, partitions=8)  # a hundred megabytes
    seen = threading.Event()
    started = []

    def handler(tx: Tx, record: Record) -> None:
        started.append(record.offset)
        if len(started) > 30:
            seen.set()
            stop.wait(30)

    stop = threading.Event()
    app = shop.app(
        handler,
        partitions=8,
        delivery={"in_flight": {"bytes": budget, "records": 1000}, "group_size": {"bytes": "1MiB"}},
    )
    assert app.store
    before = resident_kib()
    with working(app) as worker:
        seen.wait(30)
        grown = (resident_kib() - before) * 1024
        held = worker._in_flight.bytes
        stop.set()
    assert held < 2 * budget  # a target: one batch may come on top
    assert grown < 5 * budget


def test_b038_a_group_above_what_may_be_in_flight_fires(shop: Shop) -> None:
    """A batch of 17 with 16 in flight never deadlocks: it fires with what there is when its time is over."""
    sizes: list[int] = []

    def handler(tx: Tx, records: list[Record]) -> None:
        sizes.append(len(records))

    fill(shop, 101)
    app = shop.app(
        handler,
        batch=True,
        delivery={"in_flight": {"records": 16}, "group_size": {"records": 17, "linger": "50ms"}},
    )
    app.drain()
    assert sum(sizes) == 101


def test_b038_a_full_backlog_does_not_wait_for_the_time_limit(shop: Shop) -> None:
    sizes: list[int] = []

    def handler(tx: Tx, records: list[Record]) -> None:
        sizes.append(len(records))

    fill(shop, 100)
    app = shop.app(handler, batch=True, delivery={"group_size": {"records": 10, "linger": "30s"}})
    with working(app):
        until(lambda: len(sizes) == 10, 20)
    assert sizes == [10] * 10


def test_b038_a_group_that_never_fills_fires_at_its_time_limit_and_never_empty(shop: Shop) -> None:
    fired: list[tuple[float, int]] = []

    def handler(tx: Tx, records: list[Record]) -> None:
        fired.append((time.monotonic(), len(records)))

    app = shop.app(handler, batch=True, delivery={"group_size": {"records": 1000, "bytes": "1MiB", "linger": "1s"}})
    with working(app):
        until(lambda: app.store.positions("g"))
        began = time.monotonic()
        fill(shop, 10)
        wait_settled(shop, app, 10)
        until(lambda: time.monotonic() - fired[-1][0] > 1.5)
    assert sum(size for _, size in fired) == 10
    assert all(size > 0 for _, size in fired)
    assert fired[0][0] - began > 0.9


def test_an_idle_worker_rests(shop: Shop) -> None:
    app = shop.app()
    app.publish(b"x", key="k", id="e0")
    events = heard(app)
    with working(app):
        wait_settled(shop, app, 1)
        spent, began = time.process_time(), time.monotonic()
        until(lambda: time.monotonic() - began > 2, every=0.5)
        used = time.process_time() - spent
    assert used < 0.4
    assert events
