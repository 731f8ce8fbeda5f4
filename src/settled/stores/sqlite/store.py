"""The store itself: the fence, positions, housekeeping; sessions and quarantine are made from it.

One connection, behind a lock, serves what people and housekeeping ask; each session has a connection of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from settled.clock import wall_us
from settled.errors import ContractError, SettledError, Unavailable
from settled.sqlite import BUSY_S, path_of
from settled.store import ConsumerSpec, Tx, WorkerReport
from settled.stores.calls import forget
from settled.stores.outgoing import Outgoing
from settled.stores.sql import SqlStore, name_id, write_report
from settled.stores.sqlite import schema
from settled.stores.sqlite.calls import calls_file, open_calls
from settled.stores.sqlite.handle import Handle
from settled.stores.sqlite.outbox import SqliteOutbox, insert
from settled.stores.sqlite.session import SqliteSession
from settled.stores.sqlite.tx import GuardedTx
from settled.stores.sqlite.watch import SqliteWatch
from settled.stores.statements import Statements

T = TypeVar("T")

_REPORT_PATIENCE_S = 0.05


class SqliteStore(SqlStore):
    """See `settled.store.Store`. `sqlite:///relative.db` or `sqlite:////absolute.db`; options in the url:

    foreign_keys=on   SQLite checks the user's foreign keys, which it does not do by itself
    busy=SECONDS      how long to wait for another's lock before Unavailable is raised (30)
    """

    name = "sqlite"
    parallel = False

    def __init__(self, url: str) -> None:
        self.url = url
        path, options = path_of(url)
        self._options = _read_options(url, options)
        self._path = path
        self._handle = Handle(path, **self._options)
        self._lock = threading.RLock()
        self._ready = self._closed = False
        self._outbox: SqliteOutbox | None = None
        super().__init__()

    # set-up

    def schema_sql(self) -> str:
        """The whole schema as one script: what `settled store migrate --print-sql` prints."""
        return schema.whole()

    def migrate(self) -> None:
        with self._lock:
            self._require_open()
            self._handle.write(lambda: schema.migrate(self._handle.connection))

    def prepare(self, setup: Callable[[Tx], None]) -> None:
        handle = self._handle
        faults: list[apsw.Error] = []  # of the user's own statements: theirs to see as they are

        def work() -> None:
            outgoing = Outgoing("", lambda rows: insert(handle, rows))
            tx = GuardedTx(handle, outgoing)
            tx.open()
            try:
                setup(tx)
                handle.guarded = False
                outgoing.flush()
            except apsw.Error as exc:
                faults.append(exc)
                raise
            finally:
                tx.shut()
            if handle.refusal is not None:
                raise handle.refusal

        with self._lock:
            self._require_open()
            try:
                handle.write(work)
            except SettledError:
                if faults:
                    raise faults[0] from None
                raise

    def session(self, spec: ConsumerSpec) -> SqliteSession:
        rows = self._query("SELECT id FROM settled_consumer WHERE name = ?", (spec.consumer,))
        consumer = rows[0][0] if rows else self._work(lambda handle: name_id(handle, "consumer", spec.consumer))
        session = SqliteSession(Handle(self._path, **self._options), spec, consumer)
        session.outgoing.on_publish = lambda: self.on_publish()
        return session

    @property
    def outbox(self) -> SqliteOutbox:
        with self._lock:
            self._require_ready()
            if self._outbox is None:
                self._outbox = SqliteOutbox(*(Handle(self._path, **self._options) for _ in range(2)))
            return self._outbox

    def _watch(self) -> SqliteWatch:
        return SqliteWatch(Handle(self._path, **self._options))

    def _forget_calls(self, consumer: str, event_ids: Sequence[str]) -> None:
        if calls_file(self._path).exists():
            handle = open_calls(self._path, self._handle.busy_s)
            try:
                handle.write(lambda: forget(handle, consumer, event_ids))
            finally:
                handle.close()

    def report(self, consumer: str, member: str, state: WorkerReport | None) -> None:
        """Waits for locks no longer than a twentieth of a second; then the report is left out."""
        if not self._lock.acquire(timeout=_REPORT_PATIENCE_S):
            return
        try:
            self._require_ready()
            with self._handle.patience(_REPORT_PATIENCE_S):
                self._handle.write(lambda: write_report(self._handle, consumer, member, state))
        except Unavailable:
            return
        finally:
            self._lock.release()

    def clock_us(self) -> int:
        return wall_us()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._watcher.close()
                if self._outbox is not None:
                    self._outbox.close()
                self._handle.close()

    # helpers

    def _query(self, sql: str, params: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            self._require_ready()
            return self._handle.rows(sql, params)

    def _work(self, work: Callable[[Statements], T]) -> T:
        with self._lock:
            self._require_ready()
            return self._handle.write(lambda: work(self._handle))

    def _require_open(self) -> None:
        if self._closed:
            raise ContractError("the store is closed", field="store", hint="open it again")

    def _require_ready(self) -> None:
        self._require_open()
        if not self._ready:
            self._handle.ready()
            try:
                schema.require(self._handle.connection)
            except apsw.Error as exc:
                raise self._handle.meaning(exc) from exc
            self._ready = True


def _read_options(url: str, options: dict[str, str]) -> dict[str, Any]:
    known = {"foreign_keys", "busy"}
    for name in options:
        if name not in known:
            raise ContractError(
                f"{name!r} is not an option of a SQLite store", field="url", value=url, hint=f"known: {sorted(known)}"
            )
    try:
        busy_s = float(options.get("busy", BUSY_S))
    except ValueError:
        raise ContractError("busy is not a number of seconds", field="url", value=url, hint="busy=30") from None
    return {"busy_s": busy_s, "foreign_keys": options.get("foreign_keys", "off") == "on"}
