"""Transactions of other people's applications, one kind for each driver or framework: `KINDS[name].transaction(url)` is
one transaction that commits at its end, `bare(url)` the same handle with none open. `url` is a store's URL."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import apsw
import msgspec

Sync = Callable[[str], AbstractContextManager[Any]]
Async = Callable[[str], AbstractAsyncContextManager[Any]]


class Kind(msgspec.Struct, frozen=True):
    """`dialect`: sqlite or postgresql; `transaction` and `bare` are async context managers where `asynchronous`."""

    dialect: str
    transaction: Any
    bare: Any
    asynchronous: bool = False


def path(url: str) -> str:
    return url.removeprefix("sqlite:///")


@contextmanager
def sqlite3_bare(url: str) -> Iterator[Any]:
    connection = sqlite3.connect(path(url), isolation_level=None, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def sqlite3_transaction(url: str) -> Iterator[Any]:
    connection = sqlite3.connect(path(url), timeout=30)  # as most people have it: a transaction begins by itself
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@contextmanager
def apsw_bare(url: str) -> Iterator[Any]:
    connection = apsw.Connection(path(url))
    connection.set_busy_timeout(30_000)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def apsw_transaction(url: str) -> Iterator[Any]:
    with apsw_bare(url) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


@contextmanager
def psycopg_bare(url: str) -> Iterator[Any]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@contextmanager
def psycopg_transaction(url: str) -> Iterator[Any]:
    with psycopg_bare(url) as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def psycopg_async_bare(url: str) -> AsyncIterator[Any]:
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def psycopg_async_transaction(url: str) -> AsyncIterator[Any]:
    async with psycopg_async_bare(url) as connection, connection.transaction():
        yield connection


def _sync_url(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:", 1)


def _async_url(url: str) -> str:
    return _sync_url(url).replace("sqlite:", "sqlite+aiosqlite:", 1)


def _alchemy(make: str, *, begun: bool) -> Sync:
    @contextmanager
    def opened(url: str) -> Iterator[Any]:
        import sqlalchemy
        import sqlalchemy.orm

        engine = sqlalchemy.create_engine(_sync_url(url), poolclass=sqlalchemy.NullPool)
        with sqlalchemy.orm.Session(engine) if make == "session" else engine.connect() as handle:
            if begun:
                with handle.begin():
                    yield handle
            else:
                yield handle
        engine.dispose()

    return opened


def _alchemy_async(make: str, *, begun: bool) -> Async:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        import sqlalchemy
        import sqlalchemy.ext.asyncio as aio

        engine = aio.create_async_engine(_async_url(url), poolclass=sqlalchemy.NullPool)
        async with aio.AsyncSession(engine) if make == "session" else engine.connect() as handle:
            if begun:
                async with handle.begin():
                    yield handle
            else:
                yield handle
        await engine.dispose()

    return opened


@contextmanager
def django_bare(url: str) -> Iterator[Any]:
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    connections.databases["shop"] = connections.configure_settings({"default": {}, "shop": _django(url)})["shop"]
    try:
        yield connections["shop"]
    finally:
        connections["shop"].close()
        del connections["shop"]


def _django(url: str) -> dict[str, Any]:
    if url.startswith("sqlite:"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": path(url), "OPTIONS": {"timeout": 30}}
    import psycopg

    parts = psycopg.conninfo.conninfo_to_dict(url)
    named = {"NAME": parts["dbname"], "USER": parts.get("user", ""), "PASSWORD": parts.get("password", "")}
    place = {"HOST": parts.get("host", ""), "PORT": str(parts.get("port", ""))}
    return {"ENGINE": "django.db.backends.postgresql", **named, **place}


@contextmanager
def django_transaction(url: str) -> Iterator[Any]:
    with django_bare(url) as connection:
        from django.db import transaction

        with transaction.atomic(using="shop"):
            yield connection


def _both(name: str, transaction: Any, bare: Any, *, asynchronous: bool = False) -> dict[str, Kind]:
    return {
        f"{name}-{short}": Kind(dialect, transaction, bare, asynchronous)
        for short, dialect in (("sqlite", "sqlite"), ("postgres", "postgresql"))
    }


KINDS: dict[str, Kind] = {
    "sqlite3": Kind("sqlite", sqlite3_transaction, sqlite3_bare),
    "apsw": Kind("sqlite", apsw_transaction, apsw_bare),
    "psycopg": Kind("postgresql", psycopg_transaction, psycopg_bare),
    "psycopg-async": Kind("postgresql", psycopg_async_transaction, psycopg_async_bare, True),
    **_both("sqlalchemy-session", _alchemy("session", begun=True), _alchemy("session", begun=False)),
    **_both("sqlalchemy-connection", _alchemy("connection", begun=True), _alchemy("connection", begun=False)),
    **_both(
        "sqlalchemy-async-session",
        _alchemy_async("session", begun=True),
        _alchemy_async("session", begun=False),
        asynchronous=True,
    ),
    **_both(
        "sqlalchemy-async-connection",
        _alchemy_async("connection", begun=True),
        _alchemy_async("connection", begun=False),
        asynchronous=True,
    ),
    **_both("django", django_transaction, django_bare),
}
