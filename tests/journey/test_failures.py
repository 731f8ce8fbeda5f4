"""Failures of the handler: retried, rejected, quarantined with their evidence; nothing else suffers from them."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from shop import Shop, heard, insert, wait_settled, working

from settled.app import App
from settled.errors import Reject, Retry, SettledError
from settled.outcome import FailureClass, Outcome
from settled.record import Message, Record
from settled.store import QuarantineEntry, Selection, Tx
from waiting import until

GENEROUS = {"eviction": {"burst": 100}}


def quarantined(app: App) -> list[QuarantineEntry]:
    shelf = app.store.quarantine
    numbers = shelf.select(Selection(states=("held", "requested", "settled", "discarded")))
    return [shelf.entry(number) for number in numbers]


class Order(msgspec.Struct):
    sku: str


@dataclass
class DataOrder:
    sku: str


class DictOrder(TypedDict):
    sku: str


class ModelOrder(pydantic.BaseModel):
    sku: str


# B022: what does not decode.


def test_b022_a_value_that_does_not_decode_is_quarantined_once_with_its_bytes(shop: Shop) -> None:
    def handler(tx: Tx, record: Record[Order]) -> None:
        insert(tx, record)

    app = shop.app(handler, poison=GENEROUS)
    bad = [b"{", b"\xff\xfe", b"", b'{"sku": 3}', None]
    for number, value in enumerate(bad):
        app.publish(value, key=f"k{number}", id=f"bad{number}")
    app.publish({"sku": "x"}, key="good", id="good")
    app.drain()
    assert shop.ids() == ["good"]
    found = quarantined(app)
    assert [each.record.value for each in found] == bad
    assert {each.failure.kind for each in found} == {FailureClass.PERMANENT}
    assert [each.attempts.count for each in found] == [1] * 5
    assert all("t/0@" in each.failure.message for each in found)


@pytest.mark.parametrize("kind", [Order, DataOrder, DictOrder, ModelOrder])
def test_a_payload_as_the_annotation_asks(shop: Shop, kind: Any) -> None:
    seen = []

    def handler(tx: Tx, order: Any) -> None:
        seen.append(order if isinstance(order, dict) else {"sku": order.sku})

    handler.__annotations__["order"] = kind
    app = shop.app(handler)
    app.publish({"sku": "x"}, key="k")
    app.drain()
    assert seen == [{"sku": "x"}]
    assert shop.tally(app) == {Outcome.APPLIED: 1}


# B024, B031, B032: nulls and multimaps through quarantine and redrive.

HEADERS = (("a", None), ("b", b""), ("", b"x"), ("c", b"\x00\x01"), ("x", b"1"), ("y", b"2"), ("x", b"3"))


@pytest.mark.parametrize("key", [b"k", None, b""])
def test_b024_b031_b032_nulls_and_repeated_headers_survive_a_redrive(shop: Shop, key: bytes | None) -> None:
    mended = threading.Event()
    seen: list[Record] = []

    def handler(tx: Tx, record: Record) -> None:
        if record.id == "e1":
            seen.append(record)
            if not mended.is_set():
                raise ValueError("no value")
        insert(tx, record)

    app = shop.app(handler)
    app.send(Message(topic="t", key=key, value=None, headers=HEADERS, id="e1", type="T", version=4)).result()
    app.publish(b"x", key="other", id="e2")
    with working(app):
        wait_settled(shop, app, 2)
        [entry] = quarantined(app)
        assert (entry.record.key, entry.record.value, entry.record.headers) == (key, None, HEADERS)
        assert (entry.record.type, entry.record.version, entry.attempts.count) == ("T", 4, 3)
        mended.set()
        app.store.quarantine.request([entry.number], reason="mended", who="test")
        until(lambda: "e1" in shop.ids())
        until(lambda: app.store.quarantine.entry(entry.number).state == "settled")
    assert shop.ids() == ["e2", "e1"]
    assert seen[-1].headers == HEADERS
    assert seen[-1].value is None
    assert shop.rows("SELECT key, value FROM effects WHERE event_id = 'e1'") == [(key, None)]
    assert shop.tally(app) == {Outcome.APPLIED: 2}


# B027: whatever is raised.


class NeedsTwo(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class HoldsALock(Exception):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Own(BaseException): ...


RAISED: dict[str, Any] = {
    "two": lambda: NeedsTwo(1, 2),
    "notext": NoText,
    "lock": HoldsALock,
    "group": lambda: ExceptionGroup("several", [ValueError("a"), NoText()]),
    "own": Own,
    "exit": lambda: SystemExit(0),
    "nul": lambda: ValueError("nul \0 and \ud800"),
    "huge": lambda: ValueError("x" * 100_000),
}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_b027_whatever_a_handler_raises_is_a_failure_and_kept(shop: Shop, concurrency: int) -> None:
    def handler(tx: Tx, record: Record) -> None:
        insert(tx, record)
        if record.id in RAISED:
            raise RAISED[record.id]()

    app = shop.app(handler, poison=GENEROUS, delivery={"concurrency": concurrency})
    for name in RAISED:
        app.publish(b"x", key=name, id=name)
    app.publish(b"x", key="good", id="good")
    app.drain()
    assert shop.ids() == ["good"]
    found = {each.record.id: each for each in quarantined(app)}
    assert set(found) == set(RAISED)
    assert found["exit"].failure.error == "SystemExit"
    assert found["two"].failure.error.endswith("NeedsTwo")
    assert {each.attempts.count for each in found.values()} == {3}
    assert shop.tally(app) == {Outcome.APPLIED: 1, Outcome.QUARANTINED: len(RAISED)}


def test_a_failing_record_in_a_group_costs_only_itself(shop: Shop) -> None:
    runs: list[str] = []

    def handler(tx: Tx, record: Record) -> None:
        runs.append(record.id)
        insert(tx, record)
        if record.id == "e57":
            raise ValueError("no")

    app = shop.app(handler)
    for number in range(100):
        app.publish(b"x", key=f"k{number}", id=f"e{number}")
    app.drain()
    assert sorted(shop.ids()) == sorted(f"e{number}" for number in range(100) if number != 57)
    [entry] = quarantined(app)
    assert (entry.record.id, entry.attempts.count) == ("e57", 3)


def test_retry_is_not_charged_to_the_defects_and_waits_as_asked(shop: Shop) -> None:
    runs: list[str] = []

    def handler(tx: Tx, record: Record) -> None:
        runs.append(record.id)
        if len(runs) < 6:
            raise Retry("later", after=0.05)
        insert(tx, record)

    app = shop.app(handler)
    app.publish(b"x", key="k", id="e0")
    app.drain()
    assert len(runs) == 6
    assert shop.ids() == ["e0"]
    assert app.store.attempts("g", "t", 0) == []


def test_reject_goes_to_quarantine_at_once(shop: Shop) -> None:
    def handler(tx: Tx, record: Record) -> None:
        insert(tx, record)
        raise Reject("not ours")

    app = shop.app(handler)
    app.publish(b"x", key="k", id="e0")
    app.drain()
    [entry] = quarantined(app)
    assert (entry.attempts.count, entry.failure.kind) == (1, FailureClass.PERMANENT)
    assert "not ours" in entry.failure.message
    assert shop.ids() == []


def test_a_swallowed_error_of_a_statement_leaves_the_rest_of_the_effect(shop: Shop) -> None:
    """SQLite undoes the failed statement alone; what the handler goes on to write is its own decision."""

    def handler(tx: Tx, record: Record) -> None:
        insert(tx, record)
        with contextlib.suppress(Exception):
            tx.execute("INSERT INTO nowhere VALUES (1)")

    app = shop.app(handler)
    app.publish(b"x", key="k", id="e0")
    app.drain()
    assert shop.ids() == ["e0"]


def test_a_spent_eviction_budget_drains_nothing_and_says_why(shop: Shop) -> None:
    def handler(tx: Tx, record: Record) -> None:
        if not mended.is_set():
            raise ValueError("a bad deployment")
        insert(tx, record)

    mended = threading.Event()
    app = shop.app(handler, poison={"attempts": {"defect": 1}, "eviction": {"burst": 2, "per_successes": 1000}})
    for number in range(20):
        app.publish(b"x", key=f"k{number}", id=f"e{number}")
    events = heard(app)
    with working(app):
        until(lambda: any(getattr(each, "state", "") == "paused" for each in events))
        [report] = until(lambda: [each for each in app.store.reports("g") if each.state == "paused"])
        assert "eviction budget" in report.why
        assert shop.tally(app) == {Outcome.QUARANTINED: 2}
        mended.set()
        wait_settled(shop, app, 20)
    assert shop.tally(app) == {Outcome.QUARANTINED: 2, Outcome.APPLIED: 18}


def test_a_drain_gives_up_when_the_eviction_budget_is_spent_and_nothing_succeeds(shop: Shop) -> None:
    def handler(tx: Tx, record: Record) -> None:
        if not mended.is_set():
            raise ValueError("a bad deployment")
        insert(tx, record)

    mended = threading.Event()
    strict = {
        "attempts": {"defect": 1},
        "backoff": {"first": "10ms", "most": "300ms"},
        "eviction": {"burst": 2, "per_successes": 1000},
    }
    app = shop.app(handler, poison=strict)
    for number in range(20):
        app.publish(b"x", key=f"k{number}", id=f"e{number}")
    with pytest.raises(SettledError, match=r"gives up.*eviction budget") as given_up:
        app.drain()
    assert given_up.value.exit_code == 1
    assert shop.tally(app) == {Outcome.QUARANTINED: 2}
    mended.set()
    shop.app(handler, poison=strict).drain()
    assert shop.tally(app) == {Outcome.QUARANTINED: 2, Outcome.APPLIED: 18}


# Modes.


def test_at_most_once_drops_failures_and_counts_them(shop: Shop) -> None:
    runs: list[str] = []

    def handler(tx: Tx, record: Record) -> None:
        runs.append(record.id)
        if record.id in {"e3", "e4"}:
            raise ValueError("no")
        insert(tx, record)

    app = shop.app(handler, delivery={"mode": "at-most-once"})
    for number in range(10):
        app.publish(b"x", key="k", id=f"e{number}")
    events = heard(app)
    app.drain()
    assert shop.ids() == [f"e{number}" for number in range(10) if number not in (3, 4)]
    assert shop.frontier(app) == 10
    counted = [each.counts for each in events if type(each).__name__ == "Settled"]
    assert sum(each.get(Outcome.DISCARDED, 0) for each in counted) == 2
    assert sum(each.get(Outcome.APPLIED, 0) for each in counted) == 8
    assert quarantined(app) == []


def test_at_least_once_applies_duplicates_in_the_log_twice(shop: Shop) -> None:
    app = shop.app(delivery={"mode": "at-least-once"})
    for event_id in ("e1", "e1", "e2"):
        app.publish(b"x", key="k", id=event_id)
    app.drain()
    assert shop.ids() == ["e1", "e1", "e2"]
    assert shop.tally(app) == {}


def test_an_async_handler_has_the_same_guarantees(shop: Shop) -> None:
    async def handler(tx: Any, record: Record) -> None:
        await tx.execute("INSERT INTO effects (event_id, key) VALUES (?, ?)", (record.id, record.key))
        if record.id == "e2":
            raise ValueError("no")

    app = shop.app(handler)
    for number in range(5):
        app.publish(b"x", key=f"k{number}", id=f"e{number}")
    app.drain()
    assert sorted(shop.ids()) == ["e0", "e1", "e3", "e4"]
    assert shop.tally(app) == {Outcome.APPLIED: 4, Outcome.QUARANTINED: 1}
