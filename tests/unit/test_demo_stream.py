"""The demo's stream has the shape that it announces, and its verdict finds what goes wrong."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from settled.contract.load import load
from settled.drills.demo import stream
from settled.drills.demo.handed import SUFFIX, _lines, count
from settled.drills.demo.verdict import judge
from settled.record import Message, Record

TOPIC = "fulfilment"


def message(order: str, version: int) -> Message:
    return Message(topic=TOPIC, key=order.encode(), id=f"{order}/{version}", version=version)


def test_the_same_seed_gives_the_same_stream_and_another_gives_another():
    once, again, other = (stream.generate(2_000, seed=seed, topic=TOPIC) for seed in (7, 7, 8))
    assert once == again
    assert once != other


def test_the_stream_has_the_shares_that_it_announces():
    made = stream.generate(20_000, seed=1, topic=TOPIC)
    foretold = stream.foretell(made)
    assert len(made) == foretold.published == 20_000
    assert foretold.duplicates == 200
    assert len(foretold.stale) == 200
    tenants = Counter(message.headers[0][1] for message in made)
    share, (biggest, count_of_biggest) = 20_000, tenants.most_common(1)[0]
    assert biggest == stream.BIG_TENANT.encode()
    assert 0.33 < count_of_biggest / share < 0.37
    assert {message.type for message in made} == {"requested", "changed", "cancelled", "shipped"}


def test_copies_are_unchanged_and_come_at_a_distance():
    made = stream.generate(5_000, seed=3, topic=TOPIC)
    first: dict[str, tuple[int, Message]] = {}
    distances = []
    for place, each in enumerate(made):
        if each.id in first:
            assert each == first[each.id][1]
            distances.append(place - first[each.id][0])
        first.setdefault(each.id, (place, each))
    assert len(distances) == 50
    assert max(distances) > 100


@settings(max_examples=25, deadline=None)
@given(st.integers(100, 1_500), st.integers(0, 2**32))
def test_an_order_is_requested_again_only_after_it_was_cancelled(records: int, seed: int):
    lives: dict[str, dict[int, str]] = {}
    for each in stream.generate(records, seed=seed, topic=TOPIC):
        payload = msgspec.json.decode(each.value or b"", type=stream.Payload)
        assert payload.order_id.encode() == each.key
        assert payload.reservation_version == each.version
        lives.setdefault(payload.order_id, {})[each.version or 0] = each.type or ""
    for life in lives.values():
        assert sorted(life) == list(range(1, len(life) + 1))
        assert life[1] == "requested"
        for version in range(2, len(life) + 1):
            assert life[version] in stream.FOLLOWS[life[version - 1]]


def test_what_is_foretold_of_a_late_and_a_second_message():
    made = [message("a", 2), message("b", 1), message("a", 1), message("a", 2), message("a", 3), message("a", 1)]
    foretold = stream.foretell(made)
    assert foretold.applied == ["a/2", "b/1", "a/3"]
    assert foretold.stale == ["a/1"]
    assert foretold.duplicates == 2


FORETOLD = stream.foretell([message("a", 1), message("a", 3), message("a", 2), message("b", 1), message("b", 1)])
A1, A2, A3, B1 = ("a", 1, "a/1"), ("a", 2, "a/2"), ("a", 3, "a/3"), ("b", 1, "b/1")


def test_the_verdict_on_what_should_be_is_good():
    found = judge(FORETOLD, [A1, B1, A3], handed=(7, 2), seconds=2.0)
    assert found.good
    assert (found.published, found.applied, found.duplicates, found.stale) == (5, 3, 1, 1)
    assert (found.delivered, found.redelivered, found.effects_per_second) == (7, 2, 1.5)


@pytest.mark.parametrize(
    ("rows", "lost", "doubled", "order_violations"),
    [
        pytest.param([A1, A3], 1, 0, 0, id="a lost effect"),
        pytest.param([A1, A3, B1, B1], 0, 1, 0, id="a doubled effect"),
        pytest.param([A3, A1, B1], 0, 0, 1, id="effects in the wrong order"),
        pytest.param([A1, A3, A2, B1], 0, 0, 1, id="a stale message applied"),
        pytest.param([], 3, 0, 0, id="nothing at all"),
    ],
)
def test_the_verdict_finds(rows: list[tuple[str, int, str]], lost: int, doubled: int, order_violations: int):
    found = judge(FORETOLD, rows, handed=(5, 0), seconds=1.0)
    assert not found.good
    assert (found.lost, found.doubled, found.order_violations) == (lost, doubled, order_violations)


def test_what_was_handed_out_is_counted_over_all_ledgers(tmp_path: Path):
    def record(offset: int) -> Record:
        return Record(TOPIC, 3, offset, b"k", b"v", (), f"id-{offset}")

    first, second = [record(n) for n in (5, 6, 7, 9)], [record(n) for n in (7, 8, 9, 10)]
    (tmp_path / f"w1{SUFFIX}").write_text("".join(_lines(first)))
    (tmp_path / f"w2{SUFFIX}").write_text("".join(_lines(second)) + "4 7 7\n")
    assert count(tmp_path) == (9, 2)


def test_the_demo_runs_the_contract_of_the_example():
    root = Path(__file__).parents[2]
    assert load(root / "src/settled/drills/demo/contract.yaml") == load(root / "examples/mercury/contract.yaml")
    assert (root / "src/settled/drills/demo/contract.yaml").read_bytes() == (
        root / "examples/mercury/contract.yaml"
    ).read_bytes()
