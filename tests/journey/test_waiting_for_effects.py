"""Reading what was written: a reader waits for the effect in the store that it reads (B048)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from shop import Shop, insert, kill, working

import settled
from settled.errors import ContractError, Reject, Unsupported
from settled.outcome import Outcome
from settled.record import Message, Record
from settled.store import Tx
from settled.tokens import NotYet, Visible, token_of_event
from waiting import until


def rejecting(tx: Tx, record: Record) -> None:
    if record.value == b"bad":
        raise Reject("never")
    insert(tx, record)


def ended(found: Visible | NotYet) -> tuple[Outcome | None, bool]:
    assert isinstance(found, Visible), found
    return found.outcome, found.effect


def test_b048_it_returns_when_the_effect_is_visible_in_the_same_store(shop: Shop) -> None:
    gate = threading.Event()

    def slow(tx: Tx, record: Record) -> None:
        assert gate.wait(30)
        insert(tx, record)

    app = shop.app(slow)
    token = app.publish(b"x", key="k", id="e1").token
    with working(app):
        early = app.wait(token, 0.2)
        assert isinstance(early, NotYet)
        assert (early.behind, early.effect, shop.ids()) == (0, False, [])
        assert "stands at 0" in early.why
        threading.Timer(0.2, gate.set).start()
        assert ended(app.wait(token, 30)) == (Outcome.APPLIED, True)
        assert shop.ids() == ["e1"]
    assert ended(app.wait(token, 0)) == (Outcome.APPLIED, True)


def test_b048_duplicates_and_quarantine_resolve_with_their_ending(shop: Shop) -> None:
    app = shop.app(rejecting)
    tokens = [
        app.publish(value, key=key, id=event_id).token
        for value, key, event_id in (
            (b"x", "k", "e1"),
            (b"x", "k", "e1"),
            (b"bad", "k2", "e2"),
            (b"bad", "k2", "e2"),
            (b"x", "k3", "e3"),
        )
    ]
    with working(app):
        assert [ended(app.wait(token, 30)) for token in tokens] == [
            (Outcome.APPLIED, True),
            (Outcome.DUPLICATE, True),
            (Outcome.QUARANTINED, False),
            (Outcome.DUPLICATE, False),
            (Outcome.APPLIED, True),
        ]


def test_a_stale_record_shows_a_newer_state(shop: Shop) -> None:
    app = shop.app(transport={"version": "version"})
    first = app.publish(b"new", key="k", id="e1", version=2).token
    late = app.publish(b"old", key="k", id="e2", version=1).token
    with working(app):
        assert ended(app.wait(late, 30)) == (Outcome.STALE, True)
    assert ended(app.wait(first, 0)) == (Outcome.APPLIED, True)


def test_a_record_is_visible_although_one_before_it_holds_the_frontier(shop: Shop) -> None:
    gate = threading.Event()

    def slow(tx: Tx, record: Record) -> None:
        if record.key == b"slow":
            raise settled.Retry("not yet", after=30) if not gate.is_set() else KeyError
        insert(tx, record)

    app = shop.app(slow)
    app.publish(b"x", key="slow", id="e1")
    token = app.publish(b"x", key="quick", id="e2").token
    with working(app):
        assert ended(app.wait(token, 30)) == (Outcome.APPLIED, True)
        assert shop.frontier(app) == 0


def test_without_marks_the_frontier_tells(shop: Shop) -> None:
    app = shop.app(rejecting, delivery={"mode": "at-least-once"})
    good, bad = (app.publish(value, key="k").token for value in (b"x", b"bad"))
    with working(app):
        assert ended(app.wait(good, 30)) == (None, True)
        assert ended(app.wait(bad, 30)) == (Outcome.QUARANTINED, False)


def test_b048_the_partition_moves_to_another_process_during_the_wait(shop: Shop) -> None:
    app = shop.app(delivery={"lease": "1s"})
    token = app.publish(b"x", key="k", id="e1").token
    assert isinstance(app.wait(token, 0), NotYet)
    process = shop.process("stuck")
    found: list[Visible | NotYet] = []
    waiter = threading.Thread(target=lambda: found.append(app.wait(token, 60)))
    try:
        until(lambda: shop.lines("starts"))
        waiter.start()
        with working(app):
            kill(process)
            waiter.join(60)
    finally:
        if process.poll() is None:
            kill(process)
    assert [ended(each) for each in found] == [(Outcome.APPLIED, True)]
    assert shop.ids() == ["e1"]


def test_tokens_of_another_topic_group_store_or_log_are_refused(
    shop: Shop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    app, other = shop.app(), shop.app(topic="other", group="o")
    token, foreign = app.publish(b"x", id="e1").token, other.publish(b"x", id="e1").token
    app.drain()
    other.drain()
    with pytest.raises(ContractError, match="topic 'other'"):
        app.wait(foreign, 0)
    with pytest.raises(ContractError, match="topic 'other'"):
        settled.wait(foreign, consumer="g", store=app.store, timeout=0)
    with pytest.raises(ContractError, match="no consumer 'nobody'"):
        settled.wait(token, consumer="nobody", store=app.store, timeout=0)
    assert ended(settled.wait(token, consumer="g", store=app.store_url, timeout=0)) == (Outcome.APPLIED, True)
    away = Shop(tmp_path_factory.mktemp("away"))
    elsewhere = away.app()
    with pytest.raises(ContractError, match="no consumer 'g'"):
        settled.wait(token, consumer="g", store=elsewhere.store, timeout=0)
    elsewhere.publish(b"x", id="e1")
    elsewhere.drain()
    for wait in (
        lambda: elsewhere.wait(token, 0),
        lambda: settled.wait(token, consumer="g", store=elsewhere.store, timeout=0),
    ):
        with pytest.raises(ContractError, match="incarnation"):
            wait()
    away.close()
    with pytest.raises(ContractError, match="no token"):
        app.wait(token[:-2] + "xx", 0)


def test_a_consumer_that_has_not_begun_is_waited_for(shop: Shop) -> None:
    app = shop.app()
    token = app.publish(b"x", id="e1").token
    early = app.wait(token, 0.05)
    assert isinstance(early, NotYet)
    assert "not begun" in early.why
    with working(app):
        assert ended(app.wait(token, 30)) == (Outcome.APPLIED, True)


def test_what_was_sent_in_batches_has_tokens_too(shop: Shop) -> None:
    app = shop.app()
    pending = [app.send(Message(topic="t", key=b"k", value=b"x", id=f"e{number}")) for number in range(3)]
    tokens = [app.token(each.result(30)) for each in pending]
    app.drain()
    assert {ended(app.wait(token, 0)) for token in tokens} == {(Outcome.APPLIED, True)}
    assert ended(app.wait(token_of_event("t", "e2"), 0)) == (Outcome.APPLIED, True)
    assert isinstance(app.wait(token_of_event("t", "e9"), 0), NotYet)
    with pytest.raises(ContractError, match="topic 'z'"):
        app.token(shop.app(topic="z").publish(b"x"))


def test_at_most_once_cannot_tell(shop: Shop) -> None:
    app = shop.app(delivery={"mode": "at-most-once"})
    token = app.publish(b"x").token
    with pytest.raises(Unsupported, match="at-most-once"):
        app.wait(token, 0)


def test_read_your_writes_falls_back_to_the_write_model(shop: Shop) -> None:
    app = shop.app(rejecting)

    def read(token: str | None, timeout: float) -> str:
        return app.read_your_writes(token, projection=lambda: "projection", fallback=lambda: "model", timeout=timeout)

    good, bad = (app.publish(value, key="k").token for value in (b"x", b"bad"))
    assert [read(good, 0), read(None, 0), read("", 0)] == ["model", "projection", "projection"]
    app.drain()
    assert [read(good, 5), read(bad, 5)] == ["projection", "model"]
    assert (
        settled.read_your_writes(
            good, consumer="g", store=app.store, projection=lambda: 1, fallback=lambda: 2, timeout=5
        )
        == 1
    )
    with pytest.raises(ContractError):
        read("garbled", 0)


def test_nothing_looks_while_nobody_waits(shop: Shop) -> None:
    app = shop.app()
    token = app.publish(b"x").token
    app.drain()
    assert ended(app.wait(token, 0)) == (Outcome.APPLIED, True)
    [thread] = [each for each in threading.enumerate() if each.name == "settled-watcher"]
    assert thread.native_id is not None

    def ticks() -> int:
        fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before, began = ticks(), time.monotonic()
    threading.Event().wait(1.0)
    assert ticks() - before <= 1, f"hundredths of a second, in {time.monotonic() - began:.1f} s"


def test_an_app_may_be_closed_after_waiting(shop: Shop) -> None:
    app = shop.app()
    app.wait(app.publish(b"x").token, 0)
    app.close()
    assert not [each for each in threading.enumerate() if each.name == "settled-watcher"]
