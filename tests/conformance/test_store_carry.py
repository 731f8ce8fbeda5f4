"""What a store knows of failed records goes with them when an engine numbers them anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import connect
from settled.errors import Fenced
from settled.outcome import Attempts, Ending, Outcome
from settled.record import Record
from settled.store import ConsumerSpec, Progress, Store
from settled.testing import postgres

FAILED = Attempts(count=2, first_us=5, due_us=9)
SPEC = ConsumerSpec(consumer="g")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        opened = connect.store(f"sqlite:///{tmp_path}/effects.db")
        opened.migrate()
        yield opened
        opened.close()
        return
    with postgres.database() as url:
        opened = connect.store(url)
        opened.migrate()
        yield opened
        opened.close()


def record(slot: int, number: int, id: str) -> Record:
    return Record("t", slot, number, None, b"", (), id)


def progress(slot: int, epoch: int, frontier: int = 0) -> Progress:
    return Progress(topic="t", partition=slot, epoch=epoch, frontier=frontier)


def failed(store: Store, slot: int, number: int, id: str, attempts: Attempts = FAILED) -> None:
    store.acquire("g", "t", slot, 1, "i", begin=0)
    session = store.session(SPEC)
    session.charge(progress(slot, 1), [(record(slot, number, id), attempts)])
    session.close()


def test_attempts_follow_the_record_to_another_slot(store: Store) -> None:
    failed(store, 0, 100, "e1")
    failed(store, 0, 101, "e2")
    store.acquire("g", "t", 1, 1, "i", begin=0)
    claims = [record(1, 500, "e0"), record(1, 501, "e1")]
    assert store.carry("g", progress(1, 1), claims) == {501: FAILED}
    assert store.attempts("g", "t", 0) == [(101, FAILED)]
    assert store.attempts("g", "t", 1) == [(501, FAILED)]
    assert store.carry("g", progress(1, 1), claims) == {501: FAILED}  # again: it stays where it is
    session = store.session(SPEC)
    session.begin([progress(1, 1)])
    session.settle([Ending(claims[1], Outcome.APPLIED)], [progress(1, 1, 502)])
    session.close()
    assert store.attempts("g", "t", 1) == []


def test_of_several_places_the_most_runs_count(store: Store) -> None:
    failed(store, 0, 100, "e1")
    failed(store, 1, 200, "e1", Attempts(count=3, first_us=5, due_us=9))
    assert store.carry("g", progress(1, 1), [record(1, 300, "e1")])[300].count == 3
    assert (store.attempts("g", "t", 0), len(store.attempts("g", "t", 1))) == ([], 1)


def test_other_consumers_and_topics_are_left_alone(store: Store) -> None:
    failed(store, 0, 100, "e1")
    store.acquire("other", "t", 0, 1, "i", begin=0)
    assert store.carry("other", progress(0, 1), [record(0, 1, "e1")]) == {}
    assert store.attempts("g", "t", 0) == [(100, FAILED)]


def test_a_fenced_owner_carries_nothing(store: Store) -> None:
    failed(store, 0, 100, "e1")
    store.acquire("g", "t", 1, 2, "i", begin=0)
    with pytest.raises(Fenced):
        store.carry("g", progress(1, 1), [record(1, 500, "e1")])
    assert store.attempts("g", "t", 0) == [(100, FAILED)]
