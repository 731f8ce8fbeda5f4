"""Apply only if newer: through a handler's tx and through connections of every kind, on both dialects."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import settled
from caller_kinds import KINDS, Kind
from settled import connect
from settled.app import App
from settled.errors import ContractError, Refused
from settled.record import Record
from settled.testing.postgres import database

Urls = Callable[[str], str]
TABLE = 'CREATE TABLE price (sku VARCHAR(50) PRIMARY KEY, euros INTEGER, "order" INTEGER, version BIGINT)'


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[Urls]:
    with ExitStack() as opened:

        def url(dialect: str) -> str:
            found = f"sqlite:///{tmp_path}/effects.db" if dialect == "sqlite" else opened.enter_context(database())
            with closing(connect.store(found)) as store:
                store.migrate()
                store.prepare(lambda tx: tx.execute(TABLE))
            return found

        yield url


def prices(url: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    with closing(connect.store(url)) as store:
        sql = 'SELECT sku, euros, "order", version FROM price ORDER BY sku'
        store.prepare(lambda tx: found.extend(map(tuple, tx.execute(sql))))
    return found


def write(kind: Kind, url: str, version: int, euros: int, *, bare: bool = False) -> bool:
    row: dict[str, Any] = {
        "table": "price",
        "key": {"sku": "lamp"},
        "version": version,
        "values": {"euros": euros, "order": 1},
    }
    make = kind.bare if bare else kind.transaction

    async def run() -> bool:
        async with make(url) as handle:
            found: bool = await settled.apply_if_newer(handle, **row)
            return found

    if kind.asynchronous:
        return asyncio.run(run())
    with make(url) as handle:
        return settled.apply_if_newer(handle, **row)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_newest_version_stays(name: str, urls: Urls) -> None:
    kind = KINDS[name]
    url = urls(kind.dialect)
    assert [write(kind, url, version, version * 10) for version in (2, 1, 2, 5, 3)] == [True, False, False, True, False]
    assert prices(url) == [("lamp", 50, 1, 5)]
    with pytest.raises(Refused):
        write(kind, url, 9, 9, bare=True)
    assert prices(url) == [("lamp", 50, 1, 5)]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_in_a_handler(dialect: str, asynchronous: bool, urls: Urls, tmp_path: Path) -> None:
    url = urls(dialect)
    app = App(topic="t", group="g", engine=f"sqlite:///{tmp_path}/log.db", store=url)
    told: list[bool] = []

    def row(record: Record) -> dict[str, Any]:
        assert record.value is not None
        version = int(record.value)
        return {"table": "price", "key": {"sku": "lamp"}, "version": version, "values": {"euros": version}}

    async def awaited(tx: Any, record: Record) -> None:
        told.append(await settled.apply_if_newer(tx, **row(record)))

    def plain(tx: settled.Tx, record: Record) -> None:
        told.append(settled.apply_if_newer(tx, **row(record)))

    app.handler(awaited if asynchronous else plain)
    with app:
        for value in ("7", "3", "8"):
            app.publish(value, key="lamp")
        app.drain()
    assert told == [True, False, True]
    assert prices(url) == [("lamp", 8, None, 8)]


def test_whoever_comes_first_the_newest_stays(urls: Urls) -> None:
    url = urls("postgresql")
    for order in itertools.permutations((1, 2, 3)):
        with closing(connect.store(url)) as store:
            store.prepare(lambda tx: tx.execute("DELETE FROM price"))
        start = threading.Barrier(3)

        def writer(version: int, start: threading.Barrier = start) -> None:
            start.wait(30)
            write(KINDS["psycopg"], url, version, version)

        threads = [threading.Thread(target=writer, args=(version,)) for version in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert prices(url) == [("lamp", 3, 1, 3)]


def test_a_row_without_a_version_is_older_than_any(urls: Urls) -> None:
    url = urls("sqlite")
    with closing(connect.store(url)) as store:
        store.prepare(lambda tx: tx.execute("INSERT INTO price VALUES ('lamp', 1, 1, NULL)"))
    assert write(KINDS["sqlite3"], url, -5, 2)
    assert prices(url) == [("lamp", 2, 1, -5)]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"table": 'price"; DROP TABLE price; --'}, "table"),
        ({"table": ""}, "table"),
        ({"table": "a..b"}, "table"),
        ({"key": {}}, "key"),
        ({"key": {"1sku": 1}}, "key"),
        ({"values": {"euros = 0 --": 1}}, "values"),
        ({"values": {"sku": 1}}, "values"),
        ({"values": {"version": 1}}, "values"),
        ({"version_column": "v v"}, "version_column"),
        ({"version": 2**63}, "version"),
        ({"version": True}, "version"),
        ({"version": "7"}, "version"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(change: dict[str, Any], field: str) -> None:
    row = {"table": "price", "key": {"sku": "lamp"}, "version": 1, "values": {"euros": 1}, **change}
    with pytest.raises(ContractError) as refused:
        settled.apply_if_newer(object(), **row)
    assert refused.value.field == field
