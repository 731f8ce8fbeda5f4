"""Logs on streams: what is RabbitMQ's own of them."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from broker import address, channel, delete, put
from yard import LOG, Yard, insert, polled

from settled.drills.proxy import Proxy
from settled.engine import TopicSpec
from settled.engines.rabbitmq import RabbitEngine
from settled.errors import ContractError, HistoryLost, Unsupported
from settled.operations.status import status
from settled.outbox.policy import RelayPolicy
from settled.outcome import Outcome
from settled.record import Record
from settled.store import Selection, Tx
from settled.testing import rabbitmq
from settled.testing.engine_tools import (
    DEADLINE_S,
    Member,
    eventually,
    make_topic,
    message,
    names,
    producing,
    publish,
    share_out,
    topic_of,
)
from settled.testing.plugin import DrillFixture
from waiting import until

pytestmark = pytest.mark.xdist_group("rabbitmq")

FILE = 64 * 1024  # bytes of the smallest file of a stream


@pytest.fixture
def engine() -> Iterator[RabbitEngine]:
    names.fresh()
    names.durability, names.tells_offsets = "memory", False
    opened = RabbitEngine(rabbitmq.url())
    yield opened
    opened.close()
    names.plain()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    opened = Proxy(address(), random.Random(1))
    yield opened
    opened.close()


def through(proxy: Proxy) -> RabbitEngine:
    return RabbitEngine(f"rabbitmq://guest:guest@127.0.0.1:{proxy.port}/")


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    found = Yard(tmp_path, rabbitmq.url(), sections=LOG)
    yield found
    found.close()


def fill(engine: RabbitEngine, first: int, count: int) -> None:
    """Records of one file of the smallest size each, or a bit more."""
    producer = engine.producer(producing())
    for number in range(first, first + count):
        producer.send(message(number, key=b"k", value=b"x" * FILE)).result(DEADLINE_S)  # each a chunk of its own
    producer.close()


# Topics.


def test_what_differs_is_told_and_nothing_is_changed(engine: RabbitEngine) -> None:
    made = engine.ensure_topic(TopicSpec(name=names.topic, partitions=2, retention_s=3600.0, retention_bytes=10**7))
    for field, other in (("partitions", 3), ("retention_s", 60.0), ("retention_s", None), ("retention_bytes", 10**8)):
        fields = {"partitions": 2, "retention_s": 3600.0, "retention_bytes": 10**7, field: other}
        with pytest.raises(ContractError, match=f"{field}.*not {other}: nothing was changed") as refused:
            engine.ensure_topic(TopicSpec(name=names.topic, **fields))
        assert refused.value.hint
        with pytest.raises(ContractError, match=field):
            engine.examine(TopicSpec(name=names.topic, **fields))
    assert topic_of(engine).spec == made.spec
    assert engine.examine(made.spec)


def test_another_process_is_told_what_the_topic_is(engine: RabbitEngine) -> None:
    """The broker keeps it: retention, limit and number of partitions."""
    made = engine.ensure_topic(
        TopicSpec(name=names.topic, partitions=3, retention_s=60.0, retention_bytes=10**7, max_message_bytes=1000)
    )
    other = RabbitEngine(rabbitmq.url())
    assert other.topics() == []  # AMQP lists nothing
    assert topic_of(other).spec == made.spec
    assert topic_of(other).identity == made.identity
    other.close()


def test_names_and_forms_do_not_mix(engine: RabbitEngine) -> None:
    make_topic(engine, form="queue")
    with pytest.raises(ContractError, match="is a queue, not a log"):
        make_topic(engine)
    names.fresh()
    make_topic(engine)
    with pytest.raises(ContractError, match="is a log, not a queue"):
        make_topic(engine, form="queue")
    with pytest.raises(Unsupported, match="compact"):
        make_topic(engine, compact=True)
    with pytest.raises(ContractError, match="partitions"):
        engine.grow_topic(names.topic, 0)


def test_a_topic_is_made_by_several_at_once(engine: RabbitEngine) -> None:
    """As by the workers of a deployment: they agree on what it is."""
    engines = [RabbitEngine(rabbitmq.url()) for _ in range(6)]
    spec = TopicSpec(name=names.topic, partitions=2)
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda each: each.ensure_topic(spec), engines))
    assert len({info.identity for info in made}) == 1
    assert topic_of(engine).identity == made[0].identity
    publish(engine, map(message, range(10)))
    assert sum(len(engine.read(names.topic, number, 0)) for number in range(2)) == 10
    for each in engines:
        each.close()


def test_a_topic_that_was_made_in_part_is_made_again(engine: RabbitEngine) -> None:
    """Its facts are written last."""
    with channel() as opened:
        opened.queue_declare(f"{names.topic}:log:facts", durable=True, arguments={"x-queue-type": "stream"})
    assert engine.topics([names.topic]) == []
    make_topic(engine, 2)
    assert len(topic_of(engine).partitions) == 2


def test_a_stream_that_is_another_ones_is_refused(engine: RabbitEngine) -> None:
    with channel() as opened:
        opened.queue_declare(f"{names.topic}:log:0", durable=True, arguments={"x-queue-type": "quorum"})
    with pytest.raises(ContractError, match="x-queue-type"):
        make_topic(engine)
    delete(f"{names.topic}:log:0")


# Offsets.


def test_holes_are_neither_gaps_nor_records(engine: RabbitEngine) -> None:
    """The broker gives numbers to notes of its own where a file begins."""
    make_topic(engine, retention_bytes=100 * FILE * 8)
    with channel() as opened:  # files of the smallest size, by another's hand
        opened.queue_delete(f"{names.topic}:log:0")
        arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": FILE}
        opened.queue_declare(f"{names.topic}:log:0", durable=True, arguments=arguments)
    fill(engine, 0, 6)
    found = engine.read(names.topic, 0, 0)
    assert [one.id for one in found] == [f"e{n}" for n in range(6)]
    assert found[-1].offset > 5
    part = topic_of(engine).partitions[0]
    assert (part.begin, part.end, part.exact) == (0, found[-1].offset + 1, False)
    member = Member(engine)
    assert [one.offset for one in member.receives(6)] == [one.offset for one in found]
    assert {one.gap_from for one in member.fetched} == {None}
    hole = next(n for n in range(part.end) if n not in {one.offset for one in found})
    member.consumer.start(names.topic, 0, hole)
    member.records.clear()
    member.until(lambda: bool(member.records), "from a hole on")
    assert member.records[0].offset == next(one.offset for one in found if one.offset > hole)
    assert {one.gap_from for one in member.fetched} == {None}
    member.consumer.close()


def test_what_retention_removed_is_told(engine: RabbitEngine) -> None:
    make_topic(engine, retention_bytes=2 * FILE)
    fill(engine, 0, 12)
    eventually(lambda: topic_of(engine).partitions[0].begin > 2, "old files are gone")
    part = topic_of(engine).partitions[0]
    assert engine.read(names.topic, 0, 0)[0].offset == part.begin
    assert engine.offset_at(names.topic, 0, 0) == part.begin
    member = Member(engine, start=1)
    found = member.receives(1)
    assert (member.fetched[0].gap_from, member.fetched[0].next_offset, member.fetched[0].records) == (1, part.begin, [])
    assert found[0].offset == part.begin
    assert [one.gap_from for one in member.fetched[1:] if one.gap_from is not None] == []
    member.consumer.close()


def test_what_retention_removed_behind_a_slow_reader_is_told(engine: RabbitEngine) -> None:
    """It was reading, and held up: what it misses is one gap, and nothing beyond it is missed."""
    make_topic(engine, retention_bytes=2 * FILE)
    member = Member(engine, start=0)
    member.owns(1)
    fill(engine, 0, 60)
    member.until(lambda: bool(member.records) and member.records[-1].id == "e59", "the last one", records=1)
    offset = 0
    for fetched in member.fetched:
        if fetched.gap_from is not None:
            assert fetched.gap_from == offset
        for one in fetched.records:
            assert one.offset - offset <= 2  # a hole where a file begins
            offset = one.offset + 1
        offset = fetched.next_offset
    member.consumer.close()


def test_a_stream_that_was_made_anew_is_another_history(engine: RabbitEngine) -> None:
    make_topic(engine)
    publish(engine, map(message, range(5)))
    delete(f"{names.topic}:log:0")
    make_topic(engine)
    member = Member(engine, start=-1)
    member.owns(1)
    with pytest.raises(HistoryLost, match="ends at 0, before the position 5"):
        member.consumer.start(names.topic, 0, 5)
    member.consumer.close()


def test_foreign_messages_are_records(engine: RabbitEngine) -> None:
    """The broker drops what a stream does not hold: lists and tables among the headers."""
    make_topic(engine)
    put(f"{names.topic}:log:0", b"v", message_id="m1", type="T", headers={"a": "b", "n": 7, "list": [1], "x-own": 1})
    (found,) = engine.read(names.topic, 0, 0)
    assert (found.id, found.type, found.value, found.key) == ("m1", "T", b"v", None)
    assert found.headers == (("a", b"b"), ("n", b"7"))


# Members.


def test_a_lost_connection_is_the_loss_of_all_partitions(engine: RabbitEngine, proxy: Proxy) -> None:
    """B046: nothing of the old ones is acknowledged or noted, whatever the owner still asks for."""
    make_topic(engine, 3)
    publish(engine, map(message, range(300)))
    other = through(proxy)
    member = Member(other, lease_s=2.0)
    member.receives(100, records=10)
    epochs = {place: one.epoch for place, one in member.owned.items()}
    proxy.shut()
    member.until(lambda: len(member.lost) == 3, "all are lost", records=0)
    member.consumer.commit(dict.fromkeys(epochs, 50))  # too late
    for place in epochs:
        member.consumer.release(*place)
    proxy.reopen()
    until(lambda: polled(member) and len(member.owned) == 3)
    assert {place: one.epoch for place, one in member.owned.items()} == {place: n + 1 for place, n in epochs.items()}
    assert not any(one.clean for one in member.owned.values())
    assert engine.groups(names.group)[0].committed == {}
    member.until(lambda: len({one.id for one in member.records}) == 300, "all of it, from the beginning")
    other.close()


def test_an_owner_without_a_connection_gives_way(engine: RabbitEngine, proxy: Proxy) -> None:
    make_topic(engine, 2)
    other = through(proxy)
    first = Member(other, lease_s=2.0)
    first.owns(2)
    proxy.hold()  # as if the cable were pulled: nobody is told
    second = Member(engine, lease_s=2.0)
    second.owns(2)
    assert all(one.epoch == 2 and not one.clean for one in second.owned.values())
    publish(engine, map(message, range(20)))
    second.receives(20)
    until(lambda: polled(first) and len(first.lost) == 2)
    assert first.records == []
    proxy.release()
    until(lambda: polled(first) and polled(second) and len(first.owned) == len(second.owned) == 1)
    second.consumer.close()
    other.close()


def test_members_come_and_go(engine: RabbitEngine) -> None:
    """No partition has two owners at a time, each ends up with one, and no record is missed by all."""
    make_topic(engine, 6)
    chance = random.Random(7)
    members: list[Member] = []
    gone: list[Member] = []
    for turn in range(8):
        if len(members) < 2 or (len(members) < 4 and chance.random() < 0.6):
            members.append(Member(engine, lease_s=2.0))
        else:
            leaver = members.pop(chance.randrange(len(members)))
            leaver.consumer.close()
            gone.append(leaver)
        publish(engine, [message(turn * 50 + n) for n in range(50)])
        least, most = 6 // len(members), -(-6 // len(members))

        def shared(least: int = least, most: int = most) -> bool:
            counts = [len(one.owned) for one in members]
            return sum(counts) == 6 and min(counts) >= least and max(counts) <= most

        share_out(members, shared, f"turn {turn}")

    def all_of_it() -> bool:
        return len({one.id for member in (*members, *gone) for one in member.records}) == 400

    share_out(members, all_of_it, "all records")
    for member in members:
        member.consumer.close()


# Workers.


def test_a_drain_settles_all_of_a_log(yard: Yard) -> None:
    ids = [f"e{n}" for n in range(1000)]
    yard.publish([*ids, *ids[:100]])
    app = yard.app()
    app.run(drain=True)
    assert sorted(yard.ids()) == sorted(ids)
    assert app.store.tally("g") == {Outcome.APPLIED: 1000}
    later = yard.app(group="late")
    later.run(drain=True)
    assert len(yard.ids()) == 2000  # another group, with marks and frontiers of its own


@pytest.mark.timeout(300)
def test_workers_that_are_killed_lose_nothing_and_double_nothing(yard: Yard) -> None:
    """The main job: effects in SQLite, one process after the other dies right after a commit, and by SIGKILL."""
    ids = [f"e{n}" for n in range(2000)]
    yard.publish(ids)
    patient = {"attempts": {"worker-lost": 1000}}  # these deaths are nobody's fault
    for _ in range(3):
        with yard.process("dies_committed", poison=patient) as process:
            assert process.wait(60.0) == 137
    assert 0 < len(yard.ids()) < 2000
    for _ in range(2):
        known = len(yard.ids())
        with yard.process("plain", poison=patient) as process:
            until(lambda: len(yard.ids()) > known, 60.0)  # noqa: B023
            process.send_signal(signal.SIGKILL)
            process.wait(30.0)
    app = yard.app(poison=patient)
    app.run(drain=True)
    found = yard.ids()
    assert (len(found), len(set(found))) == (2000, 2000)
    assert sorted(found) == sorted(ids)
    assert app.store.quarantine.select(Selection()) == []


@pytest.mark.timeout(300)
def test_a_record_of_a_log_that_kills_its_worker_is_found(yard: Yard) -> None:
    """The board says that the owner before did not give it back: what it had in hand runs alone."""
    good = [f"g{n}" for n in range(20)]
    yard.publish([*good[:10], "boom", *good[10:]])
    shelf = yard.app(None).store.quarantine
    for _ in range(15):
        with yard.process("boom") as process:
            until(lambda: process.poll() is not None or shelf.select(Selection()), 60.0)
            if process.poll() is None:
                yard.settles(good)
                process.send_signal(signal.SIGTERM)
                assert process.wait(30.0) == 0
                break
    (entry,) = shelf.entries(shelf.select(Selection()))
    assert (entry.record.id, entry.failure.kind.value) == ("boom", "worker-lost")
    assert sorted(yard.ids()) == sorted(good)


@pytest.mark.timeout(300)
def test_a_worker_on_a_log_that_was_stopped_makes_no_second_effect(yard: Yard) -> None:
    """B019: it wakes after another one settled what it had in hand."""
    yard.publish(["e1"])
    starts: list[str] = []

    def noted(tx: Tx, record: Record) -> None:
        starts.append(record.id)
        insert(tx, record)

    with yard.process("held") as stalled:
        until(lambda: yard.note("starts") == ["e1"], 60.0)
        stalled.send_signal(signal.SIGSTOP)
        with yard.working(yard.app(noted)):
            yard.settles(["e1"])
            (yard.folder / "go").touch()
            stalled.send_signal(signal.SIGCONT)
            yard.publish(["e2", "e3"])
            yard.settles(["e1", "e2", "e3"])
        yard.publish(["e4"])
        yard.settles(["e1", "e2", "e3", "e4"])
        stalled.send_signal(signal.SIGTERM)
        assert stalled.wait(60.0) == 0
    assert "e1" in starts


def test_an_outbox_row_is_not_sent_to_less_than_it_asks_for(yard: Yard) -> None:
    """A relay that asks for what outlives a power cut, as a stream on one node does not: the row stays, and says why.
    The application's own asks for what its contract can have, and sends it."""
    yard.publish(["e1"])
    app = yard.app(lambda tx, record: tx.publish(record.value, id=f"out-{record.id}", topic=f"{yard.topic}-out"))
    app.engine.ensure_topic(TopicSpec(name=f"{yard.topic}-out"))
    app.run(drain=True, relay=False)
    relay = app.relay(policy=RelayPolicy(first_s=0.2, most_s=0.2, attempts=1000, durability="local"))
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        until(lambda: app.store.outbox.status().failing == 1)
        (row,) = app.store.outbox.rows()
        assert (row.message.id, "synced" in row.error) == ("out-e1", True)
        assert app.engine.read(f"{yard.topic}-out", 0, 0) == []
    finally:
        relay.stop()
        thread.join(DEADLINE_S)
    time.sleep(0.2)  # until the row is due again
    app.relay().run(drain=True)
    assert [record.id for record in app.engine.read(f"{yard.topic}-out", 0, 0)] == ["out-e1"]


