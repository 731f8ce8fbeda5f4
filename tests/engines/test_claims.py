"""What a claim costs and how far it looks; queues beside damage, losses, other groups and other topics."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from claims import Bench, ids

from settled import scheduling
from settled.engine import Assigned, ConsumerGroup, Fetched, ProducerSpec, Stopped, TopicSpec
from settled.engines.sqlite import SqliteEngine, accept_loss, pool, runs, schema
from settled.engines.sqlite import claim as claim_steps
from settled.engines.sqlite.claim import Claim, _Look
from settled.engines.sqlite.database import Connection
from settled.engines.sqlite.membership import Membership
from settled.engines.sqlite.runs import Reader
from settled.errors import ContractError, Damaged
from settled.record import Message


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.engine.close()


# What a claim costs, counted in the steps of SQLite's machine.


def test_what_becomes_due_at_once_is_promoted_at_a_cost_that_does_not_grow_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PROMOTED", 50)
    costs: list[int] = []
    for count in (100, 3000):
        with bench.database.writing(durable=False) as connection:
            connection.executemany(
                "INSERT INTO log_later VALUES (?, ?, 1, ?, 1, 100, x'', 5)",
                [(bench.topic.id, 1000 + number, number) for number in range(count)],
            )
            costs.append(steps(connection, lambda c=connection: pool.promote(c, bench.topic.id)))  # type: ignore[misc]
            found = connection.execute("SELECT count(*), max(place) FROM log_ready").fetchall()
            assert found == [(50, 49)]  # the first that are due
            connection.execute("DELETE FROM log_ready")
            connection.execute("DELETE FROM log_later")
    assert costs[1] < 3 * costs[0]


def test_a_claim_in_order_does_not_sort_the_backlog(bench: Bench) -> None:
    bench.publish(*[(f"e{n}", b"k%d" % n) for n in range(5)])
    costs: list[int] = []
    for count in (10, 3000):
        with bench.database.writing(durable=False) as connection:
            [(batch,)] = connection.execute("SELECT batch FROM log_left").fetchall()
            connection.executemany(
                "INSERT INTO log_ready VALUES (?, x'', 5, ?, 0, 1, 100)",
                [(bench.topic.id, batch + number) for number in range(1, count)],
            )
            claim = Claim(connection, Reader(), bench.topic, 0)
            costs.append(steps(connection, lambda c=claim: c.fill(1, 1000, ordered=True, after=b"")))  # type: ignore[misc]
            connection.execute("DELETE FROM log_ready WHERE batch > ?", (batch,))
    assert costs[1] < 3 * costs[0]


def steps(connection: Connection, action: Callable[[], object]) -> int:
    """How many times ten steps of its machine SQLite takes for it."""
    taken: list[int] = []
    assert isinstance(connection, apsw.Connection)
    connection.set_progress_handler(lambda: taken.append(1) is not None, 10)
    try:
        action()
    finally:
        connection.set_progress_handler(None)
    return len(taken)


def test_a_claim_of_one_looks_past_a_hot_key_in_few_rounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.publish(("h", b"hot"))
    assert ids(bench.fetch(0)) == ["h"]
    bench.publish(*[(f"h{n}", b"hot") for n in range(3000)], ("c1", b"cold"), ("c2", b"cold"))
    moved: list[int] = []
    move = Claim._move

    def counted(self: Claim, look: _Look, most: int) -> int:
        moved.append(move(self, look, most))
        return moved[-1]

    monkeypatch.setattr(Claim, "_move", counted)
    assert ids(bench.fetch(1, 1)) == ["c1"]
    assert len(moved) < 10
    assert ids(bench.fetch(1, 5)) == ["c2"]
    assert ids(bench.fetch(0, 2000) + bench.fetch(0, 2000)) == [f"h{n}" for n in range(3000)]


def test_looking_past_a_hot_key_claims_no_more_than_was_asked_for(bench: Bench) -> None:
    bench.publish(("h", b"hot"))
    assert ids(bench.fetch(0)) == ["h"]
    bench.publish(*[(f"h{n}", b"hot") for n in range(100)], *[(f"c{n}", b"c%d" % n) for n in range(50)])
    assert ids(bench.fetch(1, 3)) == ["c0", "c1", "c2"]
    queue = bench.engine.topics(["q"])[0].queue
    assert queue is not None
    assert (queue.ready, queue.claimed) == (47, 104)


def test_tenants_beyond_those_that_one_claim_considers_have_their_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_steps, "TENANTS", 10)
    names = [b"", *(b"t%02d" % n for n in range(24))]
    with closing(bench.engine.producer(ProducerSpec())) as producer:
        for tenant in names:
            for number in range(3):
                headers = scheduling.headers(tenant=tenant.decode()) if tenant else ()
                producer.send(Message(topic="q", id=f"{tenant.decode()}-{number}", value=b"v", headers=headers))
    served = [ids(bench.fetch(0, 10, ordered=False)) for _ in range(8)]
    came = [ident for some in served for ident in some]
    assert sorted(came[:25]) == sorted(f"{tenant.decode()}-0" for tenant in names)
    assert sorted(came[25:50]) == sorted(f"{tenant.decode()}-1" for tenant in names)
    assert len(set(came)) == 75


def test_a_batch_is_unpacked_once_for_all_tenants_of_a_claim(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each of them, where their records stand in more batches than are kept from claim to claim."""
    monkeypatch.setattr(runs, "KEPT", 4)
    with closing(bench.engine.producer(ProducerSpec())) as producer:
        for number in range(40):
            for tenant in range(number % 2, 50, 2):  # neighbours in turn, and never in one batch
                headers = scheduling.headers(tenant=f"t{tenant:02}")
                key = b"%d-%d" % (tenant, number % 3)
                producer.send(Message(topic="q", id=f"{tenant}-{number}", key=key, headers=headers))
            producer.flush()
    unpacked: list[int] = []
    unpack = runs.unpack
    monkeypatch.setattr(runs, "unpack", lambda *given: unpacked.append(given[3].seq) or unpack(*given))
    assert len(bench.fetch(0, 1000)) == 1000
    assert len(unpacked) <= 40


