"""The README does what it shows: every code block is run, in order, in one folder; every test it names is there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


class Block(NamedTuple):
    language: str
    file: str
    body: str


BLOCKS = [
    Block(*found) for found in re.findall(r"^```(\w*)(?: file=(\S+))?\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
]


def run(folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_code_block_runs(tmp_path: Path):
    printed = ""
    for block in BLOCKS:
        match block.language:
            case "python" if block.file:
                (tmp_path / block.file).write_text(block.body)
                run(tmp_path, sys.executable, "-W", "error", "-c", f"import ast; ast.parse({block.body!r})")
            case "python":
                printed = run(tmp_path, sys.executable, "-W", "error", "-c", block.body)
            case "sh":
                run(tmp_path, "sh", "-eu", "-c", block.body)
            case "text":
                assert printed == block.body
            case other:
                pytest.fail(f"a code block in {other!r}: say here how it is run")
    assert {block.language for block in BLOCKS} == {"python", "sh", "text"}


def test_every_file_that_is_shown_is_used_by_a_command():
    commands = "".join(block.body for block in BLOCKS)
    for block in BLOCKS:
        if block.file:
            assert block.file in commands or f"from {Path(block.file).stem} import" in commands


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not there")
def test_the_make_targets_are_there():
    targets = set(re.findall(r"`make (\w+)`", README))
    assert targets >= {"demo", "test"}
    for target in targets:
        run(ROOT, "make", "--dry-run", target)


def test_each_promise_names_a_test_that_is_there():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", README)
    assert len(named) >= 6
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
