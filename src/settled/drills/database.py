"""A plain look into the effect database, beside settled: the side table, the user's check, what is there already."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from settled import sqlite
from settled.errors import ContractError, Unavailable


class Look:
    """A read-only connection to a SQLite file or a PostgreSQL database. One thread at a time. Close it."""

    def __init__(self, url: str) -> None:
        self._url = url
        if url.startswith("sqlite:"):
            self._connection: Any = sqlite.open_connection(sqlite.path_of(url)[0])
            self._connection.execute("PRAGMA query_only = ON")
            return
        import psycopg

        try:
            self._connection = psycopg.connect(without_own_options(url), autocommit=True, connect_timeout=10)
        except psycopg.OperationalError as error:
            raise Unavailable("the effect database cannot be reached", hint="look whether it runs") from error
        self._connection.read_only = True

    @property
    def is_sqlite(self) -> bool:
        return self._url.startswith("sqlite:")

    def rows(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(sql, params or None).fetchall()]

    def check(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of the user's query; ContractError when the database does not take it."""
        try:
            return self.rows(sql)
        except Exception as error:
            raise ContractError(
                f"the check query fails: {error}",
                field="check",
                value=sql,
                hint="it must return one row per effect: event id, then key and order if there are any",
            ) from error

    def tables(self) -> list[str]:
        """The tables that hold rows, settled's own left out."""
        if self.is_sqlite:
            names = self.rows(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'settled\\_%' ESCAPE '\\'"
                " AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'log\\_%' ESCAPE '\\'"
            )
            quoted = [(name, '"' + name.replace('"', '""') + '"') for (name,) in names]
        else:
            names = self.rows(
                "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
                " AND table_schema NOT IN ('pg_catalog', 'information_schema', 'settled')"
            )
            quoted = [(f"{schema}.{name}", f'"{schema}"."{name}"') for schema, name in names]
        return [name for name, quote in quoted if self.rows(f"SELECT 1 FROM {quote} LIMIT 1")]

    def effects(self, prefix: str) -> list[tuple[Any, ...]]:
        """The side table: n, event id, key, partition, offset, epoch, digest, pid."""
        holder = "?" if self.is_sqlite else "%s"
        return self.rows(
            "SELECT n, event_id, record_key, place, place_offset, epoch, digest, pid FROM drill_effect"
            f" WHERE substr(event_id, 1, {len(prefix)}) = {holder} ORDER BY n",
            (prefix,),
        )

    def close(self) -> None:
        self._connection.close()


def with_schema(url: str, schema: str) -> str:
    """The URL of a store whose own tables are in this schema; of SQLite as it is."""
    if not url or url.startswith("sqlite:"):
        return url
    parts = urlsplit(url)
    options = [(name, value) for name, value in parse_qsl(parts.query) if name != "schema"]
    return urlunsplit(parts._replace(query=urlencode([*options, ("schema", schema)])))


def schema_of(url: str) -> str:
    """Where a PostgreSQL store's own tables are."""
    return dict(parse_qsl(urlsplit(url).query)).get("schema", "settled")


def without_own_options(url: str) -> str:
    """A PostgreSQL URL as libpq takes it: settled's own options left out."""
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name not in ("schema", "idle")]
    return urlunsplit(parts._replace(query=urlencode(kept)))
