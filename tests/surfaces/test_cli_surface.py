"""The command as a whole: fast, one error boundary, the same habits everywhere, and what the documentation says."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runs import environment, orders, settled, started

from settled.cli import exit_code
from settled.cli.text import json_bytes, shown, shown_bytes
from settled.cli.verbs import command

ROOT = Path(__file__).parents[2]
HEAVY = ("apsw", "msgspec", "zstandard", "ruamel", "rich", "psycopg", "ctypes", "asyncio", "settled.app")


def verbs(node: Any = None, path: tuple[str, ...] = ("settled",)) -> list[str]:
    """All verbs that people can type."""
    node = command() if node is None else node
    if not hasattr(node, "commands"):
        return [" ".join(path)]
    return [name for key, each in node.commands.items() for name in verbs(each, (*path, key))]


def test_help_imports_nothing_heavy() -> None:
    code = "import sys\nfrom settled.cli import exit_code\nexit_code(['--help'])\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert "Usage: settled" in done.stdout
    loaded = done.stdout.splitlines()[-1].split()
    assert [name for name in loaded if name.partition(".")[0] in HEAVY or name in HEAVY] == []


def test_every_verb_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in verbs():
        assert exit_code([*verb.split()[1:], "--help"]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"Usage: {verb} "), verb
        assert len(told.splitlines()) > 4, verb


def test_the_documentation_lists_every_verb() -> None:
    documented = re.findall(
        r"^### `(settled [a-z -]+)`", (ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(documented) == sorted(verbs())


@pytest.mark.parametrize("arguments", [("nope",), ("topic", "nope"), ("topic", "ls", "-o", "xml"), ("run",)])
def test_usage_errors_are_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = settled(tmp_path, *arguments, code=2)
    assert ran.out == ""
    assert ran.err


@pytest.mark.parametrize(
    "arguments", [("topic", "ls"), ("status",), ("quarantine", "ls"), ("group", "ls"), ("log", "accept-loss")]
)
def test_verbs_that_look_make_no_files(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = settled(tmp_path, *arguments, code=69)
    assert "hint:" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql", "kafka", "rabbitmq"])
@pytest.mark.parametrize("arguments", [("topic", "ls", "--engine"), ("outbox", "status", "--store")])
def test_an_address_that_is_no_url_is_a_wrong_call(scheme: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    ran = settled(tmp_path, *arguments, f"{scheme}://[::1", code=2)
    assert "cannot be read" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("name", ["a/b.c", "a%2Fb", "a b", "..", "a?b#c", "ümlaut", "n" * 300, "../x"])
def test_names_that_cannot_be_are_refused_by_rule(tmp_path: Path, name: str) -> None:
    started(tmp_path, events_jsonl=orders(1))
    settled(tmp_path, "publish", "events.jsonl")
    for arguments in (("topic", "describe", name), ("topic", "tail", name), ("group", "describe", name)):
        assert "A-Z a-z 0-9" in settled(tmp_path, *arguments, code=2).err
    contract = tmp_path / "bad.yaml"
    contract.write_text(f"name: fine\ntransport: {{topic: '{name}'}}\n", encoding="utf-8")
    assert "bad.yaml:2" in settled(tmp_path, "publish", "events.jsonl", "--contract", contract, code=2).err


def test_names_that_look_alike_share_nothing(tmp_path: Path) -> None:
    for name in ("a.b", "a_b"):
        started(tmp_path, contract_yaml=f"name: {name}\ntransport: {{key: order_id}}\n", events_jsonl=orders(len(name)))
        settled(tmp_path, "publish", "events.jsonl", "--producer", name)
    settled(tmp_path, "publish", "events.jsonl", "--producer", "more")
    found = settled(tmp_path, "topic", "ls").json["topics"]
    assert [(row["topic"], row["records"]) for row in found] == [("a.b", 3), ("a_b", 6)]


def test_an_interrupt_is_130_and_says_how_to_go_on(tmp_path: Path) -> None:
    started(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "settled", "publish", "-", "--producer", "p"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    with process, process.stdin, process.stderr:
        process.stdin.write(orders(300).encode())
        process.stdin.flush()
        while not (tmp_path / "settled-log.db-wal").exists():  # it reads from the pipe by then
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        told = process.stderr.read().decode()
        assert process.wait() == 130
    assert "Traceback" not in told


def test_an_interrupt_while_modules_are_imported_cannot_be_dropped(tmp_path: Path) -> None:
    """A module of the command that is interrupted while it is imported, and that would swallow it."""
    (tmp_path / "typer.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
    )
    path = os.pathsep.join((str(tmp_path), *sys.path))
    asked = [sys.executable, "-m", "settled", "topic", "ls"]
    minded = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whatever the tests were started with
    surroundings = {**environment(), "PYTHONPATH": path}
    done = subprocess.run(asked, cwd=tmp_path, env=surroundings, capture_output=True, preexec_fn=minded)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    started(tmp_path, events_jsonl=orders(3000))
    settled(tmp_path, "publish", "events.jsonl")
    for form in ("table", "json", "jsonl"):
        line = f"{sys.executable} -m settled topic tail orders -n 3000 -o {form} | head -1; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "0"
        assert done.stderr == ""


def test_no_colour_without_a_terminal(tmp_path: Path) -> None:
    started(tmp_path, events_jsonl=orders(1))
    settled(tmp_path, "publish", "events.jsonl")
    assert "\x1b" not in settled(tmp_path, "status", "-o", "table", "--contract", "contract.yaml").out


@pytest.mark.parametrize("variable", ["SETTLED_OUTPUT", ""])
def test_the_form_of_output(tmp_path: Path, variable: str) -> None:
    started(tmp_path, events_jsonl=orders(2))
    settled(tmp_path, "publish", "events.jsonl")
    env = {variable: "jsonl"} if variable else {}
    ran = settled(tmp_path, "topic", "ls", env=env)
    if variable:
        assert [line["kind"] for line in ran.lines] == ["topics"]
    else:
        assert ran.json["kind"] == "topics"


def test_bytes_are_text_only_when_they_are() -> None:
    assert shown_bytes(None) == "(none)"
    assert shown_bytes(b"") == "(empty)"
    assert shown_bytes("grün".encode()) == "grün"
    assert shown_bytes("grün".encode(), "ascii") == "hex:6772c3bc6e"
    assert shown_bytes(b"\x1b[2J") == "hex:1b5b324a"
    assert shown_bytes(bytes(range(40, 80)) + b"\n").startswith("base64:")
    assert shown_bytes(b"hex:00") == "hex:6865783a3030"  # no text is taken for a label
    assert json_bytes(b"\x83") == {"base64": "gw=="}
    assert json_bytes(b"\x1b") == {"text": "\x1b"}
    assert json_bytes(None) is None
    assert shown("a\x1b[2J\u202eb") == "a\\x1b[2J\\u202eb"
