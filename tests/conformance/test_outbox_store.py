"""The outbox in both stores: what a handler publishes, which rows a relay gets, whose word counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from caller_kinds import KINDS
from settled import connect, outbox
from settled.errors import ContractError, InvalidMessage, TooLarge
from settled.outbox_row import BUCKETS
from settled.outcome import Ending, Outcome
from settled.record import Message, Record
from settled.store import ConsumerSpec, Holding, OutboxRow, Position, Progress, RowFailure, Session, Store
from waiting import until

Stores = Callable[[], Store]
ALL = dict.fromkeys(range(BUCKETS), 0)


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """Each call opens the same migrated database."""
    with ExitStack() as opened:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path}/effects.db"
        else:
            from settled.testing.postgres import database

            url = opened.enter_context(database())

        def another() -> Store:
            return opened.enter_context(closing(connect.store(url)))

        another().migrate()
        yield another


@pytest.fixture
def store(stores: Stores) -> Store:
    return stores()


def put(store: Store, *messages: Message) -> None:
    kind = KINDS["apsw" if store.name == "sqlite" else "psycopg"]
    with kind.transaction(store.url) as connection:
        for message in messages:
            outbox.add(connection, message)


def message(ident: str, key: bytes | None = b"k", **fields: object) -> Message:
    return Message(topic="t", key=key, id=ident, **fields)  # type: ignore[arg-type]


def pending(store: Store, rows: int = 1000, bytes: int = 10_000_000, held: dict[int, int] = ALL) -> list[OutboxRow]:
    return store.outbox.pending(held, rows=rows, bytes=bytes)


def ids(rows: Sequence[OutboxRow]) -> list[str]:
    return [row.message.id for row in sorted(rows, key=lambda row: row.seq)]


# What handlers publish.


@pytest.fixture
def session(store: Store) -> Iterator[Session]:
    start = Position(topic="t", partition=0, epoch=1, frontier=0, identity="i")
    store.acquire("g", "t", 0, 1, "i")
    store.settle_from("g", start)
    found = store.session(ConsumerSpec(consumer="g"))
    yield found
    found.close()


def record(offset: int, **fields: object) -> Record:
    return Record(topic="t", partition=0, offset=offset, key=b"k", value=b"", headers=(), id=f"e{offset}", **fields)  # type: ignore[arg-type]


def at(frontier: int) -> Progress:
    return Progress(topic="t", partition=0, epoch=1, frontier=frontier)


def settle(session: Session, *records: Record) -> None:
    session.settle([Ending(each, Outcome.APPLIED) for each in records], [at(records[-1].offset + 1)])


def test_what_is_published_is_there_with_the_effect(store: Store, session: Session) -> None:
    found = record(0, correlation_id="c")
    session.causes(lambda: found)
    session.begin([at(0)])
    first = session.tx.publish({"n": 1}, topic="out", key="k", type="Made", version=3, headers=[("h", None)])
    second = session.tx.publish(b"", topic="out", id="mine", causation_id="other", correlation_id="theirs")
    assert pending(store) == []
    settle(session, found)
    rows = sorted(pending(store), key=lambda row: row.seq)
    assert [row.message.id for row in rows] == [first, second] == ["e0:g:1", "mine"]
    assert rows[0].message == Message(
        topic="out",
        key=b"k",
        value=b'{"n":1}',
        headers=(("h", None),),
        id="e0:g:1",
        type="Made",
        version=3,
        correlation_id="c",
        causation_id="e0",
    )
    assert (rows[1].message.causation_id, rows[1].message.correlation_id) == ("other", "theirs")


def test_another_run_of_the_handler_gives_the_same_ids(store: Store, session: Session) -> None:
    current: list[Record] = [record(0)]
    session.causes(lambda: current[0])
    for _ in range(2):
        session.begin([at(0)])
        current[0] = record(0)
        assert session.tx.publish(topic="out") == "e0:g:1"
        assert session.tx.publish(topic="out") == "e0:g:2"
        session.rollback()
    session.begin([at(0)])
    session.save()
    assert session.tx.publish(topic="out") == "e0:g:1"
    session.undo()
    assert session.tx.publish(topic="out") == "e0:g:1"
    current[0] = record(1)
    assert session.tx.publish(topic="out") == "e1:g:1"
    settle(session, record(0), record(1))
    assert ids(pending(store)) == ["e0:g:1", "e1:g:1"]


def test_an_id_too_long_to_extend_becomes_another_stable_one(session: Session) -> None:
    found = Record(topic="t", partition=0, offset=0, key=None, value=None, headers=(), id="é" * 128)
    session.causes(lambda: found)
    made = []
    for _ in range(2):
        session.begin([at(0)])
        made.append(session.tx.publish(topic="out"))
        session.rollback()
    assert made[0] == made[1]
    assert len(made[0]) == 36


def test_what_is_undone_is_not_published_however_much_it_is(store: Store, session: Session) -> None:
    session.begin([at(0)])
    session.tx.publish(topic="out", id="kept", key="k")
    session.save()
    for number in range(2500):  # more than is held back before it is written
        session.tx.publish(topic="out", id=f"undone-{number}")
    session.undo()
    session.tx.publish(topic="out", id="after", key="k")
    settle(session, record(0))
    assert ids(pending(store)) == ["kept", "after"]


def test_a_bad_message_breaks_nothing(store: Store, session: Session) -> None:
    session.begin([at(0)])
    with pytest.raises(InvalidMessage, match="NUL"):
        session.tx.publish(topic="out", id="e\0")
    with pytest.raises(TooLarge):
        session.tx.publish(b"x" * 1_000_001, topic="out")
    session.tx.publish(topic="out", id="good")
    session.check()
    settle(session, record(0))
    assert ids(pending(store)) == ["good"]


def test_publishing_outside_a_run_is_refused(session: Session) -> None:
    with pytest.raises(ContractError, match="outside a handler's run"):
        session.tx.publish(topic="out")


def test_a_set_up_may_publish(store: Store) -> None:
    store.prepare(lambda tx: tx.publish(topic="out", id="seed"))
    assert ids(pending(store)) == ["seed"]


# Which rows a relay gets.


def test_rows_of_a_key_come_in_order_and_within_the_bounds(store: Store) -> None:
    put(store, *(message(f"{key}-{number}", b"k%d" % key) for number in range(20) for key in range(10)))
    rows = pending(store, rows=64)
    assert 32 <= len(rows) <= 64
    taken: dict[bytes | None, list[str]] = {}
    for row in sorted(rows, key=lambda row: row.seq):
        taken.setdefault(row.message.key, []).append(row.message.id)
    for key, found in taken.items():
        assert key is not None
        assert found == [f"{key[1:].decode()}-{number}" for number in range(len(found))]


def test_one_key_alone_fills_a_batch(store: Store) -> None:
    put(store, *(message(f"e{number}") for number in range(200)))
    assert ids(pending(store, rows=100)) == [f"e{number}" for number in range(100)]


def test_bytes_bound_what_is_read_but_one_row_always_comes(store: Store) -> None:
    put(store, *(message(f"e{number}", value=b"x" * 100_000) for number in range(20)))
    assert len(pending(store, bytes=1)) == 1
    assert 1 <= len(pending(store, bytes=500_000)) <= 6


def test_a_failing_row_holds_back_its_own_key_only(store: Store) -> None:
    put(store, message("a1", b"a"), message("b1", b"b"), message("a2", b"a"), message("n1", None), message("n2", None))
    held = store.outbox.hold("r", lease_s=60).buckets
    rows = {row.message.id: row for row in pending(store)}
    later = store.clock_us() + 3_600_000_000
    assert store.outbox.failed(held, [RowFailure(rows["a1"], "no", later), RowFailure(rows["n1"], "no", later)]) == 2
    assert ids(pending(store)) == ["b1", "n2"]
    put(store, message("a0-other-topic", b"a").__class__(topic="u", key=b"a", id="u1"))
    assert ids(pending(store)) == ["b1", "n2", "u1"]
    status = store.outbox.status()
    assert (status.pending, status.failing, status.parked) == (4, 2, 0)
    assert store.outbox.failed(held, [RowFailure(rows["a1"], "no", 0, parked=True)]) == 1
    assert ids(pending(store)) == ["b1", "a2", "n2", "u1"]
    (parked,) = store.outbox.rows(states=["parked"])
    assert (parked.message.id, parked.error, parked.state) == ("a1", "no", "parked")


def test_a_failing_row_that_is_due_comes_again_before_its_key(store: Store) -> None:
    put(store, message("a1", b"a"), message("a2", b"a"))
    held = store.outbox.hold("r", lease_s=60).buckets
    row = pending(store)[0]
    store.outbox.failed(held, [RowFailure(row, "no", store.clock_us() - 1)])
    again = sorted(pending(store), key=lambda row: row.seq)
    assert [(row.message.id, row.attempts) for row in again] == [("a1", 1), ("a2", 0)]


def test_people_retry_and_park(store: Store) -> None:
    put(store, message("a1"), message("a2"))
    held = store.outbox.hold("r", lease_s=60).buckets
    first, second = sorted(pending(store), key=lambda row: row.seq)
    store.outbox.failed(held, [RowFailure(first, "no", store.clock_us() + 3_600_000_000)])
    assert store.outbox.park([second.seq, 999], reason="asked for") == [second.seq]
    assert pending(store) == []
    assert store.outbox.retry([first.seq, second.seq, 999]) == sorted([first.seq, second.seq])
    assert store.outbox.retry([first.seq]) == []
    assert [(row.message.id, row.attempts) for row in sorted(pending(store), key=lambda row: row.seq)] == [
        ("a1", 0),
        ("a2", 0),
    ]


def test_a_parked_row_is_discarded_for_good_and_its_evidence_stays(store: Store) -> None:
    put(store, message("e1"), message("e2"), message("e3"))
    first, second, third = pending(store)
    store.outbox.failed(hold_all(store), [RowFailure(second, "no such topic", store.clock_us(), parked=True)])
    numbers = [first.seq, second.seq, third.seq, 99]
    assert store.outbox.discard(numbers, reason="never was an order", who="ana@desk") == [second.seq]
    assert store.outbox.discard(numbers, reason="again", who="bob@desk") == []
    (found,) = store.outbox.rows(states=["discarded"])
    assert (found.seq, found.message.id, found.message.key) == (second.seq, "e2", b"k")
    assert found.error == "discarded by ana@desk: never was an order; before: no such topic"
    assert [row.message.id for row in pending(store)] == ["e1", "e3"]
    status = store.outbox.status()
    assert (status.pending, status.parked, status.discarded) == (2, 0, 1)
    assert store.outbox.retry(numbers) == store.outbox.park([second.seq], reason="x") == []


def hold_all(store: Store) -> dict[int, int]:
    return store.outbox.hold("one", lease_s=60).buckets


def test_lists_for_people_leave_values_out(store: Store) -> None:
    put(store, message("a1", value=b"x" * 5000))
    (row,) = store.outbox.rows()
    assert (row.message.value, row.value_bytes) == (None, 5000)
    with pytest.raises(ContractError, match="not a state"):
        store.outbox.rows(states=["sent"])


def test_a_look_shows_depth_and_age(store: Store) -> None:
    assert store.outbox.status().oldest_age_s is None
    put(store, message("a1"))
    store.outbox.hold("r", lease_s=60, why="the log is down")
    found = store.outbox.status()
    assert found.pending == sum(found.by_bucket.values()) == 1
    assert 0 <= (found.oldest_age_s or 0) < 60
    assert [(each.relay, each.why, len(each.buckets)) for each in found.relays] == [("r", "the log is down", BUCKETS)]


# Whose word counts.


def test_living_relays_share_the_buckets(stores: Stores) -> None:
    one, two = stores().outbox, stores().outbox
    assert len(one.hold("one", lease_s=60).buckets) == BUCKETS
    assert two.hold("two", lease_s=60) == Holding({}, BUCKETS // 2)
    mine = one.hold("one", lease_s=60)
    theirs = two.hold("two", lease_s=60)
    assert (len(mine.buckets), len(theirs.buckets)) == (BUCKETS // 2, BUCKETS // 2)
    assert (mine.awaited, theirs.awaited) == (0, 0)
    assert not set(mine.buckets) & set(theirs.buckets)
    assert one.hold("three", lease_s=60) == Holding({}, 4)  # of its six: the two others keep six each
    two.leave("two")
    assert len(one.hold("one", lease_s=60, keep=True).buckets) == BUCKETS // 2
    assert len(one.hold("one", lease_s=60).buckets) == BUCKETS // 2
    one.leave("three")
    assert len(one.hold("one", lease_s=60).buckets) == BUCKETS


def test_relays_that_come_at_once_hold_no_bucket_twice(stores: Stores) -> None:
    """The first time, too, when nobody has held any."""
    boxes = [stores().outbox for _ in range(4)]
    with ThreadPoolExecutor(len(boxes)) as threads:
        for turn in range(10):
            together = threading.Barrier(len(boxes))

            def come(number: int, turn: int = turn, together: threading.Barrier = together) -> Holding:
                together.wait()
                return boxes[number].hold(f"{turn}-{number}", lease_s=60)

            found = list(threads.map(come, range(len(boxes))))
            taken = [bucket for each in found for bucket in each.buckets]
            assert sorted(taken) == list(range(BUCKETS))
            list(threads.map(lambda number, turn=turn: boxes[number].leave(f"{turn}-{number}"), range(len(boxes))))


def test_a_look_waits_for_nobody_who_writes(store: Store) -> None:
    put(store, message("a1"))
    kind = KINDS["apsw" if store.name == "sqlite" else "psycopg"]
    with kind.transaction(store.url) as connection:
        outbox.add(connection, message("a2"))
        assert store.outbox.status().pending == 1
    assert store.outbox.status().pending == 2


def test_a_silent_relay_is_followed_and_its_word_no_longer_counts(store: Store, stores: Stores) -> None:
    put(store, message("a1"), message("a2"))
    old = store.outbox.hold("old", lease_s=0.05).buckets
    rows = sorted(store.outbox.pending(old, rows=10, bytes=1000), key=lambda row: row.seq)
    successor = stores().outbox
    new = until(lambda: successor.hold("new", lease_s=60).buckets)
    assert set(new) == set(old)
    assert store.outbox.sent(old, rows) == 0
    assert store.outbox.failed(old, [RowFailure(rows[0], "no", 0, parked=True)]) == 0
    assert ids(successor.pending(new, rows=10, bytes=1000)) == ["a1", "a2"]
    assert successor.sent(new, rows[:1]) == 1
    assert ids(successor.pending(new, rows=10, bytes=1000)) == ["a2"]


def test_waiting_ends_when_rows_come(store: Store) -> None:
    found = threading.Event()
    box = store.outbox
    held = box.hold("r", lease_s=60).buckets
    box.wait("r", 0)  # has said that it waits: what is inserted from now on wakes it

    def relay() -> None:
        while not box.pending(held, rows=10, bytes=1000):
            box.wait("r", 60)
        found.set()

    waiting = threading.Thread(target=relay)
    waiting.start()
    put(store, message("a1"))
    assert found.wait(50)
    waiting.join()


def test_waiting_ends_when_it_is_asked_to(store: Store) -> None:
    box = store.outbox
    box.hold("r", lease_s=60)
    box.pending(ALL, rows=1, bytes=1)
    box.wait("r", 0.01)
    waiting = threading.Thread(target=lambda: [box.wait("r", 60) for _ in range(2)])
    waiting.start()
    until(lambda: box.wakeup() or not waiting.is_alive())
    waiting.join()
