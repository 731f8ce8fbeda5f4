"""The store suite on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from settled.store import Store
from settled.stores.postgres import PostgresStore
from settled.testing.postgres import database
from settled.testing.store_conformance import StoreConformance
from settled.testing.store_tools import StoreFactory


def run(store: Store, sql: str) -> None:
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(sql)


class TestPostgresStore(StoreConformance):
    placeholder = "%s"

    @pytest.fixture
    def store_factory(self) -> Iterator[StoreFactory]:
        opened: list[PostgresStore] = []

        with database() as url:

            def open_store() -> PostgresStore:
                opened.append(PostgresStore(url))
                return opened[-1]

            yield open_store
            for store in opened:
                store.close()

    def lose_mark(self, store: Store, event_id: str) -> None:
        run(store, f"DELETE FROM settled.inbox WHERE event_id = '{event_id}'")

    def pretend_newer(self, store: Store) -> None:
        run(store, "UPDATE settled.meta SET value = '99' WHERE name = 'version'")
