"""The drill must bite: it finds each seeded mutant of settled, and the same drill passes without one."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mutants import MUTANTS

from settled.drills.drill import Drill, run
from settled.drills.world import QUICK

HERE = Path(__file__).parent
FLAKY = str(HERE / "apps" / "flaky.py")
NOTES = "SELECT event_id FROM note ORDER BY rowid"


class Found(msgspec.Struct, frozen=True):
    """How a mutant is found: by which drill, and as what (one of these kinds)."""

    drill: Drill
    kinds: frozenset[str]


def by(*kinds: str, kills: int = 3, changes: dict[str, Any] | None = None, **fields: Any) -> Found:
    stated = {**QUICK, **{name: {**QUICK.get(name, {}), **value} for name, value in (changes or {}).items()}}
    return Found(Drill(kills=kills, seed=7, settle_s=3.0, changes=stated, **fields), frozenset(kinds))


FOUND = {
    "acknowledges_before_the_commit": by("lost", "unlogged", "offset-reuse", windows=("append-written",)),
    "frontier_before_effect": by("lost", "frontier-ahead", windows=("effect-made",)),
    "effect_and_marks_in_two_transactions": by("doubled", "unmarked", windows=("frontier-before-effect",)),
    "fence_is_not_checked_in_the_transaction": by(
        "stale-epoch", "doubled", named=("stall",), kills=14, changes={"delivery": {"mode": "at-least-once"}}
    ),
    "quarantine_drops_the_record": by("entry-lost", windows=("decisions-written",), kills=1),
    "redrive_ends_in_a_transaction_of_its_own": by("doubled", windows=("redrive-written",), kills=1),
    "takeover_starts_at_the_latest_record": by("lost", "stuck", windows=("unit-begun",)),
    "engine_is_told_more_than_is_settled": by("commit-leads", windows=("effect-committed",)),
    "failed_record_does_not_hold_its_key": by("order", app=FLAKY, windows=("effect-committed",)),
    "frontier_skips_holes": by("lost", "frontier-ahead", app=FLAKY, windows=("partition-unreleased",)),
    "shutdown_settles_what_never_ran": by("lost", "frontier-ahead", named=("rolling-deploy",), kills=4),
    "marks_are_pruned_before_redelivery_ends": by("doubled", "unmarked", windows=("append-committed",)),
    "inbox_is_not_asked": by("doubled", windows=("append-committed",)),
    "frontier_is_where_fetching_stands": by("lost", "frontier-ahead", windows=("effect-committed",)),
    "failed_runs_are_not_undone": by("doubled", app=FLAKY, windows=("partition-unreleased",), check=NOTES, kills=1),
    "leases_never_run_out": by("stuck", windows=("unit-begun",), kills=1),
    "groups_run_in_reverse": by("order", windows=("effect-made",), kills=1),
}


def test_there_is_a_drill_for_each_mutant() -> None:
    assert FOUND.keys() == MUTANTS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_mutant_is_found(name: str, tmp_path: Path) -> None:
    found = FOUND[name]
    command = (sys.executable, str(HERE / "mutant_worker.py"), name)
    report = run(msgspec.structs.replace(found.drill, command=command, folder=tmp_path))
    kinds = {violation.kind for row in report.windows for violation in row.violations}
    assert report.verdict == "fail"
    assert kinds & found.kinds, kinds


@pytest.mark.parametrize("name", ["failed_runs_are_not_undone", "fence_is_not_checked_in_the_transaction"])
def test_without_the_mutant_the_same_drill_passes(name: str, tmp_path: Path) -> None:
    report = run(msgspec.structs.replace(FOUND[name].drill, settle_s=12.0, folder=tmp_path))
    assert report.verdict == "pass", report.windows
