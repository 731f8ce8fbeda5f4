"""The inbox inside other people's transactions, for every kind of connection and session."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from caller_kinds import KINDS, Kind
from settled import connect, inbox
from settled.callers import caller_of
from settled.errors import ContractError, InvalidMessage, Refused
from settled.outcome import Outcome
from settled.testing.postgres import database

Urls = Callable[[str], str]
NAMES = sorted(KINDS)
EFFECT = "INSERT INTO effects (id) VALUES (?)"


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[Urls]:
    """A migrated database of a dialect, with a table of effects that takes any row. No store stays open: two copies of
    SQLite never share a file."""
    with ExitStack() as opened:

        def url(dialect: str) -> str:
            found = f"sqlite:///{tmp_path}/effects.db" if dialect == "sqlite" else opened.enter_context(database())
            inbox.migrate(found)
            with closing(connect.store(found)) as store:
                store.prepare(lambda tx: tx.execute("CREATE TABLE effects (id VARCHAR(300))"))
            return found

        yield url


def effects(url: str) -> list[str]:
    found: list[str] = []
    with closing(connect.store(url)) as store:
        store.prepare(lambda tx: found.extend(row[0] for row in tx.execute("SELECT id FROM effects ORDER BY id")))
    return found


def tally(url: str) -> dict[Outcome, int]:
    with closing(connect.store(url)) as store:
        return store.tally("billing")


def handle_event(kind: Kind, url: str, event_id: str, *, fail: bool = False, inside: Callable[[], Any] = int) -> bool:
    """What a user's handler does: one transaction, the mark, the effect if the event is new."""

    def ending() -> None:
        inside()
        if fail:
            raise KeyError("stop")

    async def run() -> bool:
        async with kind.transaction(url) as handle, inbox.once(handle, consumer="billing", event_id=event_id) as first:
            if first:
                await caller_of(handle).arun(EFFECT, (event_id,))
                ending()
            return first

    if kind.asynchronous:
        return asyncio.run(run())
    with kind.transaction(url) as handle, inbox.once(handle, consumer="billing", event_id=event_id) as first:
        if first:
            caller_of(handle).run(EFFECT, (event_id,))
            ending()
        return first


@pytest.mark.parametrize("name", NAMES)
def test_an_event_has_one_effect(name: str, urls: Urls) -> None:
    kind = KINDS[name]
    url = urls(kind.dialect)
    with pytest.raises(KeyError, match="stop"):
        handle_event(kind, url, "e1", fail=True)
    assert tally(url) == {}
    assert [handle_event(kind, url, each) for each in ("e1", "e1", "e2", "é☃")] == [True, False, True, True]
    assert effects(url) == ["e1", "e2", "é☃"]
    assert tally(url) == {Outcome.APPLIED: 3}


@pytest.mark.parametrize("name", NAMES)
def test_without_a_transaction_it_is_refused(name: str, urls: Urls) -> None:
    kind = KINDS[name]
    url = urls(kind.dialect)

    async def awaited() -> None:
        async with kind.bare(url) as handle, inbox.once(handle, consumer="billing", event_id="e1"):
            pytest.fail("it went on")

    def enter() -> None:
        if kind.asynchronous:
            asyncio.run(awaited())
        else:
            with kind.bare(url) as handle, inbox.once(handle, consumer="billing", event_id="e1"):
                pytest.fail("it went on")

    with pytest.raises(Refused, match="nothing was written") as refused:
        enter()
    assert refused.value.hint
    assert tally(url) == {}


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("name", ["sqlite3", "apsw", "psycopg", "sqlalchemy-session-postgres", "django-postgres"])
def test_the_second_of_two_at_once_waits_for_the_first(name: str, fail: bool, urls: Urls) -> None:
    kind = KINDS[name]
    url = urls(kind.dialect)
    handle_event(kind, url, "before")
    written, go_on = threading.Event(), threading.Event()
    seen: list[object] = []

    def first() -> None:
        def wait() -> None:
            written.set()
            assert go_on.wait(30)

        try:
            seen.append(handle_event(kind, url, "e1", fail=fail, inside=wait))
        except KeyError:
            seen.append("rolled back")

    def second() -> None:
        seen.append(handle_event(kind, url, "e1"))

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert written.wait(30)
    threads[1].start()
    threads[1].join(0.3)
    assert threads[1].is_alive()
    assert seen == []
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert sorted(map(str, seen)) == (["True", "rolled back"] if fail else ["False", "True"])
    assert effects(url) == ["before", "e1"]


def test_an_exception_that_the_caller_swallows_leaves_no_mark(urls: Urls) -> None:
    url = urls("sqlite")
    with KINDS["sqlite3"].transaction(url) as handle:
        with contextlib.suppress(KeyError), inbox.once(handle, consumer="billing", event_id="e1") as first:
            assert first
            raise KeyError
        handle.execute("INSERT INTO effects (id) VALUES ('committed')")
    assert effects(url) == ["committed"]
    assert tally(url) == {}


def test_ids_that_no_store_can_hold_are_refused_before_anything_is_written(urls: Urls) -> None:
    url = urls("postgresql")
    with KINDS["psycopg"].transaction(url) as handle:
        for event_id in ("e\0", "\ud800", "", "x" * 257):
            with pytest.raises(InvalidMessage, match="event_id"):
                inbox.once(handle, consumer="billing", event_id=event_id)
        with pytest.raises(InvalidMessage, match="consumer"):
            inbox.once(handle, consumer="", event_id="e")
        handle.execute("INSERT INTO effects (id) VALUES ('unbroken')")
    assert effects(url) == ["unbroken"]


def test_the_wrong_kind_of_with_names_the_right_one(urls: Urls) -> None:
    url = urls("sqlite")

    async def wrong() -> None:
        async with KINDS["sqlalchemy-async-session-sqlite"].transaction(url) as handle:
            found = inbox.once(handle, consumer="billing", event_id="e")
            with pytest.raises(ContractError, match="asynchronous") as told:
                found.__enter__()
            assert "async with" in told.value.hint

    asyncio.run(wrong())


@pytest.mark.parametrize("name", ["sqlite3", "psycopg", "sqlalchemy-session-sqlite", "django-postgres"])
def test_pruning_by_age(name: str, urls: Urls) -> None:
    kind = KINDS[name]
    url = urls(kind.dialect)
    for number in range(5):
        handle_event(kind, url, f"e{number}")
    with kind.transaction(url) as handle:
        assert inbox.prune(handle, consumer="billing", older_than_s=3600) == 0
        assert inbox.prune(handle, consumer="other", older_than_s=-1) == 0
        assert inbox.prune(handle, consumer="billing", older_than_s=-1, batch=2) == 2
    assert tally(url) == {Outcome.APPLIED: 3}
    assert inbox.prune(url, consumer="billing", older_than_s=3600) == 0
    assert inbox.prune(url, consumer="billing", older_than_s=-1, batch=2) == 3
    assert handle_event(kind, url, "e0")
