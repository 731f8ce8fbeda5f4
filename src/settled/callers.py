"""Callers: the connections and sessions of other people's applications, told apart and used in one way.

Known are psycopg (sync and async), sqlite3, apsw, SQLAlchemy 2 (Session, Connection and their async forms) and Django.
Nothing is imported that the application has not imported already. A caller's transaction is the caller's: nothing here
begins, flushes, commits or rolls back. SQL is written in the dialect of `settled.stores.statements`: `?` for a
parameter, tables `settled_name`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

from settled.errors import ContractError, Refused, SettledError, Unavailable, Unsupported

Dialect = Literal["sqlite", "postgresql"]

NOW: dict[str, str] = {  # the database's clock, microseconds since 1970 in UTC
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
    "postgresql": "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint",
}
KNOWN = "psycopg, sqlite3, apsw, SQLAlchemy 2 or Django"
_TABLE = re.compile(r"\bsettled_(?!us\b)(\w+)\b")  # settled_us is a column
_TABLES = "SELECT 1 FROM sqlite_master WHERE name = 'settled_meta'"
_PASSING_CLASSES = frozenset({"08", "40", "53", "57", "58"})  # connection, rollback, resources, intervention, system
_PASSING_STATES = frozenset({"55P03", "25P03", "25006"})
_SQLITE_PASSING = frozenset({5, 6, 10, 13, 14, 15})  # BUSY, LOCKED, IOERR, FULL, CANTOPEN, PROTOCOL


class Caller:
    """One connection or session of the application. Used in the thread and at the moment of the call, never kept.

    dialect          which SQL it speaks
    asynchronous     its statements are awaited: use `arun` and `acheck` instead of `run` and `check`
    """

    dialect: Dialect
    asynchronous = False
    remedy = ""  # how this kind opens a transaction

    def __init__(self, handle: Any, schema: str = "settled") -> None:
        self.handle, self.schema = handle, schema

    @property
    def now(self) -> str:
        """The SQL of the database's clock."""
        return NOW[self.dialect]

    def check(self) -> None:
        """Raises Refused when no transaction is open (or none that could still be committed)."""
        fault = self._fault()
        if fault:
            raise Refused(f"the {type(self.handle).__name__} {fault}; nothing was written", hint=self.remedy)
        file = self._file() if self.dialect == "sqlite" else ""
        if file and _open_in_apsw(file):
            raise Refused(
                f"{os.path.basename(file)} is open in this process through apsw as well, and locks do not hold between"
                " two copies of SQLite in one process; nothing was written",
                hint="give a connection of apsw, or run settled's worker or relay in a process of its own",
            )

    def run(self, sql: str, params: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement in the caller's transaction; its rows, none if it has none. Raises Unavailable for what
        time repairs, ContractError where settled's tables are missing, else the driver's error."""
        try:
            return self._run(self.written(sql), tuple(params))
        except Exception as error:
            raise _meaning(error, lambda: self._run(_TABLES, ())) from error

    async def acheck(self) -> None:
        """`check`, of an asynchronous caller."""
        self.check()

    async def arun(self, sql: str, params: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """`run`, of an asynchronous caller."""
        try:
            return await self._arun(self.written(sql), tuple(params))
        except Exception as error:
            found = [()] if _codes(error)[1] != 1 else await self._arun(_TABLES, ())
            raise _meaning(error, lambda: found) from error

    def written(self, sql: str) -> str:
        """The SQL as this caller's driver takes it."""
        return _written(sql, self.dialect, self.schema, self._paramstyle())

    # What each kind supplies.

    def _paramstyle(self) -> str:
        return "qmark" if self.dialect == "sqlite" else "format"

    def _fault(self) -> str:
        """Why nothing can be written through it now; empty: it can."""
        raise NotImplementedError

    def _file(self) -> str:
        """The SQLite file, where another library than apsw holds it; else nothing."""
        return ""

    def _run(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    async def _arun(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        raise NotImplementedError


class _Psycopg(Caller):
    dialect: Dialect = "postgresql"
    remedy = "with connection.transaction(): ..., or connect without autocommit"

    def _fault(self) -> str:
        status = int(self.handle.pgconn.transaction_status)  # 0 idle, 1 active, 2 in a transaction, 3 failed
        if status == 3:
            return "has a transaction in which a statement failed: it can only be rolled back"
        return "has no open transaction" if self.handle.autocommit and status == 0 else ""

    def _run(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        psycopg = sys.modules["psycopg"]
        with psycopg.Cursor(self.handle, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(sql, params or None)
            return cursor.fetchall() if _has_rows(cursor) else []


class _PsycopgAsync(_Psycopg):
    asynchronous = True
    remedy = "async with connection.transaction(): ..., or connect without autocommit"

    async def _arun(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        psycopg = sys.modules["psycopg"]
        async with psycopg.AsyncCursor(self.handle, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(sql, params or None)
            return await cursor.fetchall() if _has_rows(cursor) else []


def _has_rows(cursor: Any) -> bool:
    """As `cursor.description`, which makes an object for each column."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


class _Sqlite3(Caller):
    dialect: Dialect = "sqlite"
    remedy = 'connection.execute("BEGIN IMMEDIATE"), or leave autocommit (isolation_level) off'

    def _fault(self) -> str:
        if self.handle.in_transaction:
            return ""
        autocommit = getattr(self.handle, "autocommit", -1)  # Python 3.12; -1: as before, isolation_level decides
        begins = self.handle.isolation_level is not None if autocommit == -1 else not autocommit
        return "" if begins else "has no open transaction"

    def _file(self) -> str:
        return str(self.handle.execute("PRAGMA database_list").fetchone()[2])

    def _run(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        cursor = self.handle.cursor()
        cursor.row_factory = None
        try:
            return cursor.execute(sql, params).fetchall()  # type: ignore[no-any-return]
        finally:
            cursor.close()


class _Apsw(Caller):
    dialect: Dialect = "sqlite"
    remedy = 'connection.execute("BEGIN IMMEDIATE"), and COMMIT after it'

    def _fault(self) -> str:
        return "" if self.handle.in_transaction else "has no open transaction"

    def _run(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        cursor = self.handle.cursor()
        cursor.row_trace = lambda _, row: row  # whatever the connection makes of rows
        return cursor.execute(sql, params).fetchall()  # type: ignore[no-any-return]


class _SqlAlchemy(Caller):
    """A Connection, or a Session through its connection; nothing of the session is flushed."""

    remedy = "with session.begin(): ... (or connection.begin())"

    def __init__(self, handle: Any, schema: str, inner: Any = None) -> None:
        super().__init__(handle, schema)
        self._inner = inner or handle  # the sync object behind an async one
        self._session = hasattr(self._inner, "get_bind")
        bind = self._inner.get_bind() if self._session else self._inner
        self._dialect = bind.dialect
        if self._dialect.name not in NOW:
            raise Unsupported(
                f"SQLAlchemy's {self._dialect.name} dialect is not a store", hint="use SQLite or PostgreSQL"
            )
        self.dialect: Dialect = self._dialect.name

    def _paramstyle(self) -> str:
        return str(self._dialect.paramstyle)

    def _fault(self) -> str:
        if not self._inner.in_transaction():
            return "has no open transaction"
        if self._session and not self._inner.is_active:
            return "has a transaction that failed: it can only be rolled back"
        options = self._inner.get_bind() if self._session else self._inner
        level = options.get_execution_options().get("isolation_level")
        level = level or getattr(self._dialect, "_on_connect_isolation_level", None)
        return "is in AUTOCOMMIT: each statement commits by itself" if level == "AUTOCOMMIT" else ""

    def _file(self) -> str:
        bind = self._inner.get_bind() if self._session else self._inner
        return str(bind.engine.url.database or "")

    def _run(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        connection = self._inner.connection() if self._session else self._inner
        found = connection.exec_driver_sql(sql, params)
        return [tuple(row) for row in found.fetchall()] if found.returns_rows else []


class _SqlAlchemyAsync(_SqlAlchemy):
    asynchronous = True
    remedy = "async with session.begin(): ... (or connection.begin())"

    async def _arun(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        connection = await self.handle.connection() if self._session else self.handle
        found = await connection.exec_driver_sql(sql, params)
        return [tuple(row) for row in found.fetchall()] if found.returns_rows else []


class _Django(Caller):
    remedy = "with transaction.atomic(): ..."

    def __init__(self, handle: Any, schema: str) -> None:
        super().__init__(handle, schema)
        if handle.vendor not in NOW:
            raise Unsupported(f"Django's {handle.vendor} backend is not a store", hint="use SQLite or PostgreSQL")
        self.dialect: Dialect = handle.vendor

    def _paramstyle(self) -> str:
        return "format"

    def _fault(self) -> str:
        if not self.handle.in_atomic_block:
            return "is not inside atomic()"
        return "has an atomic block that failed: it can only be rolled back" if self.handle.needs_rollback else ""

    def _file(self) -> str:
        return str(self.handle.settings_dict["NAME"])

    def _run(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self.handle.cursor() as cursor:
            cursor.execute(sql, params)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


def caller_of(handle: Any, *, schema: str = "settled") -> Caller:
    """The caller behind a connection or session. `schema`: where settled's tables live on PostgreSQL.

    Raises ContractError for what is none of the known kinds.
    """
    kind = type(handle).__name__
    for module, names, make in (
        ("psycopg", ("Connection",), _Psycopg),
        ("psycopg", ("AsyncConnection",), _PsycopgAsync),
        ("sqlite3", ("Connection",), _Sqlite3),
        ("apsw", ("Connection",), _Apsw),
        ("sqlalchemy.orm", ("Session",), _SqlAlchemy),
        ("sqlalchemy", ("Connection",), _SqlAlchemy),
    ):
        if _is(handle, module, names):
            return make(handle, schema)
    if _is(handle, "sqlalchemy.orm", ("scoped_session",)):
        return _SqlAlchemy(handle(), schema)
    if _is(handle, "sqlalchemy.ext.asyncio", ("AsyncSession",)):
        return _SqlAlchemyAsync(handle, schema, handle.sync_session)
    if _is(handle, "sqlalchemy.ext.asyncio", ("AsyncConnection",)):
        return _SqlAlchemyAsync(handle, schema, handle.sync_connection)
    if _is(handle, "django.utils.connection", ("ConnectionProxy",)):
        handle = handle._connections[handle._alias]
    if _is(handle, "django.db.backends.base.base", ("BaseDatabaseWrapper",)):
        return _Django(handle, schema)
    raise ContractError(
        f"a {kind} is no connection or session that settled knows",
        field="connection",
        hint=f"give a connection or session of {KNOWN}",
    )


def _is(handle: Any, module: str, names: tuple[str, ...]) -> bool:
    """Whether it is of one of these classes; modules that are not loaded stay so."""
    loaded = sys.modules.get(module)
    classes = tuple(found for name in names if (found := getattr(loaded, name, None)) is not None)
    return bool(classes) and isinstance(handle, classes)


def _open_in_apsw(file: str) -> bool:
    """Whether this process has the file open through apsw, which brings a SQLite of its own."""
    apsw = sys.modules.get("apsw")
    if apsw is None or not apsw.using_amalgamation or not os.path.exists(file):
        return False
    names = [name for connection in apsw.connections() if (name := connection.filename)]
    return any(os.path.exists(name) and os.path.samefile(name, file) for name in set(names))


_texts: dict[tuple[str, str, str, str], str] = {}


def _written(sql: str, dialect: str, schema: str, paramstyle: str) -> str:
    key = (sql, dialect, schema, paramstyle)
    found = _texts.get(key)
    if found is None:
        found = sql if dialect == "sqlite" else _TABLE.sub(lambda name: f"{quoted(schema)}.{name[1]}", sql)
        if paramstyle in ("format", "pyformat"):
            found = found.replace("?", "%s")
        elif paramstyle == "numeric_dollar":
            parts = found.split("?")
            found = parts[0] + "".join(f"${number}{part}" for number, part in enumerate(parts[1:], 1))
        elif paramstyle != "qmark":
            raise Unsupported(f"parameters in the style {paramstyle!r} are not supported", hint=f"use {KNOWN}")
        if len(_texts) < 1000:
            _texts[key] = found
    return found


def quoted(name: str) -> str:
    """An identifier as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _meaning(error: Exception, tables: Callable[[], list[Any]]) -> Exception:
    """settled's error for what is not the statement's own fault, judged by SQLSTATE or SQLite's code; else the error.
    `tables` asks whether settled's tables are there: SQLite has no code of its own for a missing one."""
    state, code = _codes(error)
    if state in ("42P01", "3F000") or (code == 1 and not tables()):
        return ContractError(
            "settled's tables are not in this database", field="connection", hint="run: settled store migrate"
        )
    if (state and (state[:2] in _PASSING_CLASSES or state in _PASSING_STATES)) or code in _SQLITE_PASSING:
        return Unavailable(
            f"the database cannot take it now ({state or f'SQLite code {code}'})",
            hint="roll back and try again; on SQLite begin with BEGIN IMMEDIATE, so that waiting for others works",
        )
    return error


def _codes(error: BaseException) -> tuple[str, int]:
    """The SQLSTATE and SQLite's code of a driver's error, also inside what SQLAlchemy or Django wrapped around it."""
    for each in (error, getattr(error, "orig", None), error.__cause__):
        if each is None or isinstance(each, SettledError):
            continue
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        code = getattr(each, "sqlite_errorcode", None)
        if code is None and type(each).__module__ == "apsw":
            code = getattr(each, "result", None)
        if state or code is not None:
            return str(state or ""), int(code or 0) & 0xFF
    return "", 0
