"""Settled's own tables in the effect store: the SQL that makes them, for people who run it themselves."""

from __future__ import annotations

from settled.store import Store
from settled.stores.sqlite import schema


def migration_sql(store: Store | None) -> str:
    """All statements that `Store.migrate` runs on an empty database; none: for SQLite, whose file need not be there."""
    return schema.whole() if store is None else store.schema_sql()
