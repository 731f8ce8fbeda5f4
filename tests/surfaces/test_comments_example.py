"""The page with comments: with the token its author always sees the comment that was just posted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "comments"


def test_no_page_is_stale_with_the_token(tmp_path: Path) -> None:
    if os.environ.get("CI") != "true":
        pytest.importorskip("fastapi")
        pytest.importorskip("multipart")
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, str(FOLDER / "staleness.py"), "20"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ran.returncode == 0, ran.stderr
        without, token, garbled = ran.stdout.splitlines()
        assert re.match(r"with the token: 0 of 20 pages stale", token)
        stale = re.match(r"without the token: (\d+) of 20 pages stale", without)
        assert stale
        assert int(stale[1]) > 0
        assert garbled.startswith("a garbled token: 400")
