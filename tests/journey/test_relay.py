"""The relay on both stores: nothing skipped, order kept, refusals parked, outages waited out, rates kept."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from relay_bench import RelayBench, all_records, in_order, message

from settled import App, outbox, windows
from settled.engines.sqlite import SqliteEngine
from settled.errors import ContractError, Unavailable
from settled.events import Events, RelayStateChanged, RowRefused
from settled.operations.relaying import RelayBeside
from settled.outbox import Relay, RelayPolicy
from settled.outbox.pace import Pace
from settled.outbox_row import BUCKETS
from settled.store import Holding, RowFailure
from waiting import until


def test_rows_arrive_under_their_ids_in_order_and_are_removed(bench: RelayBench) -> None:
    bench.topic()
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 7), value=b"v%d" % number) for number in range(3000)))
    bench.relay(rows=700, batch=100).run(drain=True)
    records = bench.records()
    assert sorted(record.id for record in records) == sorted(f"e-{number}" for number in range(3000))
    assert in_order(records)
    assert bench.store.outbox.rows() == []


def test_a_waiting_relay_is_woken(bench: RelayBench) -> None:
    bench.topic()
    with bench.relaying(poll_s=60.0, lease_s=240.0):
        for number in range(3):
            bench.put(message(f"e-{number}"))
            until(lambda number=number: len(bench.ids()) == number + 1)
    assert bench.ids() == ["e-0", "e-1", "e-2"]


def test_b011_a_row_that_commits_late_is_not_skipped_and_a_hole_stalls_nothing(on_postgres: RelayBench) -> None:
    bench = on_postgres
    bench.topic(partitions=1)
    relay = bench.relay()
    first = psycopg.connect(bench.store_url)
    unrelated = psycopg.connect(bench.store_url)  # the oldest transaction in the cluster, with a row of its own
    unrelated.execute("CREATE TABLE elsewhere (id integer)")
    outbox.add(first, message("o1"))
    bench.put(message("o2"))
    for _ in range(2):
        relay.run(drain=True)
    assert bench.ids() == ["o2"]
    first.commit()
    with psycopg.connect(bench.store_url) as third:
        outbox.add(third, message("o3"))
        third.rollback()
    bench.put(message("o4"))
    for _ in range(2):
        bench.relay().run(drain=True)
    assert sorted(bench.ids()) == ["o1", "o2", "o4"]
    assert bench.empty()
    first.close()
    unrelated.close()


def test_who_saw_the_other_comes_after_it(on_postgres: RelayBench) -> None:
    """Two transactions write one key; the second waits for the first's row lock, so its row is numbered later, though
    a third one's number, taken in between, commits first."""
    bench = on_postgres
    bench.topic(partitions=1)
    bench.store.prepare(lambda tx: tx.execute("CREATE TABLE account (id integer, version integer)"))
    bench.store.prepare(lambda tx: tx.execute("INSERT INTO account VALUES (1, 0)"))
    change = "UPDATE account SET version = version + 1 WHERE id = 1 RETURNING version"

    def writer() -> None:
        with psycopg.connect(bench.store_url) as connection:
            version = connection.execute(change).fetchone()
            assert version is not None
            outbox.add(connection, message(f"e-{version[0]}", b"account"))

    with bench.relaying():
        writers = [threading.Thread(target=writer) for _ in range(8)]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        until(lambda: len(bench.ids()) == 8)
    assert bench.ids() == [f"e-{version}" for version in range(1, 9)]


def test_b012_a_poison_row_is_parked_and_blocks_its_own_key_only(bench: RelayBench) -> None:
    bench.topic(max_message_bytes=1000)
    bench.put(message("bad-0", b"poisoned", value=b"x" * 5000), message("after-0", b"poisoned"))
    bench.put(*(message(f"good-{number}", b"k%d" % number) for number in range(500)))
    refused: list[RowRefused] = []
    events = Events()
    events.listen(lambda event: refused.append(event) if isinstance(event, RowRefused) else None)
    relay = Relay(bench.store, bench.engine, RelayPolicy(attempts=3, first_s=0.2, most_s=1, poll_s=0.05), events=events)
    thread = threading.Thread(target=relay.run)
    thread.start()
    until(lambda: len(bench.ids()) == 500)
    assert not [record for record in bench.records() if record.key == b"poisoned"]
    until(lambda: "after-0" in bench.ids())
    relay.stop()
    thread.join()
    assert [(event.count, event.parked) for event in refused] == [(1, False), (2, False), (3, True)]
    (parked,) = bench.store.outbox.rows(states=["parked"])
    assert parked.message.id == "bad-0"
    assert "TooLarge" in parked.error
    bench.topic(max_message_bytes=10_000)  # a person raises the limit, and lets it be sent again
    assert bench.store.outbox.retry([parked.seq]) == [parked.seq]
    bench.relay().run(drain=True)
    assert "bad-0" in bench.ids()
    assert bench.empty()


