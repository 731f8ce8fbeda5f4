"""A queue by commands: publish with a time, a priority and a tenant, look at it, work it off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surfaces.cli_runs import Ran, settled

CONTRACT = """
settled: 1
name: RenderImage
transport: {form: queue, topic: render, partitions: 2, key: image}
delivery: {ordering: none}
poison: {owner: images}
"""
APP = """
from settled import App

app = App("jobs.yaml")

@app.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS done (image TEXT)")

@app.handler
def render(tx, record):
    tx.execute("INSERT INTO done VALUES (?)", (record.key.decode(),))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "jobs.yaml").write_text(CONTRACT)
    (tmp_path / "jobs.py").write_text(APP)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"image": f"i-{n}"}) + "\n" for n in range(5)))
    return tmp_path


def publish(place: Path, *options: str, code: int = 0) -> Ran:
    return settled(place, "publish", "a.jsonl", "--contract", "jobs.yaml", "-q", *options, code=code)


def status(place: Path) -> Any:
    [found] = settled(place, "status", "--contract", "jobs.py", "--output", "json").json["consumers"]
    return found


def test_what_is_published_is_ready_or_scheduled_and_then_settled(place: Path) -> None:
    publish(place, "--priority", "9", "--tenant", "acme")
    publish(place, "--not-before", "2999-01-01T00:00Z", "--producer", "later", "--id", "{image}-later")
    before = status(place)
    assert (before["state"], before["lag_records"]) == ("never-started", 5)
    assert (before["queues"][0]["ready"], before["queues"][0]["scheduled"]) == (5, 5)
    assert before["queues"][0]["oldest_age_s"] >= 0
    settled(place, "run", "jobs.py", "--mode", "drain")
    after = status(place)
    assert (after["state"], after["lag_records"], after["outcomes"]) == ("settled", 0, {"applied": 5})
    described = settled(place, "topic", "describe", "render", "--output", "json").json
    assert (described["records"], described["spec"]["form"]) == (5, "queue")
    assert described["queue"]["scheduled"] == 5
    assert described["queue"]["ready"] == described["queue"]["claimed"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--priority", "10"), ("priority", "0 to 9")),
        (("--not-before", "2999-01-01T00:00"), ("--not-before", "zone")),
        (("--not-before", "tomorrow"), ("--not-before", "tomorrow")),
        (("--tenant", "x" * 201), ("tenant", "200")),
    ],
)
def test_what_a_queue_cannot_be_asked_is_refused_with_nothing_stored(
    place: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused = publish(place, *options, code=2)
    assert all(word in refused.err for word in words), refused.err
    assert not (place / "settled-log.db").exists()


def test_a_log_is_not_asked_for_times(place: Path) -> None:
    (place / "jobs.yaml").write_text(CONTRACT.replace("form: queue", "form: log"))
    assert "transport.form: queue" in publish(place, "--not-before", "2999-01-01T00:00Z", code=2).err


def test_a_topic_of_another_form_is_refused_with_the_difference(place: Path) -> None:
    publish(place)
    (place / "jobs.yaml").write_text(CONTRACT.replace("form: queue", "form: log"))
    refused = publish(place, "--producer", "other", code=2)
    assert "the form queue, not log" in refused.err
