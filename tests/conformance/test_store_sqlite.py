"""The store suite on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.sqlite import open_connection
from settled.store import Store
from settled.stores.sqlite import SqliteStore
from settled.testing.store_conformance import StoreConformance
from settled.testing.store_tools import StoreFactory


def run(store: Store, sql: str) -> None:
    connection = open_connection(store.url.removeprefix("sqlite:///"))
    connection.execute(sql)
    connection.close()


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def store_factory(self, tmp_path: Path) -> Iterator[StoreFactory]:
        opened: list[SqliteStore] = []

        def open_store() -> SqliteStore:
            opened.append(SqliteStore(f"sqlite:///{tmp_path}/effects.db"))
            return opened[-1]

        yield open_store
        for store in opened:
            store.close()

    def lose_mark(self, store: Store, event_id: str) -> None:
        run(store, f"DELETE FROM settled_inbox WHERE event_id = '{event_id}'")

    def pretend_newer(self, store: Store) -> None:
        run(store, "UPDATE settled_meta SET value = '99' WHERE name = 'version'")
