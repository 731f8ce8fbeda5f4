"""Any sequence of steps of members at one queue, held against a model: where each record is, who was handed it, under
which number and in what order, and whether the counts agree."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from claims import Bench
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from settled import clock, scheduling
from settled.engine import Fetched, ProducerSpec
from settled.engines.sqlite import pool
from settled.engines.sqlite.database import Connection
from settled.engines.sqlite.runs import Reader, Run
from settled.record import Message, from_us

SLOTS = 2  # of the bench
KEYS = (None, *(b"k%d" % number for number in range(12)))
SEEDS = st.integers(0, 2**32)


class Published(msgspec.Struct):
    """`due_us`: 0 for at once. `at`: its claim, as slot and number, once it was handed out."""

    key: bytes | None
    tenant: str | None
    due_us: int
    at: tuple[int, int] | None = None
    settled: bool = False


class Owner:
    """One ownership of a slot: what it was handed and has not settled, and how far it came."""

    def __init__(self, bench: Bench, number: int, frontier: int) -> None:
        self.slot = bench.slot(number, frontier)
        self.frontier, self.begun = frontier, frontier
        self.handed: dict[int, str] = {}
        self.open: list[int] = []


class Queue(RuleBasedStateMachine):
    """Steps of members."""

    ordered = False

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._patch = pytest.MonkeyPatch()
        self.now_us = 1_800_000_000_000_000
        self._patch.setattr(clock, "wall_us", lambda: self.now_us)
        self.bench = Bench(Path(self._folder.name))
        self.producer = self.bench.engine.producer(ProducerSpec(durability="memory", linger_s=3600.0))
        self.published: dict[str, Published] = {}
        self.owners = [Owner(self.bench, number, 0) for number in range(SLOTS)]

    @initialize(seeds=st.lists(SEEDS, min_size=3, max_size=3))
    def begins(self, seeds: list[int]) -> None:
        for seed in seeds:
            self.publish(seed)

    @rule(seed=SEEDS)
    def publish(self, seed: int) -> None:
        """One batch; priorities also with order, where they ask for nothing. It is large, so that there is something
        to split: the seed stands for all of it."""
        draw = random.Random(seed)
        plain = draw.random() < 0.5
        for _ in range(draw.randint(1, 15)):
            due_s = None if plain else draw.choice([None, None, -5, 10, 100])
            due_us = 0 if due_s is None else self.now_us + due_s * 1_000_000
            tenant = None if plain else draw.choice([None, None, "x", "y"])
            key = draw.choice(KEYS)
            headers = scheduling.headers(
                not_before=from_us(due_us) if due_us else None,
                priority=None if plain else draw.choice([None, None, 0, 9]),
                tenant=tenant,
            )
            ident = f"e{len(self.published)}"
            value = b"v" * draw.choice([0, 10, 3000])
            self.producer.send(Message(topic="q", id=ident, key=key, value=value, headers=headers))
            self.published[ident] = Published(key, tenant, due_us)
        self.producer.flush()

    @rule(seconds=st.sampled_from([1, 11, 120]))
    def time_passes(self, seconds: int) -> None:
        self.now_us += seconds * 1_000_000

    @rule(
        number=st.integers(0, SLOTS - 1),
        records=st.integers(1, 20),
        size=st.sampled_from([1, 2000, 10**6, 10**6]),
        owns=st.sampled_from([True, True, True, False]),
    )
    def fetch_some(self, number: int, records: int, size: int, owns: bool) -> None:
        self.fetch(number, records, size, owns=owns)

    def fetch(self, number: int, records: int, size: int, *, owns: bool = True) -> int:
        owner = self.owners[number]
        found, _ = owner.slot.fetch(
            self.bench.database, lambda _: owns, ordered=self.ordered, records=records, size=size
        )
        if found is None:
            return 0
        assert isinstance(found, Fetched)
        assert 1 <= len(found.records) <= records
        for record in found.records:
            assert record.offset > max(owner.handed, default=owner.begun - 1)
            message = self.published[record.id]
            assert message.at in (None, (number, record.offset)), "a record has one number for good"
            assert not message.settled
            assert message.due_us <= self.now_us
            assert message.key == record.key
            message.at = number, record.offset
            owner.handed[record.offset] = record.id
            owner.open.append(record.offset)
        assert found.next_offset == owner.slot.position == record.offset + 1
        return len(found.records)

    @rule(number=st.integers(0, SLOTS - 1), count=st.integers(1, 5))
    def settle(self, number: int, count: int) -> None:
        """The first that are open: the frontier in the store moves behind them."""
        owner = self.owners[number]
        for offset in owner.open[:count]:
            self.published[owner.handed[offset]].settled = True
            owner.frontier = offset + 1
        del owner.open[:count]

    @rule(number=st.integers(0, SLOTS - 1), most=st.integers(1, 3))
    def remove_a_little(self, number: int, most: int) -> None:
        self.remove(number, most)

    def remove(self, number: int, most: int) -> int:
        with self.bench.database.writing(durable=False) as connection:
            return pool.remove(connection, self.bench.topic.id, number, self.owners[number].frontier, most=most)

    @rule(seed=SEEDS)
    def work(self, seed: int) -> None:
        """Some of all that, so that runs are cut in many ways."""
        draw = random.Random(seed)
        for _ in range(4):
            number = draw.randrange(SLOTS)
            self.fetch(number, draw.randint(1, 20), draw.choice([2000, 10**6, 10**6]))
            self.settle(number, draw.randint(1, 8))
            if draw.random() < 0.7:
                self.remove(number, draw.randint(1, 3))

    @rule(number=st.integers(0, SLOTS - 1))
    def move(self, number: int) -> None:
        """To another member, which knows the frontier only."""
        self.owners[number] = Owner(self.bench, number, self.owners[number].frontier)

    @rule()
    def reboot(self) -> None:
        with self.bench.database.writing(durable=False) as connection:
            pool.after_boot(connection)
        for number in range(SLOTS):
            self.move(number)

    @invariant()
    def each_record_is_in_one_place(self) -> None:
        with self.bench.database.reading() as connection:
            places = _places(connection, self.bench)
            bound = {key: at for key, *at in connection.execute("SELECT key, slot, last FROM log_bound").fetchall()}
        assert len(places) == len({ident for ident, *_ in places}), "no record is in two places"
        claims = {ident: (slot, number) for ident, table, slot, number in places if table == "log_claim"}
        held = {ident for ident, *_ in places}
        for ident, message in self.published.items():
            if ident not in held:
                assert message.settled, f"{ident} is gone and was not settled"
            elif message.at is not None:
                assert claims[ident] == message.at
            else:
                assert not message.settled
        for ident, table, *_ in places:
            assert table != "log_ready" or self.published[ident].due_us <= self.now_us
        for number, owner in enumerate(self.owners):
            passed = {at for slot, at in claims.values() if slot == number and owner.begun <= at < owner.slot.position}
            assert passed <= owner.handed.keys(), "none is passed over"
        if self.ordered:
            self._keys_are_in_order(claims, bound)

    def _keys_are_in_order(self, claims: dict[str, tuple[int, int]], bound: dict[int, list[int]]) -> None:
        where: dict[bytes, set[int]] = {}
        last: dict[tuple[bytes, str | None], tuple[int, int] | None] = {}  # none: it waits in the pool
        for ident, message in self.published.items():  # as accepted
            if message.key is None:
                continue
            place = claims.get(ident)
            if place is not None and place[1] >= self.owners[place[0]].frontier:
                where.setdefault(message.key, set()).add(place[0])
                slot, last_number = bound[crc32(message.key)]
                assert slot == place[0]
                assert last_number >= place[1], "bound until the last is settled"
            if message.due_us == 0 and (place or message.at is None):
                lane = message.key, message.tenant
                before = last.get(lane, place)
                if place is not None:
                    assert before is not None, "claimed before an earlier one of its key"
                    assert before <= place if before[0] == place[0] else before[1] < self.owners[before[0]].frontier
                last[lane] = place
        assert all(len(slots) == 1 for slots in where.values()), "a key has one owner at a time"

    @invariant()
    def counts_agree(self) -> None:
        with self.bench.database.reading() as connection:

            def rows(sql: str) -> list[Any]:
                return connection.execute(sql).fetchall()  # type: ignore[no-any-return]

            left = dict(rows("SELECT batch, records FROM log_left"))
            assert left == dict(rows(f"SELECT batch, sum(count) FROM ({_ALL}) GROUP BY batch"))
            assert sorted(left) == [seq for (seq,) in rows("SELECT seq FROM log_batch ORDER BY seq")]
            assert rows("SELECT sum(records), sum(bytes), sum(stored) FROM log_partition") == rows(
                "SELECT coalesce(sum(count), 0), coalesce(sum(bytes), 0), coalesce(sum(length(payload)), 0)"
                " FROM log_batch"
            )
            assert rows(
                "SELECT count(*) FROM log_claim AS c JOIN log_slot AS s ON s.topic = c.topic AND"
                " s.slot = c.slot WHERE c.number < s.first OR c.number + c.count > s.next"
            ) == [(0,)]
            info = self.bench.engine.topics(["q"])[0]
        assert info.queue is not None
        assert info.queue.ready + (info.queue.scheduled or 0) + (info.queue.claimed or 0) == sum(left.values())

    def teardown(self) -> None:
        try:
            self._settle_all()
        finally:
            self.producer.close()
            self.bench.engine.close()
            self._patch.undo()
            self._folder.cleanup()

    def _settle_all(self) -> None:
        self.now_us += 1_000_000_000
        for number in range(SLOTS):
            self.move(number)
        idle = 0
        while idle < 2:
            came = 0
            for number in range(SLOTS):
                came += self.fetch(number, 1000, 10**9)
                self.settle(number, 1000)
                while self.remove(number, 3) < self.owners[number].frontier:
                    pass
            idle = 0 if came else idle + 1
        assert all(message.settled for message in self.published.values())
        with self.bench.database.reading() as connection:
            for table in ("log_ready", "log_later", "log_claim", "log_bound", "log_left", "log_batch"):
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)], table


_ALL = (
    "SELECT 'log_ready' AS name, -1 AS slot, 0 AS number, batch, place, count FROM log_ready"
    " UNION ALL SELECT 'log_later', -1, 0, batch, place, count FROM log_later"
    " UNION ALL SELECT 'log_claim', slot, number, batch, place, count FROM log_claim"
)


def _places(connection: Connection, bench: Bench) -> list[tuple[str, str, int, int]]:
    """Id, table, slot and number of every record that the queue holds."""
    reader = Reader()
    found: list[tuple[str, str, int, int]] = []
    for name, slot, number, batch, place, count in connection.execute(_ALL).fetchall():
        reader.load(connection, [Run(number, batch, place, count, 0)])
        names = reader.batch(bench.topic, batch).columns.ids[place : place + count]
        assert len(names) == count
        found += [(ident, name, slot, number + after) for after, ident in enumerate(names)]
    return found


class OrderedQueue(Queue):
    ordered = True


TestQueue = Queue.TestCase
TestOrderedQueue = OrderedQueue.TestCase
TestQueue.settings = TestOrderedQueue.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
