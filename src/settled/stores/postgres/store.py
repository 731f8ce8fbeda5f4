"""The store itself: set-up, the takeover of partitions from owners that hang, sessions.

One connection, behind a lock, serves what people and housekeeping ask; each session has a connection of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import psycopg

from settled.address import parts_of
from settled.errors import ContractError, SettledError, Unavailable
from settled.record import checked_name
from settled.store import ConsumerSpec, Position, Tx, WorkerReport
from settled.stores.outgoing import Outgoing
from settled.stores.postgres import schema
from settled.stores.postgres.link import Link
from settled.stores.postgres.outbox import PostgresOutbox, insert
from settled.stores.postgres.session import PostgresSession
from settled.stores.postgres.texts import PLACE, UNIT_LOCKS
from settled.stores.postgres.tx import PostgresTx
from settled.stores.postgres.watch import PostgresWatch
from settled.stores.sql import SqlStore, name_id, write_report
from settled.stores.statements import Statements

T = TypeVar("T")

_MIGRATION_LOCK = 0x5E771ED
_SETUP_LOCK = 0x5E771EE
_HOLDERS = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = ? AND objid = ? AND objsubid = 2 AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()"
)
_ACQUIRE_S = 30.0
_ROW_LOCK_S = 1.0  # how long one try to write the fence waits
_PATIENT_TRIES = 3  # after them, whoever still holds the row hangs and is ended
_GRACE_S = 0.5  # units of older epochs may end by themselves before they are ended
_REPORT_S = 0.05
# No user's code runs in the outbox's transactions. Its table is empty or full within a second, so no statistics hold:
# without these the planner sorts a whole backlog to read its first rows.
_OUTBOX_SETTINGS = {
    "idle_in_transaction_session_timeout": "5s",
    "synchronous_commit": "off",
    "plan_cache_mode": "force_custom_plan",  # a plan for any list of numbers compares each row with each of them
} | dict.fromkeys(("enable_bitmapscan", "enable_seqscan", "enable_hashjoin", "enable_mergejoin"), "off")


class PostgresStore(SqlStore):
    """See `settled.store.Store`. A libpq URL, with options of settled's own in its query:

    schema=NAME      where settled's tables live (settled)
    idle=SECONDS     how long a transaction may be idle before the server ends it (600); longer than any handler runs
    """

    name = "postgresql"
    parallel = True

    def __init__(self, url: str) -> None:
        self.url = url
        conninfo, name, idle_s = _read_url(url)
        self.schema = f'"{name}"'
        self._conninfo = conninfo
        self._settings = {"idle_in_transaction_session_timeout": f"{int(idle_s * 1000)}ms"}
        self._link = Link(conninfo, self.schema, settings=self._settings)
        self._lock = threading.RLock()
        self._ready = self._closed = False
        self._outbox: PostgresOutbox | None = None
        self._wait = threading.Event()  # never set: waits between looks at the server
        super().__init__()

    # set-up

    def schema_sql(self) -> str:
        """The whole schema as one script: what `settled store migrate --print-sql` prints."""
        return schema.whole(self.schema)

    def migrate(self) -> None:
        with self._lock:
            self._require_open()
            found = self._version()
            schema.refuse_newer(found)
            if found < schema.VERSION:
                self._link.write(self._bring_up_to_date)
            self._ready = True

    def _bring_up_to_date(self) -> None:
        self._link.run("SET LOCAL lock_timeout = 0")  # others migrate first
        self._link.run("SELECT pg_advisory_xact_lock(?)", (_MIGRATION_LOCK,))
        if not self._link.all("SELECT 1 FROM pg_namespace WHERE nspname = ?", (self.schema.strip('"'),)):
            self._link.run(f"CREATE SCHEMA {self.schema}")
        found = self._version()
        schema.refuse_newer(found)
        for step in schema.steps_from(found, self.schema):
            self._link.run(step)

    def _version(self) -> int:
        """The schema version that the database holds, 0 if none."""
        if self._link.rows("SELECT to_regclass(?)", (f"{self.schema}.meta",))[0][0] is None:
            return 0
        rows = self._link.rows("SELECT value FROM settled_meta WHERE name = 'version'")
        return int(rows[0][0]) if rows else 0

    def prepare(self, setup: Callable[[Tx], None]) -> None:
        link = self._link
        faults: list[psycopg.Error] = []  # of the user's own statements: theirs to see as they are

        def work() -> None:
            link.run("SET LOCAL lock_timeout = 0")  # others set up first
            link.run("SELECT pg_advisory_xact_lock(?)", (_SETUP_LOCK,))
            outgoing = Outgoing("", lambda rows: insert(link, rows))
            tx = PostgresTx(link, outgoing)
            tx.open()
            try:
                setup(tx)
                link.connection.guarded = False
                outgoing.flush()
            except psycopg.Error as exc:
                faults.append(exc)
                raise
            finally:
                tx.shut()
            if link.connection.refusal is not None:
                raise link.connection.refusal

        with self._lock:
            self._require_open()
            try:
                link.write(work)
            except SettledError:
                if faults:
                    raise faults[0] from None
                raise

    # ownership

    def acquire(
        self, consumer: str, topic: str, partition: int, epoch: int, identity: str, *, begin: int | None = None
    ) -> Position | None:
        """The fence first, so that no older unit can commit any more; then units of older epochs are ended, since a
        process that hangs in one would hold the rows it wrote."""
        deadline = time.monotonic() + _ACQUIRE_S
        for attempt in range(1, 1000):
            try:
                with self._lock, self._patience(_ROW_LOCK_S):
                    position = super().acquire(consumer, topic, partition, epoch, identity, begin=begin)
                break
            except Unavailable as exc:
                if not isinstance(exc.__cause__, psycopg.errors.LockNotAvailable) or time.monotonic() > deadline:
                    raise
                if attempt >= _PATIENT_TRIES:
                    self._end_units(consumer, topic, partition, grace_s=0)
        self._end_units(consumer, topic, partition, grace_s=_GRACE_S)
        return position

    def _end_units(self, consumer: str, topic: str, partition: int, *, grace_s: float) -> None:
        rows = self._query(PLACE, (consumer, topic, partition))
        deadline = time.monotonic() + grace_s
        while rows:
            pids = [row[0] for row in self._query(_HOLDERS, (UNIT_LOCKS, rows[0][0]))]
            if not pids:
                return
            if time.monotonic() >= deadline:
                for pid in pids:
                    self._end_backend(pid)
                return
            self._wait.wait(0.02)

    def _end_backend(self, pid: int) -> None:
        """Best effort: without it the fence still protects, and the server's idle timeout frees the rows."""
        with self._lock:
            try:
                self._link.run("SELECT pg_terminate_backend(?)", (pid,))
            except psycopg.errors.InsufficientPrivilege:
                return
            except psycopg.Error as exc:
                raise self._link.meaning(exc) from exc

    # the rest

    def session(self, spec: ConsumerSpec) -> PostgresSession:
        consumer = self._work(lambda handle: name_id(handle, "consumer", spec.consumer))
        session = PostgresSession(Link(self._conninfo, self.schema, settings=self._settings), spec, consumer)
        session.outgoing.on_publish = lambda: self.on_publish()
        return session

    @property
    def outbox(self) -> PostgresOutbox:
        with self._lock:
            self._require_ready()
            if self._outbox is None:
                links = (Link(self._conninfo, self.schema, settings=_OUTBOX_SETTINGS) for _ in range(2))
                self._outbox = PostgresOutbox(*links)
            return self._outbox

    def _watch(self) -> PostgresWatch:
        return PostgresWatch(Link(self._conninfo, self.schema, settings=self._settings))

    def report(self, consumer: str, member: str, state: WorkerReport | None) -> None:
        """Waits for locks no longer than a twentieth of a second; then the report is left out."""
        if not self._lock.acquire(timeout=_REPORT_S):
            return
        try:
            with self._patience(_REPORT_S):
                self._work(lambda handle: write_report(handle, consumer, member, state))
        except Unavailable:
            return
        finally:
            self._lock.release()

    def clock_us(self) -> int:
        with self._lock:
            self._require_open()
            self._link.ready()
            try:
                return self._link.now()
            except psycopg.Error as exc:
                raise self._link.meaning(exc) from exc

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._watcher.close()
                if self._outbox is not None:
                    self._outbox.close()
                self._link.close()

    # helpers

    def _query(self, sql: str, params: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            self._require_ready()
            return self._link.rows(sql, params)

    def _work(self, work: Callable[[Statements], T]) -> T:
        with self._lock:
            self._require_ready()
            return self._link.write(lambda: work(self._link))

    @contextmanager
    def _patience(self, seconds: float) -> Iterator[None]:
        usual, self._link.lock_s = self._link.lock_s, seconds
        try:
            yield
        finally:
            self._link.lock_s = usual

    def _require_open(self) -> None:
        if self._closed:
            raise ContractError("the store is closed", field="store", hint="open it again")

    def _require_ready(self) -> None:
        self._require_open()
        if not self._ready:
            schema.require(self._version())
            self._ready = True


def _read_url(url: str) -> tuple[str, str, float]:
    """The URL for libpq, settled's schema, and the idle limit."""
    parts = parts_of(url, "url")
    if parts.scheme not in ("postgresql", "postgres"):
        raise ContractError(
            f"a {parts.scheme or 'nameless'} URL is not a PostgreSQL address",
            field="url",
            hint="write postgresql://user@host:5432/database",
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    name = checked_name("schema", options.pop("schema", "settled"))
    try:
        idle_s = float(options.pop("idle", "600"))
    except ValueError:
        raise ContractError("idle is not a number of seconds", field="url", hint="idle=600") from None
    options = {"connect_timeout": "10", "keepalives_idle": "10", "client_encoding": "utf8", **options}
    return f"{url.partition('?')[0]}?{urlencode(options, quote_via=quote)}", name, idle_s
