"""The plug-in: a drill as a test, in a pytest of its own."""

import subprocess
import sys
from pathlib import Path

APPS = Path(__file__).parent / "apps"
TESTS = f"""
def test_survives(settled_drill):
    report = settled_drill(windows=["effect-made"], kills=1, seed=5)
    assert report.windows[0].lost == 0

def test_is_found(settled_drill):
    settled_drill("{APPS / "outside.py"}", windows=["effect-made"], kills=2, seed=5,
                  check="SELECT event_id FROM note ORDER BY rowid", changes=ONE_BY_ONE)

def test_was_never_tried(settled_drill):
    settled_drill(windows=["frontier-before-effect"], kills=1, seed=5, settle_s=1.0)

from settled.drills.world import QUICK
ONE_BY_ONE = {{**QUICK, "delivery": {{**QUICK["delivery"], "group_size": {{"records": 1}}}}}}
"""


def test_a_drill_is_a_test(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False
    )
    assert "1 passed" in found.stdout, found.stdout + found.stderr
    assert "2 failed" in found.stdout, found.stdout
    assert "the drill failed; --seed 5 repeats its plan" in found.stdout
    assert "doubled" in found.stdout
    assert "nothing died in frontier-before-effect, so nothing was tried" in found.stdout
