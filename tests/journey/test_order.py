"""Order of a key through failures, slowness and death; the frontier behind a slow head."""

from __future__ import annotations

import threading

import pytest
from shop import Shop, heard, insert, kill, wait_settled, working

from settled.errors import Reject, Retry, SettledError
from settled.events import Settled
from settled.outcome import Outcome
from settled.record import Record
from settled.store import Selection, Tx
from waiting import until


@pytest.mark.parametrize("slow", [0, 2])
def test_b001_the_frontier_stays_behind_a_record_that_still_runs(shop: Shop, slow: int) -> None:
    release = threading.Event()

    def handler(tx: Tx, record: Record) -> None:
        if record.id == f"e{slow}":
            release.wait(20)
        done.add(record.id)

    done: set[str] = set()
    app = shop.app(handler, delivery={"concurrency": 5, "group_size": {"records": 1}})
    for number in range(5):
        app.publish(b"x", key=f"k{number}", id=f"e{number}")
    with working(app):
        until(lambda: sum(shop.tally(app).values()) == 4)
        until(lambda: shop.frontier(app) == slow)
        assert f"e{slow}" not in done
        release.set()
        wait_settled(shop, app, 5)
    assert shop.tally(app) == {Outcome.APPLIED: 5}


def test_b001_what_ran_beyond_a_slow_head_is_not_repeated_after_a_kill(shop: Shop) -> None:
    app = shop.app()
    for number in range(5):
        app.publish(b"x", key=f"k{number}", id=f"e{number}")
    first = shop.process(
        "fails_on_e0", poison={"attempts": {"defect": 100}, "backoff": {"first": "20s", "most": "20s"}}
    )
    until(lambda: shop.frontier(app) == 0 and len(shop.ids()) == 4)
    kill(first)
    assert shop.frontier(app) == 0
    with working(app):
        wait_settled(shop, app, 5)
    assert sorted(shop.ids()) == [f"e{number}" for number in range(5)]


def interleaved(app: object) -> None:
    for number in range(5):
        for key in ("k", "m"):
            app.publish(str(number).encode(), key=key, id=f"{key}{number}")  # type: ignore[attr-defined]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_b040_a_failed_record_is_not_overtaken_by_its_key(shop: Shop, concurrency: int) -> None:
    failures = []

    def handler(tx: Tx, record: Record) -> None:
        if record.id == "k0" and len(failures) < 2:
            failures.append(record.id)
            raise Retry(after=0.3)
        insert(tx, record)

    app = shop.app(handler, delivery={"concurrency": concurrency})
    interleaved(app)
    with working(app):
        until(lambda: [i for i in shop.ids() if i[0] == "m"] == ["m0", "m1", "m2", "m3", "m4"])
        assert not [i for i in shop.ids() if i[0] == "k"]  # m passed by while k waited
        wait_settled(shop, app, 10)
    assert [i for i in shop.ids() if i[0] == "k"] == ["k0", "k1", "k2", "k3", "k4"]


def test_b040_a_crash_during_the_backoff_keeps_the_order(shop: Shop) -> None:
    app = shop.app()
    for number in range(5):
        app.publish(b"x", key="k", id=f"e{number}")
    first = shop.process("fails_on_e0", poison={"attempts": {"defect": 9}, "backoff": {"first": "1s", "most": "1s"}})
    until(lambda: app.store.attempts("g", "t", 0))
    kill(first)
    with working(app):
        wait_settled(shop, app, 5)
    assert shop.ids() == [f"e{number}" for number in range(5)]


def test_b040_after_quarantine_the_key_goes_on(shop: Shop) -> None:
    def handler(tx: Tx, record: Record) -> None:
        if record.id == "k0":
            raise ValueError("never")
        insert(tx, record)

    app = shop.app(handler, poison={"then": "continue"})
    interleaved(app)
    with working(app):
        wait_settled(shop, app, 10)
    assert [i for i in shop.ids() if i[0] == "k"] == ["k1", "k2", "k3", "k4"]
    assert shop.tally(app) == {Outcome.APPLIED: 9, Outcome.QUARANTINED: 1}


