"""The promise itself: processes die in every window, and nothing is lost, doubled or out of order."""

from pathlib import Path

import pytest

from settled.drills.drill import Drill, reachable, run
from settled.drills.report import Row
from settled.drills.world import QUICK

KILLS = 10
EVERY = reachable("effectively-once")
PARTS = [tuple(EVERY[start::4]) for start in range(4)]
AT_MOST_ONCE = {**QUICK, "delivery": {**QUICK["delivery"], "mode": "at-most-once"}}
AT_LEAST_ONCE = {**QUICK, "delivery": {**QUICK["delivery"], "mode": "at-least-once"}}


def told(row: Row) -> str:
    return f"{row.window}: {row.note} {row.violations[:5]} kept in {row.kept}"


@pytest.mark.parametrize("windows", PARTS, ids=[" ".join(part) for part in PARTS])
def test_nothing_is_lost_doubled_or_out_of_order(windows: tuple[str, ...], tmp_path: Path) -> None:
    report = run(Drill(windows=windows, kills=KILLS, folder=tmp_path))
    for row in report.windows:
        assert not row.violations, f"seed {report.seed}: {told(row)}"
        assert row.kills >= KILLS, told(row)
        assert (row.lost, row.doubled, row.order_violations, row.other) == (0, 0, 0, 0)
    assert report.verdict == "pass"


def test_all_windows_are_drilled() -> None:
    assert len(EVERY) * KILLS >= 200
    assert sorted(name for part in PARTS for name in part) == sorted(EVERY)


@pytest.mark.parametrize("name", ["stall", "rolling-deploy", "poison-burst", "hot-key"])
def test_a_drill_by_name_passes(name: str, tmp_path: Path) -> None:
    report = run(Drill(named=(name,), kills=6, folder=tmp_path))
    (row,) = report.windows
    assert not row.violations, f"seed {report.seed}: {told(row)}"
    assert row.kills >= 3, told(row)


@pytest.mark.parametrize("ordering", ["key", "none"])
@pytest.mark.parametrize(
    "windows", [("random", "marks-written", "effect-committed"), ("claim-committed", "fence-written")]
)
def test_a_queue_loses_and_doubles_nothing(windows: tuple[str, ...], ordering: str, tmp_path: Path) -> None:
    changes = {**QUICK, "transport": {"form": "queue"}, "delivery": {**QUICK["delivery"], "ordering": ordering}}
    report = run(Drill(windows=windows, kills=6, changes=changes, folder=tmp_path))
    for row in report.windows:
        assert not row.violations, f"seed {report.seed}: {told(row)}"
        assert row.kills >= 6, told(row)


@pytest.mark.parametrize(
    ("changes", "window"),
    [(AT_LEAST_ONCE, "marks-written"), (AT_LEAST_ONCE, "random"), (AT_MOST_ONCE, "effect-committed")],
)
def test_other_modes_keep_what_they_promise(changes: dict[str, object], window: str, tmp_path: Path) -> None:
    report = run(Drill(windows=(window,), kills=4, changes=changes, folder=tmp_path))
    (row,) = report.windows
    assert not row.violations, f"seed {report.seed}: {told(row)}"
    assert row.kills >= 4


def test_at_most_once_loses_what_had_not_run_and_the_drill_says_so(tmp_path: Path) -> None:
    report = run(Drill(windows=("frontier-before-effect",), kills=4, changes=AT_MOST_ONCE, folder=tmp_path))
    (row,) = report.windows
    assert report.verdict == "pass"
    assert row.doubled == 0
    assert row.published > row.effects  # lost, as the mode says
