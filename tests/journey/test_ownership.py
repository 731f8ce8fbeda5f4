"""Who works on a partition: members that come and go, die, are stopped; processes side by side on one file."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from functools import partial

import pytest
from shop import Shop, ended, insert, kill, working

from settled import windows
from settled.errors import Refused, SettledError
from settled.outcome import FailureClass, Outcome
from settled.record import Record
from settled.sqlite import open_connection
from settled.store import Selection, Tx
from waiting import until


def test_b003_what_was_fetched_and_not_started_goes_to_the_next_owner(shop: Shop) -> None:
    """Member A holds all ten fetched; B joins and gets the partition; A commits nothing that it has not settled."""
    gate = threading.Event()

    def slow(tx: Tx, record: Record) -> None:
        gate.wait(30)
        insert(tx, record)

    first = shop.app(slow, partitions=2, delivery={"lease": "5s"})
    second = shop.app(partitions=2, delivery={"lease": "5s"})
    for number in range(40):
        first.publish(b"x", key=f"k{number}", id=f"e{number}")
    with working(first) as worker:
        until(lambda: worker._in_flight.records == 40)
        assert sum(found.frontier for _, found in first.store.positions("g")) == 0
        with working(second):
            threading.Timer(0.5, gate.set).start()
            until(lambda: sum(found.frontier for _, found in first.store.positions("g")) == 40)
    assert Counter(shop.ids()) == {f"e{number}": 1 for number in range(40)}


def test_b003_soak_members_come_and_go(shop: Shop) -> None:
    app = shop.app(partitions=4)
    total = 800
    for number in range(200):
        app.publish(b"x", key=f"k{number % 20}", id=f"e{number}")
    with working(app):
        for turn in range(6):
            other = shop.app(partitions=4)
            with working(other):
                for number in range(200 + turn * 100, 300 + turn * 100):
                    app.publish(b"x", key=f"k{number % 20}", id=f"e{number}")
        until(lambda: sum(found.frontier for _, found in app.store.positions("g")) == total)
    assert Counter(shop.ids()) == {f"e{number}": 1 for number in range(total)}
    for key in range(20):
        mine = [int(each[1:]) for each in shop.ids() if int(each[1:]) % 20 == key]
        assert mine == sorted(mine)


def gone_or_done(shop: Shop, worker: subprocess.Popen[str], event_id: str) -> bool:
    return worker.poll() is not None or event_id in shop.ids()


def reached_count(shop: Shop, count: int) -> bool:
    return len(shop.ids()) > count


def test_b023_a_record_that_kills_its_worker_is_found(shop: Shop) -> None:
    app = shop.app()
    app.publish(b"boom", key="a", id="boom")
    for letter in "bcdefghijklmnopqrstu":
        app.publish(b"x", key=letter, id=f"good-{letter}")
    for number in (1, 2):
        app.publish(b"x", key="a", id=f"a{number}")
    exits = []
    for _ in range(6):  # the supervisor
        code, said = ended(shop.process("boom", drain=True))
        exits.append(code)
        if code == 0:
            break
        assert code == 137, said
    assert exits == [137, 137, 137, 0]
    assert shop.lines("booms") == ["boom"] * 3
    ids = shop.ids()
    assert len(ids) == len(set(ids)) == 22
    assert [each for each in ids if each in {"a1", "a2"}] == ["a1", "a2"]
    shelf = app.store.quarantine
    [number] = shelf.select(Selection())
    entry = shelf.entry(number)
    assert (entry.record.id, entry.failure.kind, entry.attempts.count) == ("boom", FailureClass.WORKER_LOST, 3)


def test_b023_a_killer_in_the_middle_of_a_group(shop: Shop) -> None:
    app = shop.app()
    for number in range(200):
        app.publish(b"boom" if number == 120 else b"x", key=f"k{number % 40}", id=f"e{number}")
    codes = []
    while not codes or codes[-1]:
        assert len(codes) < 6
        codes.append(ended(shop.process("boom", drain=True))[0])
    assert len(shop.lines("booms")) == 3
    assert Counter(shop.ids()) == {f"e{number}": 1 for number in range(200) if number != 120}


def test_b023_a_killer_far_beyond_a_head_that_waits(shop: Shop) -> None:
    """The frontier stands at a record that waits for its retry; what kills comes long after it."""
    app = shop.app()
    app.publish(b"x", key="head", id="e0")
    for number in range(1, 1500):
        app.publish(b"boom" if number == 1400 else b"x", key=f"k{number % 40}", id=f"e{number}")
    given = {
        "delivery": {"group_size": {"records": 100}},
        "poison": {"attempts": {"defect": 99}, "backoff": {"first": "9s", "most": "9s"}},
    }
    for _ in range(6):
        worker = shop.process("fails_on_e0_or_booms", **given)
        until(partial(gone_or_done, shop, worker, "e1499"))
        if worker.poll() is None:
            kill(worker)
            break
        ended(worker)
    assert len(shop.lines("booms")) == 3
    assert Counter(shop.ids()) == {f"e{number}": 1 for number in range(1, 1500) if number != 1400}


def test_b023_a_retry_that_kills(shop: Shop) -> None:
    """What was a failure first and is then fatal: its retry runs alone, and is counted, once a worker died."""
    app = shop.app()
    app.publish(b"boom", key="a", id="boom")
    for number in range(30):
        app.publish(b"x", key=f"k{number % 7}", id=f"e{number}")
    app.publish(b"x", key="a", id="after")
    codes: list[int] = []
    while not codes or codes[-1]:
        assert len(codes) < 8
        codes.append(ended(shop.process("fails_then_dies", drain=True))[0])
    assert len(shop.lines("booms")) <= 3
    assert len(set(shop.ids())) == len(shop.ids()) == 31
    [number] = app.store.quarantine.select(Selection())
    assert app.store.quarantine.entry(number).failure.kind is FailureClass.WORKER_LOST


def test_a_killed_worker_is_followed_and_nothing_is_lost_or_doubled(shop: Shop) -> None:
    app = shop.app(partitions=4)
    for number in range(400):
        app.publish(b"x", key=f"k{number % 20}", id=f"e{number}")
    for reached in (20, 150, 300):
        worker = shop.process("plain", partitions=4, delivery={"group_size": {"records": 5}})
        until(partial(reached_count, shop, reached))
        kill(worker)
    app.drain()
    assert Counter(shop.ids()) == {f"e{number}": 1 for number in range(400)}


def test_at_most_once_loses_what_was_in_flight_when_killed_and_only_that(shop: Shop) -> None:
    app = shop.app(delivery={"mode": "at-most-once"})
    assert app.store
    for number in range(10):
        app.publish(b"x", key="k", id=f"e{number}")
    worker = shop.process("stuck", delivery={"mode": "at-most-once", "group_size": {"records": 3}})
    until(lambda: shop.lines("starts"))
    started = shop.frontier(app)
    assert 1 <= started <= 3
    kill(worker)
    app.drain()
    assert shop.ids() == [f"e{number}" for number in range(started, 10)]
    assert shop.frontier(app) == 10


def test_at_most_once_a_stop_in_good_order_loses_nothing(shop: Shop) -> None:
    begun = threading.Event()

    def handler(tx: Tx, record: Record) -> None:
        begun.set()
        insert(tx, record)

    app = shop.app(handler, delivery={"mode": "at-most-once"})
    for number in range(300):
        app.publish(b"x", key=f"k{number}", id=f"e{number}")
    with working(app):
        begun.wait(20)
    settled = len(shop.ids())
    assert shop.frontier(app) == settled
    app.drain()
    assert Counter(shop.ids()) == {f"e{number}": 1 for number in range(300)}


def test_at_least_once_may_repeat_after_a_kill_and_loses_nothing(shop: Shop) -> None:
    app = shop.app(delivery={"mode": "at-least-once"})
    for number in range(100):
        app.publish(b"x", key="k", id=f"e{number}")
    worker = shop.process("plain", delivery={"mode": "at-least-once", "group_size": {"records": 3}})
    until(lambda: len(shop.ids()) > 20)
    kill(worker)
    app.drain()
    assert set(shop.ids()) == {f"e{number}" for number in range(100)}


# B045: stopping.


def stopped(shop: Shop, handler: str, *signals: int) -> tuple[float, int]:
    """Signals to a worker that is stuck in its handler: how long it took to end, and its exit code."""
    worker = shop.process(handler, delivery={"grace": "1s"}, poison={"attempts": {"defect": 1}})
    until(lambda: shop.lines("starts"))
    began = time.monotonic()
    for number in signals:
        worker.send_signal(number)
        if len(signals) > 1:
            until(lambda: time.monotonic() - began > 0.2)
    code, said = ended(worker)
    assert "Traceback" not in said, said
    return time.monotonic() - began, code


@pytest.mark.parametrize("handler", ["stuck", "stuck_swallowing"])
@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)], ids=["term", "int", "twice"]
)
def test_b045_stopping_settles_nothing_that_did_not_end(shop: Shop, handler: str, signals: tuple[int, ...]) -> None:
    app = shop.app()
    app.publish(b"x", key="k", id="e0")
    seconds, code = stopped(shop, handler, *signals)
    assert seconds < 8
    assert code == 0
    assert shop.ids() == []
    assert shop.frontier(app) <= 0
    assert app.store.attempts("g", "t", 0) == []
    assert app.store.quarantine.select(Selection()) == []
    app.drain()
    assert shop.ids() == ["e0"]


def test_b045_what_ends_within_the_grace_time_is_settled(shop: Shop) -> None:
    app = shop.app()
    app.publish(b"x", key="k", id="e0")
    app.publish(b"x", key="m", id="e1")
    worker = shop.process("stuck", delivery={"grace": "20s"})
    until(lambda: shop.lines("starts"))
    worker.terminate()
    (shop.folder / "go").touch()
    code, said = ended(worker)
    assert code == 0, said
    assert shop.ids() == ["e0"]
    assert shop.frontier(app) == 1


# B043, B044: processes side by side.


def test_b043_publishers_consumers_and_retention_share_the_files(shop: Shop) -> None:
    app = shop.app(partitions=4, retention={"age": "1h"})
    assert app.engine
    assert app.store
    each, publishers = 250, 4
    consumers = [shop.process("plain", partitions=4, retention={"age": "1h"}) for _ in range(3)]
    producers = [
        shop.process("publish", first=number * each, count=each, partitions=4, retention={"age": "1h"})
        for number in range(publishers)
    ]
    total = each * publishers

    def settled() -> bool:
        app.engine.maintain()
        return sum(found.frontier for _, found in app.store.positions("g")) == total

    held = open_connection(shop.effects_file)
    held.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1)
    held.execute("ROLLBACK")
    held.close()
    until(settled, 60, every=0.2)
    for producer in producers:
        code, said = ended(producer)
        assert code == 0, said
    for consumer in consumers:
        consumer.terminate()
    for consumer in consumers:
        code, said = ended(consumer)
        assert code == 0, said
        assert "locked" not in said
    assert Counter(shop.ids()) == {f"e{number}": 1 for number in range(total)}


def test_b044_many_start_on_nothing(shop: Shop) -> None:
    processes = [shop.process("publish", first=number * 10, count=10, partitions=2) for number in range(3)]
    processes += [shop.process("plain", partitions=2) for _ in range(4)]
    for process in processes[:3]:
        code, said = ended(process)
        assert code == 0, said
    until(lambda: len(shop.ids()) == 30)
    for process in processes[3:]:
        process.terminate()
        code, said = ended(process)
        assert code == 0, said
    assert len(set(shop.ids())) == 30


def test_b044_a_newer_schema_is_refused_clearly(shop: Shop) -> None:
    app = shop.app()
    assert app.store
    app.close()
    connection = open_connection(shop.effects_file)
    connection.execute("UPDATE settled_meta SET value = '99' WHERE name = 'version'")
    connection.close()
    with pytest.raises(Refused, match="99"):
        assert shop.app().store


def test_a_hook_that_fails_in_a_window_is_not_taken_for_the_handlers_failure(shop: Shop) -> None:
    """What settled itself raises while it settles ends the worker; it is never charged to a record, and the next worker
    settles it."""
    raised = []

    def hook(window: str) -> None:
        if window == "effect-made" and not raised:
            raised.append(window)
            raise OSError("a defect of ours")

    app = shop.app()
    app.publish(b"x", key="k", id="e0")
    windows.install(hook)
    try:
        with pytest.raises(SettledError, match="a defect of ours"):
            app.drain()
    finally:
        windows.install(None)
    assert raised
    assert app.store.attempts(app.contract.delivery.group, app.contract.transport.topic, 0) == []
    assert shop.ids() == []
    app.drain()
    assert shop.ids() == ["e0"]
    assert shop.tally(app) == {Outcome.APPLIED: 1}