def test_what_is_read_for_many_tenants_of_a_claim_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT_BYTES", 1_000_000)
    monkeypatch.setattr(claim_steps, "KEPT_BYTES", 1_000_000)
    with closing(bench.engine.producer(ProducerSpec())) as producer:
        for tenant in range(20):
            headers = scheduling.headers(tenant=f"t{tenant:02}")
            producer.send(Message(topic="q", id=f"e{tenant:02}", key=b"k", value=b"v" * 500_000, headers=headers))
            producer.flush()
    sizes: list[int] = []
    load = Reader.load

    def weighed(self: Reader, *given: Any) -> int:
        found = load(self, *given)
        sizes.append(sum(kept.size for kept in self._kept.values()))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Reader, "load", weighed)
        with bench.database.writing(durable=False) as connection:
            Claim(connection, Reader(), bench.topic, 0).fill(20, 10**9, ordered=True, after=b"")
    assert len(sizes) >= 20
    assert (
        max(sizes) < 4_000_000
    )  # of ten: what is looked at, what is kept beside it, and the batch that is one too many
    assert ids(bench.fetch(0)) == [f"e{tenant:02}" for tenant in range(20)]


def test_no_more_is_read_than_is_handed_out(bench: Bench) -> None:
    for number in range(40):
        bench.publish((f"e{number}", b"k"), value=b"%02d" % number * 500_000)
    assert len(bench.fetch(0)) > 20
    bench.slots[0] = bench.slot(0)
    assert ids(bench.fetch(0, size=2_100_000)) == ["e0", "e1"]
    assert len(bench.slots[0]._reader._kept) == 2
    while bench.fetch(0, size=2_100_000):
        assert sum(kept.size for kept in bench.slots[0]._reader._kept.values()) < 20_000_000


# Damage, losses, other groups, other topics.


def test_what_was_claimed_before_damage_is_handed_out(bench: Bench) -> None:
    bench.publish(("good", b"a"))
    bench.publish(("bad", b"a"))
    with bench.database.writing(durable=True) as connection:
        connection.execute(
            "UPDATE log_batch SET payload = CAST(x'00' || substr(payload, 2) AS BLOB)"
            " WHERE seq = (SELECT max(seq) FROM log_batch)"
        )
    assert ids(bench.fetch(0)) == ["good"]
    found, _ = bench.slots[0].fetch(bench.database, lambda _: True, ordered=True, records=10, size=1000)
    assert isinstance(found, Stopped)
    assert isinstance(found.error, Damaged)


