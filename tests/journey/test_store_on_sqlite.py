"""What is SQLite's own about the store: locks, a transaction that SQLite ends by itself, forks, settings."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from settled.errors import CommitUnknown, ContractError, Damaged, Refused, Unavailable
from settled.outcome import Outcome
from settled.sqlite import open_connection
from settled.store import ConsumerSpec, Session
from settled.stores.sqlite import SqliteStore
from settled.testing.store_tools import GROUP, StoreCases, StoreFactory, applied, at, records


class TestSqlite(StoreCases):
    @pytest.fixture
    def store_factory(self, tmp_path: Path) -> Iterator[StoreFactory]:
        opened: list[SqliteStore] = []

        def open_store() -> SqliteStore:
            opened.append(SqliteStore(f"sqlite:///{tmp_path}/effects.db?busy=0.2&foreign_keys=on"))
            return opened[-1]

        yield open_store
        for store in opened:
            store.close()

    def test_the_printed_schema_is_the_one_that_migrate_makes(self, store: SqliteStore, tmp_path: Path) -> None:
        by_script = open_connection(tmp_path / "script.db")
        by_script.execute(store.schema_sql())
        sql = "SELECT name FROM sqlite_schema WHERE name LIKE 'settled%' ORDER BY name"
        found = by_script.execute(sql).fetchall()
        by_script.close()
        by_migrate = open_connection(tmp_path / "effects.db")
        assert by_migrate.execute(sql).fetchall() == found != []
        by_migrate.close()

    # locks

    def test_an_outage_is_unavailable_and_passes(self, store: SqliteStore, session: Session, tmp_path: Path) -> None:
        holder = open_connection(tmp_path / "effects.db")
        holder.execute("BEGIN EXCLUSIVE")
        session.begin([at(0)])
        with pytest.raises(Unavailable):
            self.write(session.tx, "e0")
        session.rollback()
        session.begin([at(0)])
        with pytest.raises(Unavailable):
            session.settle(applied(records(0)), [at(1)])
        with pytest.raises(Unavailable):
            session.charge(at(0), [])
        holder.execute("ROLLBACK")
        holder.close()
        assert self.unit(session, records(0), 1) == [None]
        assert self.effects(store) == ["e0"]

    def test_screening_takes_no_write_lock(self, session: Session, tmp_path: Path) -> None:
        session.begin([at(0)])
        session.screen(records(0))
        other = open_connection(tmp_path / "effects.db", busy_s=0)
        other.execute("CREATE TABLE elsewhere (n)")
        other.close()
        session.rollback()

    def test_sessions_of_a_process_wait_for_their_turn(self, store: SqliteStore, session: Session) -> None:
        """The second writer waits on the process's own lock, however short the file's busy time is."""
        second = store.session(ConsumerSpec(consumer=GROUP))
        session.begin([at(0)])
        self.write(session.tx, "first")
        with pytest.raises(Unavailable, match="another thread"):
            second.charge(at(0), [])
        waits = threading.Event()

        def late() -> None:
            second.begin([at(0)])
            waits.set()
            self.write(second.tx, "second")
            second.settle([], [at(0)])

        thread = threading.Thread(target=late)
        thread.start()
        assert waits.wait(10)
        session.settle([], [at(0)])
        thread.join(10)
        assert self.effects(store) == ["first", "second"]
        second.close()

    # a transaction that SQLite ends by itself

    def test_a_statement_that_rolls_back_is_refused_for_good(self, store: SqliteStore, session: Session) -> None:
        store.prepare(lambda tx: tx.execute("CREATE TABLE one (n PRIMARY KEY)"))
        session.begin([at(0)])
        session.tx.execute("INSERT INTO one VALUES (1)")
        with pytest.raises(apsw.ConstraintError):
            session.tx.execute("INSERT OR ROLLBACK INTO one VALUES (1)")
        with pytest.raises(Refused):
            session.tx.execute("INSERT INTO one VALUES (2)")  # would be committed on its own
        with pytest.raises(Refused):
            session.check()
        with pytest.raises(Refused):
            session.undo()
        with pytest.raises(Refused):
            session.settle(applied(records(0)), [at(1)])
        assert store.tally(GROUP) == {}
        assert self.unit(session, records(0), 1) == [None]

    def test_no_other_commit_than_settleds(self, store: SqliteStore, session: Session) -> None:
        """A connection that a handler kept can write nothing between units."""
        session.begin([at(0)])
        kept = session.tx.execute("SELECT 1").get_connection()
        session.settle([], [at(0)])
        with pytest.raises(apsw.ConstraintError):
            kept.execute("INSERT INTO effects (id) VALUES ('stray')")
        assert self.effects(store) == []

    def test_an_open_statement_of_the_handler(self, store: SqliteStore, session: Session) -> None:
        session.begin([at(0)])
        kept = session.tx.execute("INSERT INTO effects (id) VALUES ('a'), ('b') RETURNING id")
        with pytest.raises(Refused, match="open"):
            session.settle(applied(records(0)), [at(1)])
        kept.close()
        assert self.effects(store) == []
        assert self.unit(session, records(0), 1) == [None]

    def test_a_cursor_left_open_does_not_hold_the_next_unit_back(self, store: SqliteStore, session: Session) -> None:
        self.unit(session, records(0, 1), 2)
        session.begin([at(2)])
        kept = session.tx.execute("SELECT id FROM effects")
        next(kept)
        session.settle([], [at(2)])
        store.prepare(lambda tx: tx.execute("CREATE TABLE meanwhile (n)"))
        assert self.unit(session, records(2), 3) == [None]

    def test_a_constraint_checked_at_commit(self, store: SqliteStore, session: Session) -> None:
        store.prepare(
            lambda tx: tx.execute(
                "CREATE TABLE lines (id INTEGER PRIMARY KEY, parent REFERENCES lines DEFERRABLE INITIALLY DEFERRED)"
            )
        )
        session.begin([at(0)])
        session.tx.execute("INSERT INTO lines VALUES (1, 2)")
        with pytest.raises(apsw.ConstraintError):
            session.settle(applied(records(0)), [at(1)])
        assert store.tally(GROUP) == {}
        assert self.unit(session, records(0), 1) == [None]

    # what a handler may not do

    @pytest.mark.parametrize(
        "sql",
        [
            "ATTACH ':memory:' AS other",
            "DETACH main",
            "PRAGMA synchronous = OFF",
            "PRAGMA journal_mode = DELETE",
            "DELETE FROM settled_inbox",
            "UPDATE settled_frontier SET epoch = 0",
            "DROP TABLE settled_attempt",
            "ALTER TABLE settled_inbox RENAME TO mine",
            "CREATE TRIGGER t AFTER INSERT ON settled_inbox BEGIN SELECT 1; END",
            "CREATE INDEX i ON settled_inbox (outcome)",
            "CREATE TABLE settled_mine (n)",
        ],
    )
    def test_refused(self, session: Session, sql: str) -> None:
        session.begin([at(0)])
        with pytest.raises(Refused):
            session.tx.execute(sql)
        session.rollback()

    def test_a_trigger_may_not_write_to_settleds_tables(self, store: SqliteStore, session: Session) -> None:
        store.prepare(
            lambda tx: tx.execute(
                "CREATE TRIGGER sly AFTER INSERT ON effects BEGIN DELETE FROM settled_inbox; END",
            )
        )
        session.begin([at(0)])
        with pytest.raises(Refused):
            self.write(session.tx, "e0")
        session.rollback()

    def test_reading_settings_and_tables_is_allowed(self, session: Session) -> None:
        session.begin([at(0)])
        assert session.tx.execute("PRAGMA table_info(effects)").fetchall()
        assert session.tx.execute("SELECT count(*) FROM settled_inbox").fetchall() == [(0,)]
        session.rollback()

    # faults

    def test_an_unknown_commit_is_looked_up(self, store: SqliteStore, session: Session, tmp_path: Path) -> None:
        """COMMIT meets an I/O error: neither settled nor failed; the inbox says."""
        vfs = FailingSync("failing-sync")
        handle = session._handle  # the session's own connection, opened anew through the failing file system
        handle.connection.close(True)
        handle.connection = apsw.Connection(str(tmp_path / "effects.db"), vfs="failing-sync")
        handle.connection.execute("PRAGMA synchronous = FULL")
        session.begin([at(0)])
        vfs.fail = True
        with pytest.raises(CommitUnknown):
            session.settle(applied(records(0)), [at(1)])
        vfs.fail = False
        found = session.settled(records(0))
        assert found in ([None], [Outcome.APPLIED])
        self.unit(session, records(0), 1)
        assert store.tally(GROUP) == {Outcome.APPLIED: 1}
        session.close()
        vfs.unregister()

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "notes.db").write_bytes(b"not a database, but long enough to look at" * 100)
        with pytest.raises(Damaged):
            SqliteStore(f"sqlite:///{tmp_path}/notes.db")

    @pytest.mark.parametrize(
        "url", ["sqlite:///no/such/folder/x.db", "sqlite://x.db", "sqlite:///", "sqlite:///x.db?nope=1"]
    )
    def test_a_wrong_address(self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ContractError):
            SqliteStore(url)
        assert list(tmp_path.iterdir()) == []

    def test_a_store_carried_across_fork_is_refused(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-c", _FORK, f"sqlite:///{tmp_path}/forked.db"], capture_output=True, timeout=60
        )
        assert (done.stdout.split(), done.returncode) == ([b"refused", b"refused", b"parent"], 0), done.stderr

    def test_settings_are_what_durability_rests_on(self, tmp_path: Path) -> None:
        with open_connection(tmp_path / "x.db") as connection:
            found = {name: connection.pragma(name) for name in ("journal_mode", "synchronous", "mmap_size")}
            assert found == {"journal_mode": "wal", "synchronous": 2, "mmap_size": 0}
            assert connection.pragma("cell_size_check") == 1
            assert connection.pragma("trusted_schema") == 0
        connection.close()


_FORK = """
import os, sys
from settled.errors import Refused
from settled.store import ConsumerSpec
from settled.stores.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
store.migrate()
session = store.session(ConsumerSpec(consumer="g"))
pid = os.fork()
if pid == 0:
    for call in (store.positions, lambda: session.begin([])):
        try:
            call()
        except Refused:
            print("refused", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
store.positions()
print("parent", flush=True)
session.close()
store.close()
"""


class FailingSync(apsw.VFS):
    """The usual file system, whose fsync fails while `fail` is set."""

    def __init__(self, name: str) -> None:
        self.fail = False
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    def __init__(self, vfs: FailingSync, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.vfs = vfs
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:
        if self.vfs.fail:
            raise apsw.IOError(os.strerror(5))
        super().xSync(flags)
