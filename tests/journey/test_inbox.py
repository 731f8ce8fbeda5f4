"""The effect and its mark are one: duplicates, other consumers, handlers that would commit, a store out of reach."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from shop import Shop, heard, insert, kill, wait_settled, working

from settled.outcome import Outcome
from settled.record import Record
from settled.sqlite import open_connection
from settled.store import Selection, Tx
from waiting import until


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END", "BEGIN", "SAVEPOINT x", "RELEASE x"])
@pytest.mark.parametrize("swallowed", [False, True])
def test_b006_a_handler_that_ends_the_transaction_is_refused(shop: Shop, statement: str, swallowed: bool) -> None:
    def handler(tx: Tx, record: Record) -> None:
        insert(tx, record)
        if record.id == "e0":
            try:
                tx.execute(statement)
            except Exception:
                if not swallowed:
                    raise

    app = shop.app(handler)
    app.publish(b"x", key="k", id="e0")
    app.publish(b"x", key="m", id="e1")
    app.drain()
    assert shop.ids() == ["e1"]
    shelf = app.store.quarantine
    [number] = shelf.select(Selection())
    entry = shelf.entry(number)
    assert entry.record.id == "e0"
    assert entry.failure.error == "settled.errors.Refused"
    assert "refused" in entry.failure.message


def test_b006_a_swallowed_commit_in_a_batch_leaves_no_half_effects(shop: Shop) -> None:
    def handler(tx: Tx, records: list[Record]) -> None:
        for record in records:
            insert(tx, record)
            if record.id == "e3":
                with contextlib.suppress(Exception):
                    tx.execute("COMMIT")

    app = shop.app(handler, batch=True, delivery={"group_size": {"linger": "50ms"}})
    for number in range(8):
        app.publish(b"x", key=f"k{number}", id=f"e{number}")
    app.drain()
    assert sorted(shop.ids()) == [f"e{number}" for number in range(8) if number != 3]
    assert shop.tally(app) == {Outcome.APPLIED: 7, Outcome.QUARANTINED: 1}


def test_b007_a_duplicate_is_skipped_and_freezes_nothing(shop: Shop) -> None:
    app = shop.app()
    app.publish(b"1", key="k", id="e1")
    app.publish(b"1", key="k", id="e1")
    app.publish(b"2", key="k", id="e2")
    events = heard(app)
    app.drain()
    assert shop.ids() == ["e1", "e2"]
    assert shop.frontier(app) == 3
    assert shop.tally(app) == {Outcome.APPLIED: 2}
    counted = [each.counts.get(Outcome.DUPLICATE, 0) for each in events if type(each).__name__ == "Settled"]
    assert sum(counted) == 1
    assert not [each for each in events if type(each).__name__ == "AttemptFailed"]
    assert app.store.quarantine.select(Selection()) == []


def test_a_duplicate_under_another_key_of_a_record_that_fails(shop: Shop) -> None:
    """The first waits for its retry while the second of the same id is applied: the first is then a duplicate."""
    runs: list[tuple[str, Any]] = []

    def handler(tx: Tx, record: Record) -> None:
        runs.append((record.id, record.key))
        if record.key == b"a":
            raise ValueError("no")
        insert(tx, record)

    app = shop.app(handler)
    app.publish(b"1", key="a", id="e1")
    app.publish(b"1", key="b", id="e1")
    app.publish(b"2", key="a", id="e2")
    app.drain()
    assert shop.ids() == ["e1"]
    assert shop.frontier(app) == 3
    assert shop.tally(app)[Outcome.APPLIED] == 1


def test_b008_each_group_has_an_inbox_of_its_own(shop: Shop) -> None:
    one, two = shop.app(group="g1"), shop.app(group="g2")
    one.publish(b"x", key="k", id="e1")
    one.drain()
    two.drain()
    assert shop.ids() == ["e1", "e1"]
    assert shop.tally(one, "g1") == shop.tally(two, "g2") == {Outcome.APPLIED: 1}


@pytest.mark.parametrize(("scope", "rows"), [("consumer", 1), ("topic", 2)])
def test_b008_the_scope_decides_about_the_same_id_on_another_topic(shop: Shop, scope: str, rows: int) -> None:
    one = shop.app(delivery={"dedupe": {"scope": scope}})
    other = shop.app(topic="u", delivery={"dedupe": {"scope": scope}})
    one.publish(b"x", key="k", id="e1")
    other.publish(b"x", key="k", id="e1")
    events = heard(other)
    one.drain()
    other.drain()
    assert shop.ids() == ["e1"] * rows
    seen = [each.counts for each in events if type(each).__name__ == "Settled"]
    assert seen == [{Outcome.DUPLICATE: 1} if rows == 1 else {Outcome.APPLIED: 1}]


def test_b009_an_outage_of_the_store_burns_nothing_and_ends_by_itself(shop: Shop) -> None:
    app = shop.app(store="?busy=0.2")
    events = heard(app)
    assert app.store
    with working(app):
        until(lambda: app.store.positions("g"))
        blocker = open_connection(shop.effects_file)
        blocker.execute("BEGIN EXCLUSIVE")
        for number in range(20):
            app.publish(b"x", key=f"k{number % 3}", id=f"e{number}")
        until(lambda: any(getattr(each, "state", "") == "waiting" for each in events))
        spent, began = time.process_time(), time.monotonic()
        until(lambda: time.monotonic() - began > 1.5)
        assert time.process_time() - spent < 1.0  # it waits, it does not spin
        assert shop.frontier(app) == 0
        blocker.execute("ROLLBACK")
        blocker.close()
        wait_settled(shop, app, 20)
    assert len(shop.ids()) == len(set(shop.ids())) == 20
    assert not [each for each in events if type(each).__name__ == "AttemptFailed"]
    assert shop.tally(app) == {Outcome.APPLIED: 20}


def test_b009_a_crash_during_the_outage_loses_nothing(shop: Shop) -> None:
    app = shop.app()
    app.publish(b"x", key="k", id="first")
    worker = shop.process("plain", store="?busy=0.2")
    wait_settled(shop, app, 1)
    blocker = open_connection(shop.effects_file)
    blocker.execute("BEGIN EXCLUSIVE")
    for number in range(20):
        app.publish(b"x", key=f"k{number % 3}", id=f"e{number}")
    kill(worker)
    blocker.execute("ROLLBACK")
    blocker.close()
    with working(app):
        wait_settled(shop, app, 21)
    assert len(shop.ids()) == len(set(shop.ids())) == 21
    assert app.store.quarantine.select(Selection()) == []