def test_after_an_accepted_loss_claim_numbers_go_on_above_what_a_store_may_hold(tmp_path: Path) -> None:
    """Another member puts work of a key into a slot whose owner has not begun: it must not be below its frontier."""
    old = Bench(tmp_path)
    old.publish(("e1", b"k"), ("e2", b"k"))
    assert len(old.fetch(0)) == 2
    old.engine.close()
    accept_loss(f"sqlite:///{tmp_path}/log.db", "a copy of last week was brought back", above=7_000_000)
    new = Bench(tmp_path)
    new.publish(("e3", b"k"))
    assert new.fetch(1) == []
    new.slots[0] = new.slot(0, 7_000_000)  # where the store stands
    assert ids(new.fetch(0)) == ["e3"]
    new.engine.close()


def test_a_member_that_was_stopped_does_not_come_back_to_a_queue_that_another_group_has(bench: Bench) -> None:
    first, second = (
        Membership(bench.database, ConsumerGroup(group=group, topics=("q",), lease_s=60.0), 1_000_000)
        for group in ("g", "other")
    )
    first.join()
    with bench.database.writing(durable=False) as connection:
        assert first.owns(connection, bench.topic.id, 0)
        connection.execute("UPDATE log_member SET expires_us = 0")  # as if it had been stopped for long
    second.join()
    with bench.database.reading() as connection:
        assert second.owns(connection, bench.topic.id, 0)
        assert not first.owns(connection, bench.topic.id, 0)
    with pytest.raises(ContractError, match="group 'other'"):
        first.round()
    second.leave(set())
    first.round()
    with bench.database.reading() as connection:
        assert first.owns(connection, bench.topic.id, 0)


def test_a_log_with_a_long_backlog_does_not_starve_a_queue_of_the_same_member(bench: Bench) -> None:
    bench.engine.ensure_topic(TopicSpec(name="l", partitions=1))
    with closing(bench.engine.producer(ProducerSpec())) as producer:
        for number in range(200):
            producer.send(Message(topic="l", id=f"l{number}", value=b"v"))
            producer.flush()
    bench.publish(("e1", None))
    consumer = bench.engine.consumer(ConsumerGroup(group="g", topics=("l", "q"), lease_s=60.0))
    came: list[str] = []
    for _ in range(40):
        for news in consumer.poll(1.0, records=1, bytes=1_000_000):
            if isinstance(news, Assigned):
                consumer.start(news.topic, news.partition, 0)
            elif isinstance(news, Fetched):
                came += ids(news.records)
        if "e1" in came:
            break
    consumer.close()
    assert came[-1] == "e1"
    assert len(came) < 10


# Files of the release before.


def test_a_log_without_queues_is_brought_up_to_date_by_whoever_opens_it_first(tmp_path: Path) -> None:
    """Several processes at once: one does it, the others find it done, and what was there is there."""
    path = tmp_path / "log.db"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = wal")
    with connection:
        for statement in schema._TABLES:
            connection.execute(statement)
        connection.execute("INSERT INTO log_meta VALUES (1, 1, ?, 0, -1, 0, 0, 'long ago')", (b"i" * 16,))
        connection.execute("INSERT INTO log_topic VALUES (1, 'old', ?, 1, NULL, NULL, NULL)", (str(uuid.uuid4()),))
        connection.execute("INSERT INTO log_partition VALUES (1, 1, 0, 0, 0, x'00', 0, 0, 0, 0, 0)")
    connection.close()
    opening = (
        f"from settled.engines.sqlite import SqliteEngine as E; e = E('sqlite:///{path}'); print(e.topics()); e.close()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", opening], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len(set(said)) == 1
    engine = SqliteEngine(f"sqlite:///{path}")
    assert [(info.spec.name, info.spec.form) for info in engine.topics()] == [("old", "log")]
    engine.ensure_topic(TopicSpec(name="q", form="queue"))
    engine.close()