def test_a_refused_row_holds_back_its_key_in_every_later_batch(bench: RelayBench) -> None:
    """Some of its key are in the same batch, some are read in later passes, while what was sent is being removed."""
    bench.topic(max_message_bytes=1000)
    keys = [b"held" if number in (3, 12, 25, 26) else b"k%d" % number for number in range(40)]
    bench.put(*(message(f"e-{n}", key, value=b"x" * (5000 if n == 3 else 10)) for n, key in enumerate(keys)))
    with bench.relaying(rows=10, batch=5, attempts=2, first_s=2.0, most_s=2.0):
        until(lambda: len(bench.ids()) == 36)
        assert not [record for record in bench.records() if record.key == b"held"]
        until(lambda: len(bench.ids()) == 39)  # the refused row is parked
    assert [record.id for record in bench.records() if record.key == b"held"] == ["e-12", "e-25", "e-26"]
    assert bench.empty()


def test_b014_a_row_for_a_topic_that_is_not_there_waits_for_it(bench: RelayBench) -> None:
    bench.topic("other")
    bench.put(message("e-0", topic="t"), message("o-0", topic="other"))
    with bench.relaying(attempts=1000):
        until(lambda: bench.ids("other") == ["o-0"])
        (failing,) = until(lambda: bench.store.outbox.rows(states=["failing"]))
        assert "no topic 't'" in failing.error
        bench.topic("t")
        until(lambda: bench.ids("t") == ["e-0"])
    assert bench.empty()


def test_rows_may_be_mapped_to_another_topic(bench: RelayBench) -> None:
    bench.topic("orders")
    bench.put(message("e-0", topic="order"))
    bench.relay(topics={"order": "orders"}).run(drain=True)
    assert bench.ids("orders") == ["e-0"]


def test_an_outage_burns_no_attempt_and_drains_afterwards(bench: RelayBench) -> None:
    """The log's database is locked by another process for longer than the producer waits."""
    bench.topic()
    bench.put(message("e-0"))
    bench.relay().run(drain=True)  # all is open
    states: list[RelayStateChanged] = []
    events = Events()
    events.listen(lambda event: states.append(event) if isinstance(event, RelayStateChanged) else None)
    engine = SqliteEngine(bench.engine_url, busy_s=0.1)
    blocker = apsw.Connection(bench.engine_url.removeprefix("sqlite:///"))
    blocker.execute("BEGIN IMMEDIATE")
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 3)) for number in range(1, 50)))
    relay = Relay(bench.store, engine, RelayPolicy(attempts=2, lease_s=2, poll_s=0.1), events=events)
    thread = threading.Thread(target=relay.run)
    thread.start()
    until(lambda: any(event.state == "waiting" for event in states))
    status = bench.store.outbox.status()
    assert (status.pending, status.failing, status.parked) == (49, 0, 0)
    until(lambda: any(each.why for each in bench.store.outbox.status().relays))
    blocker.execute("ROLLBACK")
    blocker.close()
    until(bench.empty)
    relay.stop()
    thread.join()
    engine.close()
    assert sorted(bench.ids()) == sorted(f"e-{number}" for number in range(50))
    assert in_order(bench.records())
    assert [event.state for event in states] == ["running", "waiting", "running", "stopped"]
    assert relay.refused == 0


def test_outages_in_the_middle_of_a_backlog_lose_and_reorder_nothing(bench: RelayBench) -> None:
    """Batches fail while the next rows are read behind them."""
    bench.topic(partitions=1)
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 3)) for number in range(600)))
    appended = 0

    def failing(window: str) -> None:
        nonlocal appended
        if window == "append-written":
            appended += 1
            if appended in (4, 5, 11, 12, 20, 21):  # each batch is tried twice
                raise Unavailable("the disk is full")

    windows.install(failing)
    try:
        bench.relay(rows=20, batch=20).run(drain=True)
    finally:
        windows.install(None)
    assert appended > 21
    assert [record.id for record in bench.records() if record.key == b"k1"] == [f"e-{n}" for n in range(1, 600, 3)]
    assert len(bench.ids()) == 600
    assert bench.empty()


