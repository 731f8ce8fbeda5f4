"""A connection to PostgreSQL that comes back after it was lost, and the one place where its errors get their meaning.

Meaning is judged by SQLSTATE, and by the state of the connection where there is none; never by a message, which comes
in the server's language.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus, TransactionStatus

from settled.errors import CommitUnknown, ContractError, Refused, SettledError, Unavailable
from settled.stores.postgres.guard import GuardedConnection, GuardedCursor

T = TypeVar("T")

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
PASSING_CLASSES = frozenset({"08", "40", "53", "57", "58"})  # connection, rollback, resources, intervention, system
PASSING_STATES = frozenset({"55P03", "25P03", "25006", "40001", "40P01"})
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
TABLES = (
    "meta|consumer|topic|frontier|inbox|version|attempt|quarantine|quarantine_value|quarantine_note|gap|pause|report"
    "|external|outbox|outbox_bucket|outbox_relay"
)
_TABLE = re.compile(rf"\bsettled_({TABLES})\b")


class Link:
    """One connection, in autocommit; transactions are opened by statement. One thread at a time; never after a fork.

    `settings` are set on each new connection. `lock_s` bounds how long a transaction of `write` waits for a lock.
    """

    for_update = " FOR UPDATE"

    def __init__(self, conninfo: str, schema: str, *, settings: dict[str, str], lock_s: float = 10.0) -> None:
        self.conninfo, self.schema, self.settings, self.lock_s = conninfo, schema, settings, lock_s
        self.where = _where(conninfo)
        self._written: dict[str, str] = {}
        self._served = False
        self.connection: GuardedConnection
        self._connect()

    def _connect(self) -> None:
        self._pid = os.getpid()
        try:
            self.connection = GuardedConnection.connect(self.conninfo, autocommit=True)
        except psycopg.Error as exc:
            raise self.unreached(exc) from exc
        try:
            for name, value in self.settings.items():
                self.connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        except psycopg.Error as exc:
            fault = self.meaning(exc)  # judged by the connection's state, so before it is closed
            self.connection.close()
            raise fault from exc
        self._served = True

    def ready(self) -> None:
        """Before each use: right process, and a living connection."""
        if os.getpid() != self._pid:
            raise Refused("the store was carried across fork", hint="open the store after the fork, in each process")
        if self.lost:
            self.connection.close()
            self._connect()

    @property
    def lost(self) -> bool:
        return self.connection.closed or self.connection.pgconn.status != ConnStatus.OK

    @property
    def status(self) -> TransactionStatus:
        return TransactionStatus(self.connection.pgconn.transaction_status)

    # settled's own statements, in the dialect of `settled.stores.statements`

    def written(self, sql: str) -> str:
        found = self._written.get(sql)
        if found is None:
            found = _TABLE.sub(lambda name: f"{self.schema}.{name[1]}", sql).replace("?", "%s")
            if " JOIN " in found:
                found = found.replace(" FOR UPDATE", " FOR UPDATE OF p")
            self._written[sql] = found
        return found

    def run(self, sql: str, params: Any = ()) -> GuardedCursor:
        cursor: Any = self.connection.execute(self.written(sql), params or None)
        return cursor  # type: ignore[no-any-return]

    def all(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        return self.run(sql, params).fetchall()

    def run_many(self, sql: str, rows: Iterable[Any]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(self.written(sql), rows)

    def pipeline(self, statements: Sequence[tuple[str, Any]]) -> list[GuardedCursor]:
        """Run these in one round trip."""
        with self.connection.pipeline():
            return [self.run(sql, params) for sql, params in statements]

    def now(self) -> int:
        return int(self.all(f"SELECT {NOW}")[0][0])

    def rows(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        """Run a query outside a transaction; raises settled's errors."""
        self.ready()
        try:
            return self.all(sql, params)
        except psycopg.Error as exc:
            raise self.meaning(exc) from exc

    def write(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction of settled's own."""
        self.ready()
        try:
            self.run(BEGIN)
            self.run("SELECT set_config('lock_timeout', ?, true)", (f"{int(self.lock_s * 1000)}ms",))
            found = work()
            self.commit()
        except psycopg.Error as exc:
            self.rollback()
            raise self.meaning(exc) from exc
        except BaseException:
            self.rollback()
            raise
        return found

    def commit(self) -> None:
        """Commit; durable when it returns. Raises CommitUnknown when only the inbox can tell, and psycopg's error for
        a commit that the server refused."""
        try:
            ended = self.run("COMMIT").statusmessage
        except psycopg.Error as exc:
            if self.status == TransactionStatus.IDLE and not self.connection.closed:
                raise  # the server answered: it was rolled back
            raise CommitUnknown(
                f"{self.where}: the connection was lost after COMMIT was sent",
                hint="settled reconnects and asks the inbox what happened",
            ) from exc
        if ended != "COMMIT":
            raise Refused("the transaction could not be committed", hint="a statement in it had failed before")

    def rollback(self) -> None:
        """Undo. Never raises; a connection that cannot is closed."""
        self.connection.guarded = False
        self.connection.refusal = None
        if self.connection.closed or self.status == TransactionStatus.IDLE:
            return
        try:
            self.run("ROLLBACK")
        except psycopg.Error:
            self.connection.close()

    def close(self) -> None:
        if os.getpid() == self._pid:
            self.connection.close()

    # errors

    def passing(self, exc: psycopg.Error) -> Unavailable | None:
        """The error as an outage that time repairs, or none if the statement itself is at fault."""
        state = exc.sqlstate
        if self.lost or (state is not None and (state[:2] in PASSING_CLASSES or state in PASSING_STATES)):
            return Unavailable(
                f"{self.where}: {_brief(exc)} ({state or 'connection lost'})", hint="trying again is safe"
            )
        return None

    def meaning(self, exc: psycopg.Error) -> Exception:
        """What an error of settled's own statements means to the caller."""
        passing = self.passing(exc)
        if passing is not None:
            return passing
        if exc.sqlstate == "42501":
            return missing_rights(self, exc)
        if exc.sqlstate in ("42P01", "3F000"):
            return ContractError(
                "settled's tables are not in this database", field="store", hint="run: settled store migrate"
            )
        return SettledError(f"{self.where}: {_brief(exc)} ({exc.sqlstate})")

    def unreached(self, exc: psycopg.Error) -> Exception:
        """What an error of connecting means to the caller."""
        tried = getattr(exc, "pgconn", None)
        if tried is not None and not self._served and (tried.needs_password or tried.used_password):
            return ContractError(
                f"{self.where}: the server did not let this user in",
                field="store",
                hint="check user and password (PGPASSWORD or a ~/.pgpass file keep it out of the url)",
            )
        if isinstance(exc, psycopg.ProgrammingError):
            return ContractError(f"{self.where}: the address cannot be read", field="store", hint="see the URL's form")
        return Unavailable(
            f"{self.where}: no connection: {_brief(exc)}", hint="is the server running, and reachable from here?"
        )


def missing_rights(link: Link, exc: psycopg.Error) -> Refused:
    """Missing rights, with the statements that give them."""
    role, database = _quoted(link.connection.info.user), _quoted(link.connection.info.dbname)
    return Refused(
        f"{link.where}: role {role} may not use settled's tables: {_brief(exc)}",
        hint=(
            f"as the database's owner: GRANT CREATE ON DATABASE {database} TO {role}; to let it make the schema, or"
            f" GRANT USAGE, CREATE ON SCHEMA {link.schema} TO {role};"
            f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {link.schema} TO {role};"
        ),
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _where(conninfo: str) -> str:
    """The address without its secrets."""
    try:
        parts = conninfo_to_dict(conninfo)
    except psycopg.Error:
        return "postgresql"
    host = parts.get("host") or parts.get("hostaddr") or "local socket"
    return f"postgresql at {host}:{parts.get('port') or 5432}/{parts.get('dbname') or ''}"


def _brief(exc: psycopg.Error) -> str:
    return " ".join((exc.diag.message_primary or str(exc)).split())[:300]
