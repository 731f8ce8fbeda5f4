"""The queue form on the embedded log, with workers: leases, times, order, turns, failures, deaths (B016 to B021)."""

from __future__ import annotations

import resource
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from shop import Shop, ended, heard, insert, kill, working

from settled import scheduling
from settled.app import App
from settled.clock import wall_us
from settled.engine import Assigned, ConsumerGroup, Fetched, QueueInfo
from settled.errors import ContractError, InvalidMessage, SettledError, Unsupported
from settled.events import Settled
from settled.outcome import Outcome
from settled.record import Message, Record, from_us
from settled.store import Selection, Tx
from waiting import until

FAST = {"lease": "1s", "grace": "10s"}


def queue(shop: Shop, handler: Any = insert, *, ordering: str = "none", slots: int = 4, **sections: Any) -> App:
    transport = {"form": "queue", **sections.pop("transport", {})}
    delivery = {**FAST, "ordering": ordering, **sections.pop("delivery", {})}
    return shop.app(handler, partitions=slots, transport=transport, delivery=delivery, **sections)


def held(app: App) -> QueueInfo:
    found = app.engine.topics(["t"])[0].queue
    assert found is not None
    return found


def settled(shop: Shop, app: App, count: int) -> None:
    until(lambda: sum(shop.tally(app).values()) >= count, 60)


def at_work(app: App) -> bool:
    return any(member.partitions for group in app.engine.groups("g") for member in group.members)


def stopped(worker: subprocess.Popen[str]) -> None:
    """In good order, or before it had begun to mind signals."""
    worker.send_signal(signal.SIGTERM)
    assert ended(worker, 60)[0] in (0, -signal.SIGTERM)


def sections(ordering: str = "none", slots: int = 4, **more: Any) -> dict[str, Any]:
    """For a worker in a process of its own."""
    delivery = {**FAST, "ordering": ordering}
    return {"partitions": slots, "transport": {"form": "queue"}, "delivery": delivery, **more}


# Due times.


def test_b016_a_record_that_is_due_later_is_nobodys_until_then(shop: Shop) -> None:
    app = queue(shop)
    due = datetime.now(UTC) + timedelta(seconds=4)
    workers = [shop.process("noted", **sections()) for _ in range(3)]
    app.publish(b"x", id="e1", not_before=due)
    until(lambda: (held(app).ready, held(app).scheduled, held(app).claimed) == (0, 1, 0))
    assert held(app).next_due_us == scheduling.asked(scheduling.headers(not_before=due)).due_us
    until(lambda: shop.ids() == ["e1"], 60)
    for worker in workers:
        stopped(worker)
    [start] = shop.lines("starts")
    late_s = int(start.split()[1]) / 1e6 - due.timestamp()
    assert 0 <= late_s < 5


def test_what_is_due_sooner_wakes_a_worker_that_waits_for_a_later_time(shop: Shop) -> None:
    app = queue(shop)
    app.publish(b"x", id="later", not_before=datetime.now(UTC) + timedelta(hours=1))
    with working(app):
        until(lambda: at_work(app))
        app.publish(b"x", id="sooner", not_before=datetime.now(UTC) + timedelta(seconds=0.5))
        settled(shop, app, 1)
    assert shop.ids() == ["sooner"]
    assert (held(app).ready, held(app).scheduled, held(app).claimed) == (0, 1, 0)


def test_a_drain_ends_although_something_is_due_later(shop: Shop) -> None:
    app = queue(shop)
    app.publish(b"x", id="later", not_before=datetime.now(UTC) + timedelta(hours=1))
    app.publish(b"x", id="now")
    app.drain()
    assert shop.ids() == ["now"]


