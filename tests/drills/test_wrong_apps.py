"""Applications that look right and are not: the drill finds what they lose or double."""

from pathlib import Path

import pytest

from settled.drills.drill import Drill, run
from settled.drills.world import QUICK

APPS = Path(__file__).parent / "apps"
ONE_BY_ONE = {**QUICK, "delivery": {**QUICK["delivery"], "group_size": {"records": 1}}}
CHECK = "SELECT event_id FROM note ORDER BY rowid"


@pytest.mark.parametrize(
    ("app", "window", "kind"),
    [
        ("outside.py", "effect-made", "doubled"),
        ("memory_inbox.py", "marks-written", "doubled"),
        ("commit_first.py", "effect-made", "lost"),
    ],
)
def test_a_wrong_application_is_found(app: str, window: str, kind: str, tmp_path: Path) -> None:
    asked = Drill(
        app=str(APPS / app),
        windows=(window,),
        kills=3,
        check=CHECK,
        changes=ONE_BY_ONE,
        seed=3,
        folder=tmp_path,
    )
    report = run(asked)
    assert report.verdict == "fail"
    assert kind in {violation.kind for violation in report.windows[0].violations}
    assert Path(report.windows[0].kept, "effects.db").exists()


def test_a_right_application_passes_its_own_check(tmp_path: Path) -> None:
    report = run(
        Drill(
            app=str(APPS / "flaky.py"),
            windows=("effect-made", "marks-written"),
            kills=2,
            check=CHECK,
            seed=3,
            folder=tmp_path,
        )
    )
    assert report.verdict == "pass", report.windows
    assert [row.kills for row in report.windows] == [2, 2]