def test_the_rate_is_kept(bench: RelayBench) -> None:
    bench.topic()
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 5)) for number in range(600)))
    began = time.monotonic()
    bench.relay(rate=300.0).run(drain=True)
    assert time.monotonic() - began >= 1.8  # the upper bound is the benchmark's: machines may be slow
    assert len(bench.ids()) == 600


def test_a_relay_that_waits_for_its_pace_says_that_it_lives(bench: RelayBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that is longer than the lease: without it the others take its buckets, and publish its rows again."""
    bench.topic()
    bench.put(message("e-0"), message("e-1"))
    signs: list[bool] = []
    hold = bench.store.outbox.hold

    def heard(relay: str, **given: Any) -> Holding:
        signs.append(given.get("keep", False))
        return hold(relay, **given)

    monkeypatch.setattr(bench.store.outbox, "hold", heard)
    bench.relay(rate=0.5, lease_s=0.4).run(drain=True)
    assert bench.ids() == ["e-0", "e-1"]
    assert any(signs)


def test_a_relay_that_lost_its_buckets_publishes_no_more_of_what_it_read(
    bench: RelayBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.topic()
    bench.put(message("e-0"), message("e-1"))
    with bench.relaying(rate=0.05, lease_s=0.4):
        until(lambda: bench.ids() == ["e-0"] and len(bench.store.outbox.rows()) == 1)
        another_takes_all(bench)
        until(lambda: "others took 16 of its buckets" in caplog.text)
    assert bench.ids() == ["e-0"]
    assert [row.message.id for row in bench.store.outbox.rows()] == ["e-1"]


def test_a_relay_that_lost_its_buckets_before_it_published_anything_goes_on(bench: RelayBench) -> None:
    bench.topic()
    bench.put(message("e-0"), message("e-1"))
    relay = bench.relay(rows=2, batch=1, lease_s=0.001)

    def taken(window: str) -> None:
        if window == "relay-read":
            another_takes_all(bench)
        elif window == "relay-sent":
            relay.stop()

    windows.install(taken)
    try:
        relay.run()
    finally:
        windows.install(None)
    assert bench.ids() == []
    assert len(bench.store.outbox.rows()) == 2


def test_a_relay_whose_rows_could_not_be_removed_looks_before_it_publishes_more(
    bench: RelayBench, caplog: pytest.LogCaptureFixture
) -> None:
    """Not only when it has been silent for long: it would publish the same rows again and again until then."""
    bench.topic()
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 10)) for number in range(100)))
    left = 1

    def taken(window: str) -> None:
        nonlocal left
        if window == "relay-sent" and left:
            left -= 1
            another_takes_all(bench)

    windows.install(taken)
    try:
        with bench.relaying(rows=10, batch=10, lease_s=60.0):
            until(lambda: "others took 16 of its buckets" in caplog.text)
    finally:
        windows.install(None)
    assert len(bench.ids()) <= 30  # the rows of that pass, and those that were read ahead and removed beside
    assert len(bench.store.outbox.rows()) == 100


def test_what_another_gives_up_is_relayed_soon_and_not_a_quarter_of_the_lease_later(bench: RelayBench) -> None:
    bench.topic()
    before = bench.store.outbox
    assert len(before.hold("another", lease_s=600).buckets) == BUCKETS
    bench.put(*(message(f"e-{number}", b"k%d" % number) for number in range(100)))
    with bench.relaying(lease_s=240.0):
        until(lambda: len(before.status().relays) == 2)
        assert len(before.hold("another", lease_s=600).buckets) == BUCKETS // 2
        until(bench.ids)
    assert 0 < len(before.rows()) < 100


def test_a_drain_does_not_wait_for_what_another_may_not_send_yet(bench: RelayBench) -> None:
    bench.topic()
    bench.put(message("e-0"), message("e-1"))
    held = bench.store.outbox.hold("another", lease_s=600).buckets
    first = bench.store.outbox.pending(held, rows=1, bytes=1)
    in_an_hour = bench.store.clock_us() + 3_600_000_000
    bench.store.outbox.failed(held, [RowFailure(first[0], "no", in_an_hour)])
    bench.relay().run(drain=True)
    assert bench.ids() == []


def another_takes_all(bench: RelayBench) -> None:
    bench.store.outbox.hold("another", lease_s=60)
    table = "settled_outbox_bucket" if bench.store.name == "sqlite" else "settled.outbox_bucket"
    with bench.kind.transaction(bench.store_url) as connection:
        connection.execute(f"UPDATE {table} SET owner = 'another', epoch = epoch + 1")


def test_a_pace_is_even() -> None:
    waits: list[float] = []
    pace = Pace(100.0, waits.append)
    pace.take(5)
    pace.take(100)
    pace.take(1)
    assert pace.step == 5
    assert waits == [pytest.approx(0.05, abs=0.03), pytest.approx(1.05, abs=0.03)]
    assert Pace(None, waits.append).step is None


@pytest.mark.parametrize("field", ["rows", "attempts", "lease_s", "rate"])
def test_a_policy_that_cannot_work_is_refused(bench: RelayBench, field: str) -> None:
    with pytest.raises(ContractError, match="above 0"):
        bench.relay(**{field: 0})


def test_the_relay_of_an_app_starts_by_itself(tmp_path: Path) -> None:
    app = App(topic="orders", group="g", engine=f"sqlite:///{tmp_path}/log.db", store=f"sqlite:///{tmp_path}/e.db")

    @app.handler
    def handle(tx: Any, record: Any) -> None:
        tx.publish({"for": record.id}, topic="shipments", key=record.key)

    with app, App(topic="shipments", engine=app.engine_url, store=f"sqlite:///{tmp_path}/e2.db") as shipments:
        assert shipments.engine.topics()
        for number in range(20):
            app.publish(b"x", key=f"k{number % 3}", id=f"e{number}")
        app.run(drain=True, relay=False)
        assert app.store.outbox.status().pending == 20
        app.publish(b"x", key="k", id="last")
        app.drain()
        assert app.store.outbox.status().pending == 0
        found = all_records(shipments.engine, "shipments")
        assert sorted(record.id for record in found) == sorted([f"e{n}:g:1" for n in range(20)] + ["last:g:1"])
        assert {record.causation_id for record in found} == {record.id.split(":")[0] for record in found}


def test_a_relay_beside_a_running_worker_publishes_at_once(tmp_path: Path) -> None:
    app = App(topic="orders", group="g", engine=f"sqlite:///{tmp_path}/log.db", store=f"sqlite:///{tmp_path}/e.db")

    @app.handler
    async def handle(tx: Any, record: Any) -> None:
        await tx.publish(record.value, topic="shipments")

    with app, App(topic="shipments", engine=app.engine_url, store=f"sqlite:///{tmp_path}/e2.db") as shipments:
        assert shipments.engine.topics()
        worker = app.worker()
        with RelayBeside(app.relay, app.store):
            assert not relay_threads()
            thread = threading.Thread(target=worker.run)
            thread.start()
            app.publish(b"x", key="k")
            try:
                until(lambda: len(all_records(shipments.engine, "shipments")) == 1)
                assert relay_threads()
            finally:
                worker.stop()
                thread.join(30)
        assert not relay_threads()


def relay_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "settled-relay"]


def test_what_a_failed_run_published_is_published_once_by_the_run_that_succeeds(tmp_path: Path) -> None:
    app = App(
        topic="orders",
        engine=f"sqlite:///{tmp_path}/log.db",
        store=f"sqlite:///{tmp_path}/e.db",
        delivery={"group": "g"},
        poison={"backoff": {"first": "10ms"}},
    )
    failed: set[str] = set()

    @app.handler
    def handle(tx: Any, record: Any) -> None:
        tx.publish(b"first", topic="shipments", key=record.key)
        tx.publish(b"second", topic="shipments", key=record.key)
        if record.id in ("e3", "e7") and record.id not in failed:
            failed.add(record.id)
            raise ConnectionError("once")

    with app, App(topic="shipments", engine=app.engine_url, store=f"sqlite:///{tmp_path}/e2.db") as shipments:
        assert shipments.engine.topics()
        for number in range(10):
            app.publish(b"x", key=f"k{number}", id=f"e{number}")
        app.drain()
        found = all_records(shipments.engine, "shipments")
    assert failed == {"e3", "e7"}
    assert sorted(record.id for record in found) == sorted(f"e{n}:g:{m}" for n in range(10) for m in (1, 2))
    for record in found:
        assert record.value == (b"first" if record.id.endswith(":1") else b"second")