def test_b021_a_time_is_a_moment_whatever_the_zone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Warsaw")
    time.tzset()
    try:
        app = queue(shop)
        due = datetime.now(UTC) + timedelta(seconds=2)
        for name, zone in (("utc", UTC), ("one", timezone(timedelta(hours=1))), ("warsaw", ZoneInfo("Europe/Warsaw"))):
            app.publish(b"x", id=name, not_before=due.astimezone(zone))
        with pytest.raises(InvalidMessage, match="no zone"):
            app.publish(b"x", id="naive", not_before=datetime.now())
        app.publish(b"x", id="past", not_before=datetime(1990, 1, 1, tzinfo=UTC))
        app.publish(b"x", id="never", not_before=datetime.max.replace(tzinfo=UTC))
        assert (held(app).ready, held(app).scheduled) == (1, 4)
        events = heard(app)
        with working(app):
            settled(shop, app, 1)
            assert shop.ids() == ["past"]
            settled(shop, app, 4)
            at = time.time()
        assert any(isinstance(event, Settled) for event in events)
        assert 0 <= at - due.timestamp() < 10
        assert sorted(shop.ids()) == ["one", "past", "utc", "warsaw"]
        assert (held(app).ready, held(app).scheduled) == (0, 1)  # the end of time is stored, listed and not reached
    finally:
        monkeypatch.undo()
        time.tzset()


