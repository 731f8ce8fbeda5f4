"""Each example runs as it is, twice, and prints what it says it prints: the second run changes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NEEDS = {"django": ("django",), "fastapi": ("fastapi", "httpx", "sqlalchemy", "aiosqlite")}
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*/app.py"))


def test_there_are_examples():
    assert {path.parent.name for path in EXAMPLES} >= {"first", "mercury", "batch", "typed", "outbox", *NEEDS}


@pytest.mark.parametrize("app", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_prints_what_is_expected(app: Path, tmp_path: Path):
    for library in NEEDS.get(app.parent.name, ()) if os.environ.get("CI") != "true" else ():
        pytest.importorskip(library)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-W", "error", str(app)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == (app.parent / "expected.txt").read_text()
