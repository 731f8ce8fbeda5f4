"""Relays and calls outside, drilled in each of their windows on both stores; and mutants that the drills must find."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from outside_mutants import MUTANTS

from settled.drills import history
from settled.drills.drill import Drill, run
from settled.drills.outside import CALL_WINDOWS, LOG_WINDOWS, RELAY_WINDOWS
from settled.drills.rounds import JOURNEY
from settled.testing.postgres import database

HERE = Path(__file__).parent
KILLS = 12
FOUND = {  # mutant -> drill, store, how it is found
    "relay_marks_before_publishing": ("relay", "sqlite", {"lost"}),
    "relay_gives_ids_of_its_own": ("relay", "sqlite", {"phantom"}),
    "relay_goes_by_the_highest_number": ("relay", "postgresql", {"lost"}),
    "external_call_has_a_fresh_key": ("external-call", "sqlite", {"rekeyed"}),
    "external_result_is_not_kept": ("external-call", "sqlite", {"outcome-changed"}),
}


@pytest.fixture
def stores() -> Iterator[dict[str, str]]:
    with ExitStack() as opened:

        class Made(dict[str, str]):
            def __missing__(self, name: str) -> str:
                return "" if name == "sqlite" else opened.enter_context(database())

        yield Made()


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
@pytest.mark.parametrize("name", ["relay", "external-call"])
def test_nothing_is_lost_or_doubled_inside_the_stated_boundary(
    name: str, store: str, stores: dict[str, str], tmp_path: Path
) -> None:
    report = run(Drill(named=(name,), kills=KILLS, store=stores[store], folder=tmp_path))
    (row,) = report.windows
    assert not row.violations, f"seed {report.seed}: {row.violations[:5]}"
    assert row.kills >= KILLS, row.note
    events = history.read(tmp_path / name)
    died = {event.window for event in events if event.what == "death"}
    logged = [event.id for event in events if event.what == "log"]
    if name == "relay":
        assert died == {*RELAY_WINDOWS, *LOG_WINDOWS}
        assert len(logged) > len(set(logged))  # rows were published again, under their ids
        held = sum(event.what == "publish" and event.step == "ok" for event in events)
        assert held == row.published == row.effects
    else:
        assert died == {*CALL_WINDOWS}
        calls = [event for event in events if event.what == "call"]
        assert len(calls) > len({event.id for event in calls}) == len({event.note for event in calls})


def test_the_drills_know_every_window_of_their_journeys() -> None:
    assert {name for name, journey in JOURNEY.items() if journey == "relay"} == {*RELAY_WINDOWS}
    assert {name for name, journey in JOURNEY.items() if journey == "external"} == {*CALL_WINDOWS[:-1]}
    assert {name for name, journey in JOURNEY.items() if journey == "publish"} == {*LOG_WINDOWS}


def test_there_is_a_drill_for_each_mutant() -> None:
    assert FOUND.keys() == MUTANTS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_mutant_is_found(name: str, stores: dict[str, str], tmp_path: Path) -> None:
    drill, store, kinds = FOUND[name]
    command = (sys.executable, str(HERE / "outside_mutants.py"), name)
    report = run(
        Drill(named=(drill,), kills=8, seed=11, store=stores[store], settle_s=3.0, command=command, folder=tmp_path)
    )
    assert report.verdict == "fail"
    found = {violation.kind for row in report.windows for violation in row.violations}
    assert found & kinds, found