def test_status_knows_a_log_that_its_process_was_not_told_of(yard: Yard) -> None:
    """Members and frontiers of other processes, from the board."""
    yard.publish([f"e{n}" for n in range(30)])
    app = yard.app()
    other = RabbitEngine(rabbitmq.url())
    with yard.working(app) as worker:
        yard.settles([f"e{n}" for n in range(30)])

        def shown() -> bool:
            (consumer,) = status(other, app.store, app.contract).consumers
            return [len(each.partitions) for each in consumer.members] == [4] and all(
                part.committed == part.frontier for part in consumer.partitions
            )

        until(shown)
        assert worker is not None
    (consumer,) = status(other, app.store).consumers
    assert (consumer.members, sum(part.records for part in consumer.partitions)) == ([], 0)
    assert sum(part.end for part in consumer.partitions) == 30
    other.close()


@pytest.mark.timeout(300)
def test_a_log_loses_and_doubles_nothing(tmp_path: Path, settled_drill: DrillFixture) -> None:
    """Workers die where a partition is taken over, where an effect is made and told of, and where one is given back;
    relays, where a row is published."""
    contract = json.dumps(
        {
            "settled": 1,
            "name": "Drilled",
            "transport": {"form": "log", "topic": "drilled", "partitions": 3, "key": "k"},
            "producer": {"durability": "memory"},
            "delivery": {"group": "drilled", "lease": "2s"},
            "poison": {"owner": "tests"},
        }
    )
    (tmp_path / "contract.yaml").write_text(contract)
    (tmp_path / "app.py").write_text(APP)
    windows = ["fence-written", "effect-committed", "frontier-uncommitted", "partition-unreleased", "relay-sent"]
    report = settled_drill(str(tmp_path / "app.py"), windows=windows, kills=2, engine=rabbitmq.url())
    assert sum(row.kills for row in report.windows) >= 10


APP = """
from pathlib import Path
from settled.app import App

app = App(Path(__file__).with_name("contract.yaml"))

@app.handler
def insert(tx, record):
    tx.execute("CREATE TABLE IF NOT EXISTS effects (id TEXT)")
    tx.execute("INSERT INTO effects VALUES (?)", (record.id,))
"""
