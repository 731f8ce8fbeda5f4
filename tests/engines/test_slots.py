"""Claims on the embedded log, step by step: what one member does between two steps of another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from claims import Bench, ids

from settled.engine import Stopped
from settled.engines.sqlite import pool
from settled.engines.sqlite.database import Connection
from settled.errors import Damaged


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.engine.close()


def test_what_another_member_puts_into_a_slot_is_not_passed_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a look at the slot and the claim another member claims, and finds work of this slot's key."""
    bench.publish(("a1", b"a"))
    assert ids(bench.fetch(0)) == ["a1"]
    looked = pool.waiting

    def meanwhile(connection: Connection, topic: int) -> bool:
        found = looked(connection, topic)
        monkeypatch.undo()
        bench.publish(("a2", b"a"), ("b1", b"b"))
        assert ids(bench.fetch(1)) == ["b1"]
        bench.publish(("a3", b"a"), ("c1", b"c"))
        return found or True

    monkeypatch.setattr(pool, "waiting", meanwhile)
    assert ids(bench.fetch(0)) == ["a2", "a3", "c1"]


def test_claims_are_taken_up_in_the_middle_of_a_run(bench: Bench) -> None:
    bench.publish(*[(f"e{n}", b"k") for n in range(50)])
    assert ids(bench.fetch(0, 20)) == [f"e{n}" for n in range(20)]
    for first in (0, 7, 19, 20):
        bench.slots[0] = bench.slot(0, first)
        found = bench.fetch(0, 5)
        last = min(first + 5, 20) if first < 20 else 25  # new claims only when nothing stands there any more
        assert ids(found) == [f"e{n}" for n in range(first, last)]
        assert [record.offset for record in found] == list(range(first, last))


@pytest.mark.parametrize("steps", [[50], [1, 2, 30, 49, 50], list(range(1, 51))])
def test_what_is_settled_is_removed_up_to_the_very_record(bench: Bench, steps: list[int]) -> None:
    bench.publish(*[(f"e{n}", b"k") for n in range(50)])
    assert len(bench.fetch(0)) == 50
    for frontier in steps:
        with bench.database.writing(durable=False) as connection:
            assert pool.remove(connection, bench.topic.id, 0, frontier, most=2) == frontier
        assert bench.left() == 50 - frontier
        again = bench.slot(0, frontier)
        bench.slots[0] = again
        assert ids(bench.fetch(0)) == [f"e{n}" for n in range(frontier, 50)]
    with bench.database.reading() as connection:
        for table in ("log_claim", "log_bound", "log_left", "log_batch"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]


def test_who_does_not_own_the_slot_claims_nothing(bench: Bench) -> None:
    bench.publish(("e1", None))
    assert bench.fetch(0, owns=False) == []
    assert ids(bench.fetch(1)) == ["e1"]


def test_a_batch_row_that_is_used_again_is_read_again(bench: Bench) -> None:
    for number in range(3):
        bench.publish((f"e{number}", b"k"))
        assert ids(bench.fetch(0)) == [f"e{number}"]
        with bench.database.writing(durable=False) as connection:
            pool.remove(connection, bench.topic.id, 0, number + 1, most=100)


def test_bytes_bound_what_is_handed_out(bench: Bench) -> None:
    bench.publish(*[(f"e{n}", None) for n in range(40)])
    size = bench.fetch(0, 1)[0].size
    assert len(bench.fetch(0, size=5 * size)) == 5
    assert len(bench.fetch(0, size=1)) == 1


def test_after_a_reboot_claim_numbers_are_not_given_again(bench: Bench) -> None:
    bench.publish(("e1", None), ("e2", None))
    assert bench.fetch(0, 1)[0].offset == 0
    with bench.database.writing(durable=True) as connection:
        pool.after_boot(connection)
    [second] = bench.fetch(0)
    assert second.id == "e2"
    assert second.offset >= pool.AFTER_BOOT


@pytest.mark.parametrize(
    "damage",
    ["UPDATE log_batch SET payload = CAST(x'00' || substr(payload, 2) AS BLOB)", "DELETE FROM log_batch"],
    ids=["changed", "missing"],
)
def test_a_damaged_batch_stops_the_slot_that_claimed_it_and_no_other(bench: Bench, damage: str) -> None:
    bench.publish(("bad", b"a"))
    bench.publish(("good", b"b"))
    with bench.database.writing(durable=True) as connection:
        connection.execute(f"{damage} WHERE seq = (SELECT min(seq) FROM log_batch)")
    found, _ = bench.slots[0].fetch(bench.database, lambda _: True, ordered=True, records=1, size=1)
    assert isinstance(found, Stopped)
    assert isinstance(found.error, Damaged)
    assert ids(bench.fetch(1)) == ["good"]


def test_a_look_at_a_slot_bears_that_it_is_emptied_meanwhile(bench: Bench) -> None:
    for number in range(30):
        bench.publish((f"e{number}", b"k"))
    assert len(bench.fetch(0)) == 30
    looks: list[int] = []

    def look() -> None:
        while not looks or looks[-1]:
            looks.append(len(bench.engine.read("q", 0, 0, records=100)))

    looking = threading.Thread(target=look)
    looking.start()
    for frontier in range(1, 31):
        with bench.database.writing(durable=False) as connection:
            pool.remove(connection, bench.topic.id, 0, frontier, most=100)
    looking.join(60)
    assert looks[-1] == 0
    assert looks == sorted(looks, reverse=True)
