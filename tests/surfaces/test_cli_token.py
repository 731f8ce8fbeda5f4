"""settled token check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import settled

from settled.engine import Receipt
from settled.tokens import token_of, token_of_event


def test_it_says_what_a_token_names(tmp_path: Path) -> None:
    told = json.loads(settled(tmp_path, "token", "check", token_of(Receipt("comments", 3, 41, "e\x1b[31m1"), "i")).out)
    assert {name: told[name] for name in ("kind", "topic", "event_id", "partition", "offset")} == {
        "kind": "token",
        "topic": "comments",
        "event_id": "e\x1b[31m1",
        "partition": 3,
        "offset": 41,
    }
    table = settled(tmp_path, "token", "check", token_of_event("comments", "e\x1b[31m1"), "-o", "table").out
    assert "comments" in table
    assert "\x1b[31m" not in table


@pytest.mark.parametrize("text", ["", "x", "AQAIY29tbWVudHM", "../../etc/passwd", "é" * 2000])
def test_what_is_no_token_exits_2(tmp_path: Path, text: str) -> None:
    ran = settled(tmp_path, "token", "check", text, code=2)
    assert ran.out == ""
    assert "no token" in ran.err
    assert "hint" in ran.err