def test_b021_both_hours_of_the_autumn_fold_are_an_hour_apart() -> None:
    first = datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Warsaw"))
    due = [scheduling.asked(scheduling.headers(not_before=first.replace(fold=fold))).due_us for fold in (0, 1)]
    assert due[1] - due[0] == 3_600_000_000


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": True}, "priority"),
        ({"tenant": b"x" * 201}, "settled-tenant"),
        ({"not_before": datetime(2030, 1, 1)}, "not_before"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(shop: Shop, asked: dict[str, Any], field: str) -> None:
    app = queue(shop)
    with pytest.raises(InvalidMessage) as told:
        app.publish(b"x", **asked)
    assert told.value.field == field
    assert told.value.hint
    assert held(app).ready == 0


@pytest.mark.parametrize("value", [b"", b"soon", b"2030-01-01T00:00:00", b"\xff", None])
def test_a_header_that_says_no_time_is_refused_at_once(shop: Shop, value: bytes | None) -> None:
    app = queue(shop)
    with pytest.raises(InvalidMessage, match=scheduling.NOT_BEFORE):
        app.send(Message(topic="t", id="e1", value=b"x", headers=((scheduling.NOT_BEFORE, value),)))


def test_only_a_queue_obeys_times(shop: Shop) -> None:
    with pytest.raises(Unsupported, match="only a queue"):
        shop.app().publish(b"x", not_before=datetime.now(UTC))
    with pytest.raises(Unsupported, match="order of keys"):
        queue(shop, ordering="key").publish(b"x", priority=1)


def test_many_scheduled_records_cost_neither_memory_nor_polling(shop: Shop) -> None:
    app = queue(shop)
    later = scheduling.headers(not_before=datetime.now(UTC) + timedelta(hours=2))
    for number in range(20_000):
        app.send(Message(topic="t", id=f"e{number}", value=b"x" * 100, headers=later))
    app.publish(b"x", id="now")
    with working(app):
        settled(shop, app, 1)
        assert held(app).scheduled == 20_000
        begun = resource.getrusage(resource.RUSAGE_SELF)
        threading.Event().wait(3)
        now = resource.getrusage(resource.RUSAGE_SELF)
    busy = now.ru_utime + now.ru_stime - begun.ru_utime - begun.ru_stime
    assert busy < 0.6  # of three seconds, beside all that a worker does by the second
    assert now.ru_maxrss - begun.ru_maxrss < 4096


# Priorities and tenants.


def test_higher_priorities_come_first(shop: Shop) -> None:
    app = queue(shop, slots=1)
    for number in range(30):
        app.publish(b"x", id=f"{number % 3}-{number:02}", priority=(9, 4, 0)[number % 3])
    app.drain()
    assert [ident[0] for ident in shop.ids()] == ["0"] * 10 + ["1"] * 10 + ["2"] * 10
    assert shop.ids() == sorted(shop.ids())


def test_tenants_take_turns(shop: Shop) -> None:
    """One that has a long backlog does not starve another that comes after it."""
    app = queue(shop, slots=1, delivery={"in_flight": {"records": 10}, "group_size": {"records": 10}})
    for number in range(200):
        app.publish(b"x", id=f"big-{number}", tenant="big")
    for number in range(20):
        app.publish(b"x", id=f"small-{number}", tenant="small")
        app.publish(b"x", id=f"none-{number}")
    app.drain()
    names = [ident.split("-")[0] for ident in shop.ids()]
    assert len(names) == 240
    assert max(place for place, name in enumerate(names) if name == "small") < 80
    assert max(place for place, name in enumerate(names) if name == "none") < 80


# Order.


def test_a_key_has_one_owner_at_a_time_and_stays_in_order(shop: Shop) -> None:
    app = queue(shop, ordering="key")
    workers = [shop.process("plain", **sections("key")) for _ in range(3)]
    for number in range(600):
        app.send(Message(topic="t", key=b"k%d" % (number % 7), id=f"{number % 7}-{number:04}", value=b"v"))
    settled(shop, app, 600)
    for worker in workers:
        stopped(worker)
    for key in range(7):
        theirs = [ident for ident in shop.ids() if ident.startswith(f"{key}-")]
        assert theirs == sorted(set(theirs))
    assert len(shop.ids()) == 600


def test_b040_a_failed_record_is_not_overtaken_by_its_key(shop: Shop) -> None:
    fails = ["k0", "k0"]

    def handler(tx: Tx, record: Record) -> None:
        if record.id in fails:
            fails.remove(record.id)
            raise ValueError("not yet")
        insert(tx, record)

    app = queue(shop, handler, ordering="key", poison={"backoff": {"first": "1s", "most": "1s"}})
    for number in range(5):
        for key in ("k", "m"):
            app.publish(str(number).encode(), key=key, id=f"{key}{number}")
    with working(app), working(app):
        settled(shop, app, 10)
    assert not fails
    assert [ident for ident in shop.ids() if ident[0] == "k"] == [f"k{n}" for n in range(5)]
    assert [ident for ident in shop.ids() if ident[0] == "m"] == [f"m{n}" for n in range(5)]


@pytest.mark.parametrize("versioned", [True, False])
def test_competing_consumers_overwrite_with_what_is_stale_unless_versions_say_so(shop: Shop, versioned: bool) -> None:
    newer = threading.Event()

    def price(tx: Tx, record: Record) -> None:
        if record.version == 1:
            assert newer.wait(30)
        tx.execute("INSERT OR REPLACE INTO price VALUES (?, ?)", (record.key, record.value))

    transport = {"version": "version"} if versioned else {}
    app = queue(shop, price, transport=transport, delivery={"group_size": {"records": 1}, "in_flight": {"records": 1}})
    app.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS price (sku BLOB PRIMARY KEY, value BLOB)"))
    app.publish(b"10", key="lamp", version=1)
    app.publish(b"12", key="lamp", version=2)
    with working(app), working(app):
        settled(shop, app, 1)
        assert shop.rows("SELECT value FROM price") == [(b"12",)]
        newer.set()
        settled(shop, app, 2)
    assert shop.rows("SELECT value FROM price") == [(b"12" if versioned else b"10",)]
    assert shop.tally(app) == ({Outcome.APPLIED: 1, Outcome.STALE: 1} if versioned else {Outcome.APPLIED: 2})


# Leases.


def test_b017_a_lease_outlives_a_handler_that_takes_longer(shop: Shop) -> None:
    starts: list[str] = []

    def slow(tx: Tx, record: Record) -> None:
        starts.append(record.id)
        until = time.monotonic() + 3.0
        while time.monotonic() < until:  # no thread waits meanwhile: it computes
            pass
        insert(tx, record)

    app = queue(shop, slow)
    app.publish(b"x", id="e1")
    with working(app), working(app):
        settled(shop, app, 1)
    assert starts == ["e1"]
    assert shop.ids() == ["e1"]


@pytest.mark.parametrize("name", ["w1", "w2"])
def test_b018_what_a_dead_worker_held_is_taken_over(shop: Shop, name: str) -> None:
    app = queue(shop)
    app.publish(b"x", id="e1")
    first = shop.process("stuck", **sections(), member="w1")
    until(lambda: shop.lines("starts") == ["e1"], 60)
    kill(first)
    killed = time.monotonic()
    app.engine.maintain()
    with working(app, name):
        settled(shop, app, 1)
    assert time.monotonic() - killed < 1 + 2 + 10  # lease, two seconds, and a slow machine
    assert shop.ids() == ["e1"]


def test_b019_a_holder_that_was_stopped_past_its_lease_changes_nothing(shop: Shop) -> None:
    app = queue(shop)
    app.publish(b"x", id="e1")
    first = shop.process("stuck_before", **sections())
    until(lambda: shop.lines("starts") == ["e1"], 60)
    first.send_signal(signal.SIGSTOP)
    with working(app):
        settled(shop, app, 1)
        (shop.folder / "go").touch()
        first.send_signal(signal.SIGCONT)
        until(lambda: len(app.engine.groups("g")[0].members) == 2, 60)  # it is back, and was refused
        assert shop.ids() == ["e1"]
        app.publish(b"x", id="e2")
        settled(shop, app, 2)
    stopped(first)
    assert sorted(shop.ids()) == ["e1", "e2"]


def test_b020_workers_whose_clocks_are_wrong_agree(shop: Shop) -> None:
    app = queue(shop)
    due = wall_us() + 4_000_000
    workers = [shop.process("noted", **sections(), shift_s=shift) for shift in (0, 600, -600)]
    for number in range(50):
        when = from_us(due) if number < 5 else None
        app.publish(b"x", id=f"e{number}", not_before=when)
    settled(shop, app, 50)
    for worker in workers:
        stopped(worker)
    assert sorted(shop.ids()) == sorted(f"e{number}" for number in range(50))
    started = {ident: int(us) for ident, us in (line.split() for line in shop.lines("starts"))}
    assert len(started) == len(shop.lines("starts")) == 50
    for number in range(5):
        assert 0 <= started[f"e{number}"] - due < 6_000_000


# Failures and deaths.


def test_b023_a_record_that_kills_its_worker_ends_in_quarantine(shop: Shop) -> None:
    app = queue(shop)
    app.publish(b"boom", id="boom", key="a")
    for number in range(20):
        app.publish(b"x", id=f"e{number}", key=f"k{number}")
    deaths = 0
    while deaths < 10:
        code, _ = ended(shop.process("boom", **sections(), drain=True), 60)
        if code == 0:
            break
        deaths += 1
    assert shop.lines("booms") == ["boom"] * 3
    assert shop.tally(app) == {Outcome.APPLIED: 20, Outcome.QUARANTINED: 1}
    assert sorted(shop.ids()) == sorted(f"e{number}" for number in range(20))


def test_a_quarantined_record_of_a_queue_is_redriven(shop: Shop) -> None:
    ok: list[bool] = []

    def handler(tx: Tx, record: Record) -> None:
        if not ok:
            raise ValueError("no")
        insert(tx, record)

    app = queue(shop, handler)
    app.publish(b"x", id="e1", key="k")
    app.drain()
    assert shop.tally(app) == {Outcome.QUARANTINED: 1}
    assert held(app).claimed == held(app).ready == 0
    ok.append(True)
    [number] = app.store.quarantine.select(Selection(consumer="g"))
    app.store.quarantine.request([number], reason="mended", who="test")
    with working(app):
        until(lambda: shop.tally(app) == {Outcome.APPLIED: 1}, 60)
    assert shop.ids() == ["e1"]


def test_members_that_are_killed_at_random_settle_each_record_once(shop: Shop) -> None:
    patient = {"poison": {"attempts": {"worker-lost": 1000}}}  # these deaths are nobody's fault
    app = queue(shop, slots=6, **patient)
    for number in range(3000):
        app.send(Message(topic="t", key=b"k%d" % (number % 50), id=f"e{number}", value=b"v"))
    app.publish(b"x", id="last")
    workers = [shop.process("plain", **sections(slots=6, **patient)) for _ in range(3)]
    for _ in range(4):
        wanted = min(len(shop.ids()) + 1, 3001)
        until(lambda wanted=wanted: len(shop.ids()) >= wanted, 60)  # type: ignore[misc]
        kill(workers.pop(0))
        workers.append(shop.process("plain", **sections(slots=6, **patient)))
    settled(shop, app, 3001)
    assert shop.tally(app) == {Outcome.APPLIED: 3001}
    for worker in workers:
        stopped(worker)
    assert sorted(shop.ids()) == sorted([*(f"e{number}" for number in range(3000)), "last"])
    app.drain()  # whoever was killed last may have left it to the next to forget what is settled
    assert held(app).claimed == held(app).ready == 0


# Who may.


def test_a_queue_is_one_groups_at_a_time(shop: Shop) -> None:
    app = queue(shop)
    app.publish(b"x", id="e1")
    with working(app):
        settled(shop, app, 1)
        other = queue(shop, delivery={"group": "other"})
        with pytest.raises(ContractError, match="group 'g'"):
            other.run(drain=True)


def test_a_queue_and_a_log_do_not_share_a_topic(shop: Shop) -> None:
    assert queue(shop).engine
    with pytest.raises(ContractError, match="form queue, not log"):
        shop.app(partitions=4).publish(b"x")


def test_a_receipt_of_a_queue_gives_a_token_of_the_event(shop: Shop) -> None:
    app = queue(shop)
    receipt = app.publish(b"x", id="e1")
    app.drain()
    seen = app.wait(receipt.token, 10)
    assert seen.effect
    assert seen.outcome is Outcome.APPLIED


def test_a_token_of_an_event_is_refused_where_no_marks_are_kept(shop: Shop) -> None:
    app = queue(shop, delivery={"mode": "at-least-once"})
    receipt = app.publish(b"x", id="e1")
    app.drain()
    assert shop.ids() == ["e1"]
    with pytest.raises(Unsupported, match="no marks"):
        app.wait(receipt.token, 10)


def test_a_drain_that_meets_claims_in_paused_slots_says_so(shop: Shop) -> None:
    """And works on what it can: what a paused slot holds is counted by records, not by slots."""
    app = queue(shop, slots=2)
    with working(app):
        until(lambda: len(app.store.positions("g")) == 2, 60)
    for number in range(5):
        app.publish(b"x", id=f"e{number}")
    consumer = app.engine.consumer(ConsumerGroup(group="g", topics=("t",), lease_s=60.0))
    claimed: list[Fetched] = []
    while not claimed:
        for news in consumer.poll(1.0, records=5, bytes=1_000_000):
            if isinstance(news, Assigned):
                consumer.start("t", news.partition, 0)
            elif isinstance(news, Fetched):
                claimed.append(news)
    consumer.close()
    slot = claimed[0].partition
    assert len(claimed[0].records) == 5
    app.store.pause("g", "t", [slot], reason="a look", who="test")
    app.publish(b"x", id="more")
    with pytest.raises(SettledError, match=f"t/{slot}"):
        app.drain()
    app.store.resume("g", "t", [slot])
    app.drain()
    assert sorted(shop.ids()) == [*(f"e{number}" for number in range(5)), "more"]
