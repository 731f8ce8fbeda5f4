"""Ephemeral subscriptions: killed at any time, what they missed is what they are told and it adds up."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import App
from settled.operations import topics
from settled.testing import kafka
from waiting import until

PROCESS = Path(__file__).parent / "tail_process.py"
pytestmark = [pytest.mark.xdist_group("kafka-working"), pytest.mark.timeout(240)]


@pytest.fixture(params=["sqlite", "kafka"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    url = f"kafka://{kafka.bootstrap()}" if request.param == "kafka" else f"sqlite:///{tmp_path}/log.db"
    with App(
        topic=kafka.unique("tails") if request.param == "kafka" else "tails",
        engine=url,
        store=f"sqlite:///{tmp_path}/effects.db",
        transport={"partitions": 3},
        producer={"batch": {"time": "1ms"}},
    ) as made:
        yield made


def process(app: App, what: str, *arguments: object) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(PROCESS.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(PROCESS), what, app.engine_url, app.contract.transport.topic, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths})


def lines(file: Path) -> list[dict[str, object]]:
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def subscriber(app: App, file: Path, behind: int) -> subprocess.Popen[str]:
    found = process(app, "subscribe", file, behind)
    assert found.stdout is not None
    assert found.stdout.readline() == "ready\n"
    return found


def kill(one: subprocess.Popen[str]) -> None:
    one.send_signal(signal.SIGKILL)
    one.communicate(timeout=60)


def test_what_a_killed_subscriber_missed_is_what_it_is_told(app: App, tmp_path: Path) -> None:
    chance, file, sent = random.Random(6), tmp_path / "given.jsonl", 0
    app.engine  # noqa: B018 - the topic is there
    reader = subscriber(app, file, 1_000_000)
    for _ in range(3):
        publisher = process(app, "publish", sent, 2000)
        before = len(lines(file))
        until(lambda before=before: len(lines(file)) > before + chance.randrange(1, 400), 60.0)  # type: ignore[misc]
        kill(reader)
        if chance.random() < 0.5:  # away until all is sent, or back in the middle
            assert publisher.wait(60) == 0
        reader = subscriber(app, file, 1_000_000)
        assert publisher.wait(60) == 0
        publisher.communicate()
        sent += 2000
    ends = sum(part.end for part in app.engine.topics([app.contract.transport.topic])[0].partitions)
    assert ends == sent + sent // 20
    until(lambda: accounted(file) == ends, 60.0)
    kill(reader)
    given = [line["id"] for line in lines(file) if line["id"] is not None]
    assert len(given) == len(set(given))
    assert 0 < len(given) < ends  # some were missed, and each of them is told


def accounted(file: Path) -> int:
    """How many records were given or told as missed."""
    found = lines(file)
    return sum(int(line["id"] is not None) + int(str(line["missed"])) for line in found)


def test_iterating_ends_when_nothing_comes_or_it_is_stopped(app: App) -> None:
    with app.tail(idle=0.5) as tail:
        for number in range(5):
            app.publish(b"v", key="k", id=f"e{number}")
        assert [record.id for record in tail] == [f"e{number}" for number in range(5)]
    with app.tail() as tail:
        timer = threading.Timer(0.2, tail.stop)
        timer.start()
        assert list(tail) == []
        timer.join()


def test_a_position_is_that_of_the_record_given_last(app: App) -> None:
    with app.tail() as tail:
        for number in range(10):
            app.publish(b"v", key="k", id=f"e{number}")
        for record in tail:
            if record.id == "e3":
                break
        position = tail.position
    with app.tail(after=position) as again:
        assert again.missed == 6


def test_following_tells_what_passed_and_shows_nothing_twice(app: App) -> None:
    topic, lost, found = app.contract.transport.topic, list[tuple[int, int]](), list[str]()
    tail = app.engine.tail(topic, behind=20)
    for number in range(15):
        app.publish(b"v", key="k", id=f"e{number}")
    shown = {part.partition: part.end for part in app.engine.topics([topic])[0].partitions}
    app.publish(b"v", key="k", id="next")
    for record in topics.follow(tail, shown, lambda *passed: lost.append(passed), idle_s=1.0):
        found.append(record.id)
        if record.id == "next":
            for number in range(30):
                app.publish(b"v", key="k", id=f"f{number}")
    tail.close()
    assert found == ["next", *(f"f{number}" for number in range(len(found) - 1))]
    assert sum(passed for passed, _ in lost) == 31 - len(found)  # Kafka's client may have them all by then
    assert app.engine.name != "sqlite" or (len(found), lost) == (1, [(30, 0)])
