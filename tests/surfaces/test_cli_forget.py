"""settled group forget: it says what is lost, asks, refuses while somebody works, and no effect is made twice."""

from __future__ import annotations

import signal
from pathlib import Path

import apsw
import pytest
from cli_runs import Running, orders, settled, started

from settled.testing import rabbitmq
from waiting import until


def effects(folder: Path) -> int:
    connection = apsw.Connection(str(folder / "settled-effects.db"))
    connection.set_busy_timeout(30_000)
    try:
        return int(connection.execute("SELECT count(*) FROM stock").fetchall()[0][0])
    finally:
        connection.close()


def test_a_group_is_forgotten(tmp_path: Path) -> None:
    rows = orders(11).splitlines(keepends=True)
    started(tmp_path, one_jsonl="".join(rows[:2]), two_jsonl="".join(rows[2:5]), three_jsonl="".join(rows[5:]))
    settled(tmp_path, "publish", "one.jsonl", "--contract", "app.py")
    settled(tmp_path, "run", "app.py", "--mode", "drain")
    worker = Running(tmp_path, "run", "app.py")
    try:
        settled(tmp_path, "publish", "two.jsonl", "--contract", "app.py")
        until(lambda: effects(tmp_path) == 5, 60.0)
        assert "has members" in settled(tmp_path, "group", "forget", "stock-v1", "--yes", code=3).err
        assert worker.end(signal.SIGTERM) == 0
    finally:
        worker.close()
    settled(tmp_path, "publish", "three.jsonl", "--contract", "app.py")
    asked = settled(tmp_path, "group", "forget", "stock-v1", code=3).err
    assert "6 records behind" in asked
    assert "--yes" in asked
    seen = settled(tmp_path, "group", "forget", "stock-v1", "--dry-run").json
    assert (seen["forgotten"], seen["left"]) == ([], [{"topic": "orders", "behind": 6}])
    found = settled(tmp_path, "group", "forget", "stock-v1", "--topic", "orders", "--yes")
    assert found.json["forgotten"] == [{"topic": "orders", "records": 0}]
    assert "no effect is made twice" in found.err
    settled(tmp_path, "group", "forget", "stock-v1", "--yes", code=2)
    settled(tmp_path, "group", "forget", "a group", "--yes", code=2)
    settled(tmp_path, "run", "app.py", "--mode", "drain")
    assert effects(tmp_path) == 11


@pytest.mark.xdist_group("rabbitmq")
def test_a_subscription_on_rabbitmq_is_forgotten(tmp_path: Path) -> None:
    topic, place = rabbitmq.unique("orders"), {"SETTLED_ENGINE": rabbitmq.url()}
    started(tmp_path, events_jsonl=orders(5))
    contract = (tmp_path / "contract.yaml").read_text()
    changed = contract.replace("topic: orders, partitions: 3", f"form: pubsub, topic: {topic}, partitions: 1")
    (tmp_path / "contract.yaml").write_text(changed)
    settled(tmp_path, "run", "app.py", "--mode", "drain", env=place)
    settled(tmp_path, "publish", "events.jsonl", "--contract", "app.py", env=place)
    forget = ("group", "forget", "stock-v1", "--topic", topic, "--yes")
    assert "5 records" in settled(tmp_path, *forget, code=3, env=place).err
    assert "--topic" in settled(tmp_path, "group", "forget", "stock-v1", "--yes", code=2, env=place).err
    found = settled(tmp_path, *forget, "--force", env=place).json
    assert found["forgotten"] == [{"topic": topic, "records": 5}]
    settled(tmp_path, *forget, code=2, env=place)
