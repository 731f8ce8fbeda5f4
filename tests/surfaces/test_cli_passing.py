"""What nobody keeps, by commands: a notification on RabbitMQ is followed, explained, checked and described as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import environment, settled

from settled.testing import rabbitmq

pytestmark = [pytest.mark.xdist_group("rabbitmq"), pytest.mark.timeout(240)]


@pytest.fixture
def topic(tmp_path: Path) -> str:
    name = rabbitmq.unique("changed")
    (tmp_path / "contract.yaml").write_text(
        f"name: Changed\ntransport: {{form: notification, topic: {name}, partitions: 1, key: id, version: version}}\n"
    )
    (tmp_path / "one.jsonl").write_text('{"id": "o-1", "version": 1}\n')
    return name


def test_a_notification_on_rabbitmq(topic: str, tmp_path: Path) -> None:
    place = {"SETTLED_ENGINE": rabbitmq.url()}

    def run(*words: str, code: int = 0, **options: str) -> str:
        ran = settled(tmp_path, *words, code=code, env={**place, **options})
        return ran.out + ran.err

    publishing = ("publish", "one.jsonl", "--contract", "contract.yaml")
    run(*publishing)  # nobody hears it, which is no error
    assert "nothing is kept" in run("topic", "tail", topic)
    assert f"{topic}: a notification" in run("topic", "describe", topic, "-o", "table")
    assert "keeps it nowhere" in run("contract", "explain", "contract.yaml", "-o", "table")
    run("contract", "check", "contract.yaml")
    assert "nothing of a hint is kept" in run("status", "--contract", "contract.yaml", code=2)
    process = subprocess.Popen(
        [sys.executable, "-m", "settled", "topic", "tail", topic, "-f", "-o", "jsonl"],
        cwd=tmp_path,
        env=environment(**place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process, process.stdout, process.stderr:
        assert b"listening" in process.stderr.readline()
        run(*publishing)
        assert b'"o-1"' in process.stdout.readline()
        process.terminate()
