"""What is PostgreSQL's own about the store: connections that are lost, owners that hang, roles, and the guard."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_gate import Gate

from settled import windows
from settled.errors import CommitUnknown, ContractError, Fenced, Refused, Unavailable
from settled.outbox import add
from settled.outcome import Outcome
from settled.record import Message
from settled.store import ConsumerSpec, OutboxRow, Session
from settled.stores.postgres import PostgresStore
from settled.stores.postgres.guard import first_words
from settled.testing.postgres import GUARDED_ROLE, database, server_url
from settled.testing.store_tools import (
    GROUP,
    IDENTITY,
    TOPIC,
    StoreCases,
    StoreFactory,
    applied,
    at,
    records,
    tried,
)


@pytest.fixture
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


class PostgresCases(StoreCases):
    placeholder = "%s"

    @pytest.fixture
    def address(self, url: str) -> str:
        return url

    @pytest.fixture
    def store_factory(self, address: str) -> Iterator[StoreFactory]:
        opened: list[PostgresStore] = []

        def open_store() -> PostgresStore:
            opened.append(PostgresStore(address))
            return opened[-1]

        yield open_store
        for store in opened:
            store.close()


class TestLostConnections(PostgresCases):
    @pytest.fixture
    def gate(self, url: str, tmp_path: Path) -> Iterator[Gate]:
        gate = Gate(url, tmp_path)
        yield gate
        gate.close()

    @pytest.fixture
    def address(self, gate: Gate) -> str:
        return gate.url

    @pytest.mark.parametrize("delivered", [True, False])
    def test_a_commit_without_an_answer(
        self, store: PostgresStore, session: Session, gate: Gate, delivered: bool
    ) -> None:
        session.begin([at(0)])
        session.screen(records(0))
        self.write(session.tx, "e0")
        gate.cut_at(b"COMMIT\0", delivered=delivered)
        with pytest.raises(CommitUnknown):
            session.settle(applied(records(0)), [at(1)])
        assert gate.cuts == 1
        deadline = time.monotonic() + 10
        while delivered and session.settled(records(0)) == [None] and time.monotonic() < deadline:
            pass  # the server may still be at it
        assert session.settled(records(0)) == [Outcome.APPLIED if delivered else None]
        self.unit(session, records(0), 1)
        assert self.effects(store) == ["e0"]
        assert store.tally(GROUP) == {Outcome.APPLIED: 1}

    @pytest.mark.parametrize("message", [b"INSERT INTO effects", b"inbox", b"frontier AS held"])
    def test_lost_before_commit(self, store: PostgresStore, session: Session, gate: Gate, message: bytes) -> None:
        session.begin([at(0)])
        gate.cut_at(message, delivered=True)

        def work() -> None:
            self.write(session.tx, "e0")
            session.settle(applied(records(0)), [at(1)])

        with pytest.raises(Unavailable) as lost:
            work()
        assert not isinstance(lost.value, CommitUnknown)
        assert gate.cuts == 1
        session.rollback()
        assert self.unit(session, records(0), 1) == [None]
        assert self.effects(store) == ["e0"]

    def test_lost_while_it_is_made(self, store: PostgresStore, gate: Gate) -> None:
        gate.cut_at(b"set_config", delivered=True)
        with pytest.raises(Unavailable):
            PostgresStore(gate.url)
        assert gate.cuts == 1
        gate.shut()
        with pytest.raises(Unavailable):
            store.positions()
        gate.reopen()
        gate.cut_at(b"set_config", delivered=True)
        with pytest.raises(Unavailable):
            store.positions()
        assert gate.cuts == 2
        assert store.positions() == []

    def test_an_outage_passes(self, store: PostgresStore, session: Session, gate: Gate) -> None:
        gate.shut()
        for call in (
            lambda: session.begin([at(0)]),
            lambda: session.charge(at(0), [(records(0)[0], tried())]),
            lambda: session.settled(records(0)),
            store.positions,
            store.clock_us,
            lambda: store.acquire(GROUP, TOPIC, 0, 2, IDENTITY),
        ):
            with pytest.raises(Unavailable):
                call()
            session.rollback()
        gate.reopen()
        assert self.unit(session, records(0), 1) == [None]
        assert store.attempts(GROUP, TOPIC, 0) == []


class TestHungOwners(PostgresCases):
    def test_a_successor_ends_the_unit_of_an_owner_that_hangs(
        self, store: PostgresStore, session: Session, store_factory: StoreFactory
    ) -> None:
        store.prepare(lambda tx: tx.execute("CREATE TABLE stock (id text PRIMARY KEY)"))
        session.begin([at(0)])
        session.tx.execute("INSERT INTO stock VALUES ('e0')")  # and hangs here, holding the row
        successor = store_factory()
        began = time.monotonic()
        self.own(successor, epoch=2)
        other = successor.session(ConsumerSpec(consumer=GROUP))
        other.begin([at(0, epoch=2)])
        other.tx.execute("INSERT INTO stock VALUES ('e0')")
        other.settle(applied(records(0)), [at(1, epoch=2)])
        assert time.monotonic() - began < 10
        with pytest.raises(Fenced):
            session.tx.execute("INSERT INTO stock VALUES ('e1')")
        with pytest.raises(Fenced):
            session.settle(applied(records(0)), [at(1)])
        with pytest.raises(Fenced):
            session.charge(at(0), [(records(0)[0], tried())])
        assert store.tally(GROUP) == {Outcome.APPLIED: 1}
        other.close()

    def test_an_owner_that_hangs_between_marks_and_commit(
        self, store: PostgresStore, session: Session, store_factory: StoreFactory
    ) -> None:
        hangs, goes_on = threading.Event(), threading.Event()
        raised: list[BaseException] = []

        def hang(window: str) -> None:
            if threading.current_thread() is owner and window == "marks-written":
                hangs.set()
                goes_on.wait(60)

        def settle() -> None:
            try:
                session.begin([at(0)])
                session.settle(applied(records(0)), [at(1)])
            except BaseException as error:  # noqa: BLE001 - looked at below
                raised.append(error)

        owner = threading.Thread(target=settle)
        windows.install(hang)
        try:
            owner.start()
            assert hangs.wait(30)
            self.own(store_factory(), epoch=2)
        finally:
            goes_on.set()
            owner.join(30)
            windows.install(None)
        assert [type(error) for error in raised] in ([Fenced], [CommitUnknown])
        assert session.settled(records(0)) == [None]
        assert store.epoch(GROUP, TOPIC, 0) == 2

    def test_deadlocks_are_outages_not_failures(self, store: PostgresStore, session: Session, admin: object) -> None:
        assert isinstance(admin, psycopg.Connection)
        store.prepare(lambda tx: tx.execute("CREATE TABLE stock (id integer PRIMARY KEY, n integer)"))
        store.prepare(lambda tx: tx.execute("INSERT INTO stock VALUES (1, 0), (2, 0)"))
        session.begin([at(0)])
        session.tx.execute("UPDATE stock SET n = 1 WHERE id = 1")
        with admin.transaction():
            admin.execute("SET LOCAL deadlock_timeout = '1h'")  # the other side is the one that finds it
            admin.execute("UPDATE stock SET n = 2 WHERE id = 2")
            other = threading.Thread(target=admin.execute, args=("UPDATE stock SET n = 2 WHERE id = 1",))
            other.start()
            with pytest.raises(Unavailable, match="40P01"):
                session.tx.execute("UPDATE stock SET n = 1 WHERE id = 2")
            other.join(30)
        with pytest.raises(Unavailable):
            session.check()
        session.rollback()
        assert self.unit(session, records(0), 1) == [None]


class TestGuard(PostgresCases):
    @pytest.mark.parametrize(
        "sql",
        [
            "INSERT INTO effects (id) VALUES ('x'); COMMIT",
            "SELECT ';'; /* a /* nested */ comment */ rollback",
            "PREPARE TRANSACTION 'x'",
            "SET search_path = nowhere",
            "RESET ALL",
            b"COMMIT",
            psycopg.sql.SQL("COMMIT"),
        ],
    )
    def test_refused(self, store: PostgresStore, session: Session, sql: str) -> None:
        session.begin([at(0)])
        self.write(session.tx, "e0")
        with pytest.raises(Refused):
            session.tx.execute(sql)
        session.rollback()
        assert self.effects(store) == []

    @pytest.mark.parametrize("name", ["commit", "rollback", "transaction"])
    def test_the_connection_behind_the_cursor_is_guarded(
        self, store: PostgresStore, session: Session, name: str
    ) -> None:
        session.begin([at(0)])
        self.write(session.tx, "e0")
        connection = session.tx.execute("SELECT 1").connection
        with pytest.raises(Refused):
            getattr(connection, name)()
        with pytest.raises(Refused):
            connection.cursor().execute("COMMIT")
        with pytest.raises(Refused):
            session.settle(applied(records(0)), [at(1)])
        assert self.effects(store) == []

    def test_going_around_the_guard_is_noticed(self, store: PostgresStore, session: Session) -> None:
        session.begin([at(0)])
        raw = session.tx.execute("SELECT 1").connection.pgconn
        raw.exec_(b"COMMIT")
        raw.exec_(b"BEGIN")
        with pytest.raises(Refused):
            session.settle(applied(records(0)), [at(1)])
        assert store.tally(GROUP) == {}

    def test_a_swallowed_error_is_not_committed_over(self, store: PostgresStore, session: Session) -> None:
        session.begin([at(0)])
        self.write(session.tx, "lost")
        with pytest.raises(psycopg.errors.DivisionByZero):
            session.tx.execute("SELECT 1 / 0")
        with pytest.raises(Refused) as refused:
            session.check()
        assert isinstance(refused.value.__cause__, psycopg.errors.DivisionByZero)
        with pytest.raises(Refused):
            session.settle(applied(records(0)), [at(1)])
        assert store.tally(GROUP) == {}

    def test_a_constraint_checked_at_commit(self, store: PostgresStore, session: Session) -> None:
        store.prepare(
            lambda tx: tx.execute(
                "CREATE TABLE lines (id integer PRIMARY KEY,"
                " parent integer REFERENCES lines DEFERRABLE INITIALLY DEFERRED)"
            )
        )
        session.begin([at(0)])
        session.tx.execute("INSERT INTO lines VALUES (1, 2)")
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            session.settle(applied(records(0)), [at(1)])
        assert self.unit(session, records(0), 1) == [None]

    def test_allowed(self, store: PostgresStore, session: Session) -> None:
        session.begin([at(0)])
        tx = session.tx
        tx.execute("SET LOCAL statement_timeout = '5s'")
        assert tx.execute("SELECT 'commit; rollback' LIKE 'com%', $$;commit$$").fetchone() == (True, ";commit")
        first, second = tx.execute("SELECT 1"), tx.execute("SELECT %(n)s + 1", {"n": 1})
        assert (first.fetchone(), second.fetchone()) == ((1,), (2,)), "results that are held stay as they are"
        with tx.copy("COPY effects (id) FROM STDIN") as copy:
            copy.write_row(("copied",))
        session.settle([], [at(0)])
        assert self.effects(store) == ["copied"]

    @pytest.mark.parametrize(
        ("sql", "words"),
        [
            ("", []),
            ("  -- only ; a comment", []),
            ("SELECT 1", [("select", "1")]),
            ("/* x */ Commit ;", [("commit", "")]),
            ("select E'\\'; commit'; end", [("select", "e"), ("end", "")]),
            ('select ";commit"; rollback work', [("select", ""), ("rollback", "work")]),
            ("do $a$ begin; $b$ ; $a$; abort", [("do", ""), ("abort", "")]),
            ("select '''; commit;'", [("select", "")]),
            ("/* never closed ; commit", []),
        ],
    )
    def test_first_words(self, sql: str, words: list[tuple[str, str]]) -> None:
        assert [first for first, _ in first_words(sql)] == [first for first, _ in words]


class TestRolesAndAddresses:
    @pytest.fixture
    def role(self, admin: psycopg.Connection) -> Iterator[str]:
        name = "plain_" + str(admin.info.dbname)
        admin.execute(f"CREATE ROLE {name} LOGIN NOSUPERUSER")
        yield name
        admin.execute(f"DROP OWNED BY {name}")
        admin.execute(f"DROP ROLE {name}")

    def as_role(self, url: str, role: str, password: str = "") -> str:
        scheme, rest = url.split("://")
        return f"{scheme}://{role}:{password}@{rest.partition('@')[2]}"

    def test_missing_rights_name_the_grant(self, url: str, role: str, admin: psycopg.Connection) -> None:
        store = PostgresStore(self.as_role(url, role))
        with pytest.raises(Refused, match=f'GRANT CREATE ON DATABASE "{admin.info.dbname}" TO "{role}"'):
            store.migrate()
        admin.execute(f"GRANT CREATE ON DATABASE {admin.info.dbname} TO {role}")
        store.migrate()
        store.acquire(GROUP, TOPIC, 0, 1, IDENTITY)
        session = store.session(ConsumerSpec(consumer=GROUP))
        session.begin([at(0)])
        session.settle(applied(records(0)), [at(1)])
        assert store.tally(GROUP) == {Outcome.APPLIED: 1}
        session.close()
        store.close()

    def test_rights_to_tables_that_another_role_made(self, url: str, role: str, admin: psycopg.Connection) -> None:
        owner = PostgresStore(url)
        owner.migrate()
        store = PostgresStore(self.as_role(url, role))
        with pytest.raises(Refused) as refused:
            store.acquire(GROUP, TOPIC, 0, 1, IDENTITY)
        grants = refused.value.hint.partition(", or ")[2]
        admin.execute(grants)
        assert store.acquire(GROUP, TOPIC, 0, 1, IDENTITY) is None
        store.close()
        owner.close()

    def test_a_wrong_password_is_never_echoed(self, url: str, admin: psycopg.Connection) -> None:
        if server_url() not in url.replace(str(admin.info.dbname), "postgres"):
            pytest.skip("needs the server that the suite starts")
        made = admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (GUARDED_ROLE,)).fetchone()
        if not made:
            admin.execute(f"CREATE ROLE {GUARDED_ROLE} LOGIN PASSWORD 'right'")
        with pytest.raises(ContractError) as wrong:
            PostgresStore(self.as_role(url, GUARDED_ROLE, "hunter2secret"))
        shown = f"{wrong.value} {wrong.value!r} {wrong.value.value}"
        assert "hunter2secret" not in shown
        assert "password" in wrong.value.hint

    def test_unreachable(self) -> None:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/x") as unreachable:
            PostgresStore("postgresql://u:hunter2secret@127.0.0.1:1/x")
        assert "hunter2secret" not in str(unreachable.value)
        assert unreachable.value.exit_code == 69

    @pytest.mark.parametrize("wrong", ["mysql://h/x", "postgresql://h/x?schema=a;b", "postgresql://h/x?idle=long"])
    def test_a_wrong_address(self, wrong: str) -> None:
        with pytest.raises(ContractError):
            PostgresStore(wrong)

    def test_the_printed_schema_is_the_one_that_migrate_makes(self, url: str, admin: psycopg.Connection) -> None:
        by_script = PostgresStore(f"{url}&schema=by.script" if "?" in url else f"{url}?schema=by.script")
        by_migrate = PostgresStore(url)
        admin.execute(by_script.schema_sql())
        by_migrate.migrate()
        sql = (
            "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns"
            " WHERE table_schema = %s ORDER BY 1, 2"
        )
        found = [admin.execute(sql, (name,)).fetchall() for name in ("by.script", "settled")]
        assert found[0] == found[1] != []
        assert by_script.positions() == []
        by_script.migrate()
        by_script.close()
        by_migrate.close()


class TestOutboxReads(PostgresCases):
    def test_who_saw_the_other_comes_after_it_though_both_were_committed_while_a_relay_reads(
        self, store_factory: StoreFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A read takes some rows of each bucket and then more of those that have more. The first of two rows has a low
        number, since its transaction began early: behind what was read already there was only the second one."""
        store = store_factory()
        store.migrate()
        box = store.outbox
        held = box.hold("relay", lease_s=60).buckets
        early = psycopg.connect(store.url)
        add(early, Message(topic="t", key=b"k", id="seen"))
        with psycopg.connect(store.url) as other:
            for number in range(4):
                add(other, Message(topic="t", key=b"k", id=f"e-{number}"))
        some, reads = box._some, 0

        def reading(*given: Any) -> list[OutboxRow]:
            nonlocal reads
            reads += 1
            if reads == 2:
                early.commit()
                with psycopg.connect(store.url) as other:
                    add(other, Message(topic="t", key=b"k", id="saw it"))
            return some(*given)

        monkeypatch.setattr(box, "_some", reading)
        found = [row.message.id for row in box.pending(held, rows=2 * len(held), bytes=10_000)]
        assert reads == 2
        assert found == ["seen", "e-0", "e-1", "e-2", "e-3", "saw it"]
        early.close()

    def test_a_read_is_planned_for_the_rows_that_it_leaves_out(self, store_factory: StoreFactory) -> None:
        """A plan for any list compares each row with each of them: it read 2,000 rows fifteen times as slowly."""
        store = store_factory()
        store.migrate()
        outbox = store.outbox
        held = outbox.hold("relay", lease_s=60).buckets
        for _ in range(30):  # after ten the server may go over to a plan for any values
            assert outbox.pending(held, rows=10, bytes=1000, but=range(4000)) == []
        [(runs, planned_once)] = outbox._reader.rows(
            "SELECT sum(custom_plans), sum(generic_plans) FROM pg_prepared_statements WHERE statement LIKE '%<> ALL%'"
        )
        assert planned_once == 0 < runs