def test_b040_park_keeps_the_key_behind_its_quarantined_record_and_redrives_in_order(shop: Shop) -> None:
    mended = threading.Event()

    def handler(tx: Tx, record: Record) -> None:
        if record.id == "k1" and not mended.is_set():
            raise ValueError("not yet")
        insert(tx, record)

    app = shop.app(handler, poison={"then": "park"})
    interleaved(app)
    with working(app):
        wait_settled(shop, app, 10)
        assert shop.ids().count("k0") == 1
        assert not {"k1", "k2", "k3", "k4"} & set(shop.ids())
        shelf = app.store.quarantine
        numbers = shelf.select(Selection(consumer="g"))
        entries = shelf.entries(numbers)
        assert [(each.record.id, each.parked) for each in entries] == [
            ("k1", False),
            ("k2", True),
            ("k3", True),
            ("k4", True),
        ]
        app.publish(b"5", key="k", id="k5")  # arrives while the key is parked
        wait_settled(shop, app, 11)
        mended.set()
        numbers = shelf.select(Selection(consumer="g"))
        assert len(numbers) == 5
        shelf.request(numbers, reason="mended", who="test")
        until(lambda: "k5" in shop.ids())
        app.publish(b"6", key="k", id="k6")
        wait_settled(shop, app, 12)
        until(lambda: "k6" in shop.ids() or shop.tally(app).get(Outcome.QUARANTINED))
    assert [i for i in shop.ids() if i[0] == "k"] == [f"k{number}" for number in range(7)]


def test_b040_a_redrive_that_fails_keeps_those_behind_it_waiting(shop: Shop) -> None:
    def handler(tx: Tx, record: Record) -> None:
        if record.id == "e0":
            raise ValueError("never")
        insert(tx, record)

    app = shop.app(handler, poison={"then": "park"})
    for number in range(3):
        app.publish(b"x", key="k", id=f"e{number}")
    with working(app):
        wait_settled(shop, app, 3)
        shelf = app.store.quarantine
        numbers = shelf.select(Selection(consumer="g"))
        shelf.request(numbers, reason="try", who="test")
        until(lambda: shelf.entry(numbers[0]).attempts.count >= 4 and shelf.entry(numbers[0]).state == "held")
        until(lambda: all(shelf.entry(number).state == "held" for number in numbers))
    assert shop.ids() == []  # e1 and e2 did not overtake e0


def test_a_drain_runs_the_redrives_that_were_asked_for(shop: Shop) -> None:
    mended = False

    def handler(tx: Tx, record: Record) -> None:
        if not mended:
            raise Reject("not yet")
        insert(tx, record)

    app = shop.app(handler, partitions=2)
    for number in range(9):
        app.publish(b"x", key=f"k{number % 3}", id=f"e{number}")
    app.drain()
    assert shop.tally(app) == {Outcome.QUARANTINED: 9}
    mended = True
    shelf = app.store.quarantine
    numbers = shelf.select(Selection(consumer="g"))
    shelf.request(numbers[::-1], reason="mended", who="test")
    app.store.pause("g", "t", [0, 1], reason="a look", who="test")
    with pytest.raises(SettledError, match="what is left is paused"):
        app.drain()
    app.store.resume("g", "t", [0, 1])
    events = heard(app)
    app.drain()
    assert sum(event.counts.get(Outcome.APPLIED, 0) for event in events if isinstance(event, Settled)) == 9
    assert {entry.state for entry in shelf.entries(numbers)} == {"settled"}
    ids = shop.ids()
    assert sorted(ids) == sorted(f"e{number}" for number in range(9))
    assert [[each for each in ids if int(each[1:]) % 3 == key] for key in range(3)] == [
        [f"e{number}" for number in range(key, 9, 3)] for key in range(3)
    ]


def test_one_slow_key_does_not_hold_up_the_others(shop: Shop) -> None:
    release = threading.Event()

    def handler(tx: Tx, record: Record) -> None:
        if record.key == b"slow":
            release.wait(20)
        done.append(record.id)

    done: list[str] = []
    app = shop.app(handler, delivery={"concurrency": 2, "group_size": {"records": 50, "target": "5ms"}})
    for number in range(40):
        app.publish(b"x", key="slow" if number % 10 == 3 else f"k{number}", id=f"e{number}")
    with working(app):
        until(lambda: len(set(done)) == 36)
        assert not release.is_set()
        release.set()
        wait_settled(shop, app, 40)
    slow = [each for each in done if int(each[1:]) % 10 == 3]
    assert list(dict.fromkeys(slow)) == ["e3", "e13", "e23", "e33"]
    assert shop.tally(app) == {Outcome.APPLIED: 40}


def test_a_group_starts_with_one_record_and_grows(shop: Shop) -> None:
    app = shop.app(insert, delivery={"group_size": {"records": 64}})
    for number in range(300):
        app.publish(b"x", key=f"k{number}", id=f"e{number}")
    events = heard(app)
    app.drain()
    sizes = [sum(each.counts.values()) for each in events if type(each).__name__ == "Settled"]
    assert sizes[0] == 1
    assert max(sizes) > 8
    assert sum(sizes) == 300
