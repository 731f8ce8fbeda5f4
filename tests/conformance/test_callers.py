"""Connections and sessions of every kind: one statement runs in the caller's transaction, and none without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from caller_kinds import KINDS, Kind
from settled import connect
from settled.callers import Caller, caller_of
from settled.errors import ContractError, Refused
from settled.testing.postgres import database

Urls = Callable[[str], str]
NAMES = sorted(KINDS)
ADD = "INSERT INTO settled_topic (name) VALUES (?) RETURNING name"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Urls]:
    """A new database of a dialect."""
    with ExitStack() as opened:

        def url(dialect: str) -> str:
            return f"sqlite:///{tmp_path}/effects.db" if dialect == "sqlite" else opened.enter_context(database())

        yield url


@pytest.fixture
def migrated(empty: Urls) -> Urls:
    """A database of a dialect with settled's tables. No store stays open: two copies of SQLite never share a file."""

    def url(dialect: str) -> str:
        found = empty(dialect)
        with closing(connect.store(found)) as store:
            store.migrate()
        return found

    return url


def within(kind: Kind, url: str, work: Callable[[Caller], Any], *, bare: bool = False) -> Any:
    """Run `work` (which may return something to await) with the caller of one transaction."""
    make = kind.bare if bare else kind.transaction
    if not kind.asynchronous:
        with make(url) as handle:
            return work(caller_of(handle))

    async def run() -> Any:
        async with make(url) as handle:
            return await work(caller_of(handle))

    return asyncio.run(run())


def add(kind: Kind, name: str) -> Callable[[Caller], Any]:
    async def awaited(caller: Caller) -> list[Any]:
        await caller.acheck()
        return await caller.arun(ADD, (name,))

    def direct(caller: Caller) -> list[Any]:
        caller.check()
        return caller.run(ADD, (name,))

    return awaited if kind.asynchronous else direct


def topics(url: str) -> list[str]:
    found: list[str] = []
    with closing(connect.store(url)) as store:
        table = "settled_topic" if store.name == "sqlite" else "settled.topic"
        store.prepare(lambda tx: found.extend(row[0] for row in tx.execute(f"SELECT name FROM {table} ORDER BY name")))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_one_statement_runs_in_the_callers_transaction(name: str, migrated: Urls) -> None:
    kind = KINDS[name]
    url = migrated(kind.dialect)

    def fail(caller: Caller) -> Any:
        async def awaited() -> None:
            await add(kind, "lost")(caller)
            raise KeyError("stop")

        if kind.asynchronous:
            return awaited()
        add(kind, "lost")(caller)
        raise KeyError("stop")

    assert within(kind, url, add(kind, "kept 100%")) == [("kept 100%",)]
    with pytest.raises(KeyError, match="stop"):
        within(kind, url, fail)
    assert topics(url) == ["kept 100%"]


@pytest.mark.parametrize("name", NAMES)
def test_without_a_transaction_nothing_is_written(name: str, migrated: Urls) -> None:
    kind = KINDS[name]
    url = migrated(kind.dialect)
    with pytest.raises(Refused, match="nothing was written") as refused:
        within(kind, url, add(kind, "never"), bare=True)
    assert refused.value.hint
    assert topics(url) == []


@pytest.mark.parametrize("name", NAMES)
def test_missing_tables_say_what_to_do(name: str, empty: Urls) -> None:
    kind = KINDS[name]
    with pytest.raises(ContractError) as missing:
        within(kind, empty(kind.dialect), add(kind, "x"))
    assert "migrate" in missing.value.hint


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="Path is no connection"):
        caller_of(tmp_path)


def test_autocommit_behind_sqlalchemy_is_refused(migrated: Urls) -> None:
    import sqlalchemy
    import sqlalchemy.orm

    url = migrated("sqlite")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection, connection.begin(), pytest.raises(Refused, match="AUTOCOMMIT"):
        caller_of(connection).check()
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    loose = engine.execution_options(isolation_level="AUTOCOMMIT")
    with sqlalchemy.orm.Session(loose) as session, session.begin(), pytest.raises(Refused, match="AUTOCOMMIT"):
        caller_of(session).check()


def test_a_failed_transaction_is_refused(migrated: Urls) -> None:
    import psycopg

    with psycopg.connect(migrated("postgresql")) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1/0")
        with pytest.raises(Refused, match="rolled back"):
            caller_of(connection).check()
        connection.rollback()
        caller_of(connection).check()


def test_rows_come_as_tuples_whatever_the_connection_makes_of_them(migrated: Urls) -> None:
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(migrated("postgresql"), row_factory=dict_row) as connection:
        assert caller_of(connection).run("SELECT CAST(? AS integer)", (7,)) == [(7,)]
    connection = apsw.Connection(":memory:")
    connection.row_trace = lambda cursor, row: {"x": row[0]}
    assert caller_of(connection).run("SELECT ?", (7,)) == [(7,)]
    connection.close()


@pytest.mark.parametrize("name", sorted({"sqlite3", "sqlalchemy-session-sqlite", "django-sqlite"}))
def test_two_copies_of_sqlite_in_one_process_are_refused(name: str, migrated: Urls) -> None:
    kind, url = KINDS[name], migrated("sqlite")
    with kind.transaction(url) as handle:
        caller_of(handle).check()
    with closing(connect.store(url)), KINDS["apsw"].transaction(url) as handle:
        caller_of(handle).check()
    held = apsw.Connection(url.removeprefix("sqlite:///"))
    with kind.transaction(url) as handle, pytest.raises(Refused, match="two copies of SQLite"):
        caller_of(handle).check()
    held.close()
