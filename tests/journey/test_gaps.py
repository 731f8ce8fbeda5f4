"""Retention that passed a frontier: refused without force; found, told and kept when it was forced."""

from __future__ import annotations

import threading

import pytest
from shop import Shop, heard, insert, wait_settled, working

from settled.app import App
from settled.errors import HistoryLost
from settled.events import GapFound
from settled.outcome import Outcome
from settled.record import Record
from settled.store import Tx


def publish(app: App, first: int, end: int) -> None:
    for number in range(first, end):
        app.publish(b"x", key="k", id=f"e{number}")


def gone(shop: Shop, **sections: object) -> App:
    """0 to 59 removed by force, ten of them settled."""
    app = shop.app(
        retention={"age": "1s", **sections}, producer={"batch": {"records": 1}}, delivery={"dedupe": {"horizon": "1d"}}
    )
    publish(app, 0, 10)
    app.drain()
    publish(app, 10, 60)
    return app


def remove(app: App) -> None:
    from waiting import until

    def begin() -> int:
        app.engine.maintain(force=True)
        [topic] = app.engine.topics()
        return topic.partitions[0].begin

    until(lambda: begin() >= 60)


def test_b042_retention_does_not_pass_an_active_groups_frontier(shop: Shop) -> None:
    app = gone(shop)
    from waiting import until

    until(lambda: app.engine.topics()[0].partitions[0].begin == 0 and not app.engine.maintain().get("t", 0) > 10)
    app.drain()
    assert len(shop.ids()) == 60


def test_b042_a_gap_is_found_told_and_kept(shop: Shop) -> None:
    app = gone(shop)
    remove(app)
    publish(app, 60, 65)
    events = heard(app)
    with working(app):
        wait_settled(shop, app, 65)
    assert shop.ids() == [f"e{number}" for number in [*range(10), *range(60, 65)]]
    assert [(each.first, each.next) for each in events if isinstance(each, GapFound)] == [(10, 60)]
    [gap] = app.store.gaps("g")
    assert (gap.topic, gap.partition, gap.first, gap.next_offset) == ("t", 0, 10, 60)
    assert shop.tally(app) == {Outcome.APPLIED: 15}


def test_b042_with_the_policy_stop_nothing_beyond_the_gap_runs(shop: Shop) -> None:
    ran = threading.Event()

    def handler(tx: Tx, record: Record) -> None:
        insert(tx, record)
        if record.offset >= 60:
            ran.set()

    app = gone(shop)
    remove(app)
    publish(app, 60, 65)
    stopping = shop.app(handler, retention={"age": "1s", "on_gap": "stop"})
    with pytest.raises(HistoryLost, match="50 records"):
        stopping.drain()
    assert not ran.is_set()
    assert len(shop.ids()) == 10
