"""What every effect store must show. Subclass `StoreConformance`, supply `store_factory`, `lose_mark` and
`pretend_newer`:

    class TestMyStore(StoreConformance):
        placeholder = "?"

        @pytest.fixture
        def store_factory(self, tmp_path): ...   # a function; each call opens the same new database

The fixture closes what it opened. Effects go to a table `effects` that the suite makes.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from settled.errors import ContractError, Refused
from settled.outcome import Outcome
from settled.store import ConsumerSpec, Session, Store, Tx, WorkerReport
from settled.testing.store_shelf import ShelfCases
from settled.testing.store_tools import GROUP, StoreFactory, applied, at, record, records
from settled.testing.store_units import UnitCases
from settled.testing.store_watching import WatchCases

_MIGRATE = """
import importlib, sys
module, name, url = sys.argv[1:]
store = getattr(importlib.import_module(module), name)(url)
sys.stdin.read(1)  # all start at once
store.migrate()
store.prepare(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS shared_setup (n INTEGER)"))
print(store.tally("nobody"))
store.close()
"""


class StoreConformance(UnitCases, ShelfCases, WatchCases):
    def test_ten_processes_start_on_an_empty_database(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        command = [sys.executable, "-c", _MIGRATE, type(store).__module__, type(store).__name__, store.url]
        pipe = subprocess.PIPE
        racers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) for _ in range(10)]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"g")
            racer.stdin.flush()
        ends = [racer.communicate(timeout=100) for racer in racers]
        assert [(racer.returncode, out.strip(), err) for racer, (out, err) in zip(racers, ends, strict=True)] == [
            (0, b"{}", b"")
        ] * 10
        store.migrate()
        assert store.tally("nobody") == {}

    def test_a_newer_schema_is_refused(self, store: Store, store_factory: StoreFactory) -> None:
        self.pretend_newer(store)
        newer = store_factory()
        with pytest.raises(Refused, match="version"):
            newer.migrate()
        with pytest.raises(Refused, match="version"):
            newer.positions()

    def test_a_database_without_tables_says_what_to_do(self, store_factory: StoreFactory) -> None:
        with pytest.raises(ContractError) as missing:
            store_factory().positions()
        assert "migrate" in missing.value.hint

    def test_prepare_is_one_transaction(self, store: Store) -> None:
        def broken(tx: Tx) -> None:
            tx.execute("CREATE TABLE half (n INTEGER)")
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            store.prepare(broken)
        store.prepare(lambda tx: tx.execute("CREATE TABLE half (n INTEGER)"))

    def test_sessions_side_by_side(self, store: Store) -> None:
        """Several threads of a process settle partitions of one group, none losing or doubling an effect."""
        errors: list[BaseException] = []

        def worker(partition: int) -> None:
            session = store.session(ConsumerSpec(consumer=GROUP))
            try:
                for offset in range(20):
                    found = record(offset, f"{partition}-{offset}", partition=partition)
                    session.begin([at(offset, partition=partition)])
                    self.write(session.tx, found.id)
                    session.settle(applied([found]), [at(offset + 1, partition=partition)])
            except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
                errors.append(error)
            finally:
                session.close()

        for partition in range(4):
            store.acquire(GROUP, "orders", partition, 1, "i")
        threads = [threading.Thread(target=worker, args=(partition,)) for partition in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert len(self.effects(store)) == len(set(self.effects(store))) == 80
        assert store.tally(GROUP) == {Outcome.APPLIED: 80}
        assert {position.frontier for _, position in store.positions(GROUP)} == {20}

    def test_closing_a_session_rolls_back(self, store: Store, session: Session) -> None:
        session.begin([at(0)])
        self.write(session.tx, "e0")
        session.close()
        assert self.effects(store) == []

    def test_a_store_opened_again_holds_all(self, store: Store, session: Session, store_factory: StoreFactory) -> None:
        self.unit(session, records(0, 1), 2)
        session.close()
        store.close()
        store.close()
        again = store_factory()
        assert again.tally(GROUP) == {Outcome.APPLIED: 2}
        assert again.positions(GROUP)[0][1].frontier == 2

    def test_the_clock(self, store: Store) -> None:
        first = store.clock_us()
        assert 1_600_000_000_000_000 < first <= store.clock_us()

    def test_reports_of_workers(self, store: Store) -> None:
        report = WorkerReport(consumer=GROUP, member="m1", host="h", pid=7, state="paused", why="store is slow \0")
        store.report(GROUP, "m1", report)
        store.report(GROUP, "m2", WorkerReport(consumer=GROUP, member="m2", host="h", pid=8, state="running"))
        store.report(GROUP, "m2", None)
        [found] = store.reports(GROUP)
        assert (found.member, found.pid, found.state) == ("m1", 7, "paused")
        assert found.updated_us > 0
        assert store.reports("nobody") == []
        assert len(store.reports()) == 1

    def test_gaps(self, store: Store) -> None:
        store.note_gap(GROUP, "orders", 0, 10, 60)
        store.note_gap(GROUP, "orders", 0, 10, 60)
        store.note_gap("billing", "orders", 1, 5, 6)
        [gap] = store.gaps(GROUP)
        assert (gap.topic, gap.partition, gap.first, gap.next_offset) == ("orders", 0, 10, 60)
        assert gap.found_us > 0
        assert len(store.gaps()) == 2

    def pretend_newer(self, store: Store) -> None:
        """Make the schema look like that of a newer release, behind the store's back."""
        raise NotImplementedError
