"""The inbox in handlers of other frameworks: each example runs as it is, twice, and makes each invoice once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "inbox"
NEEDS = {"celery": "celery", "dramatiq": "dramatiq", "faststream": "faststream"}


def test_there_is_an_example_for_each_framework() -> None:
    assert {path.name.removesuffix("_handler.py") for path in FOLDER.glob("*_handler.py")} == set(NEEDS)


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_handler_makes_each_invoice_once(name: str, tmp_path: Path) -> None:
    if os.environ.get("CI") != "true":
        pytest.importorskip(NEEDS[name])
    for _ in range(2):
        script = str(FOLDER / f"{name}_handler.py")
        ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout) == (0, (FOLDER / "expected.txt").read_text()), ran.stderr
