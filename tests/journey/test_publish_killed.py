"""What `publish` said is accepted is in the log, and nothing is there twice, when the publisher is killed at once."""

import subprocess
import sys
from pathlib import Path

from settled.engines.sqlite import SqliteEngine

PUBLISHER = """
import itertools, sys
from settled import App

app = App(topic="orders", engine=sys.argv[1], transport={"partitions": 3}, producer={"batch": {"time": "1ms"}})
for number in itertools.count():
    receipt = app.publish(key=f"k-{number}", id=f"event-{number}", value=b"v")
    print(receipt.partition, receipt.offset, receipt.id, flush=True)
"""


def test_what_was_accepted_outlives_a_killed_publisher(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/log.db"
    publisher = subprocess.Popen([sys.executable, "-c", PUBLISHER, url], stdout=subprocess.PIPE, text=True)
    assert publisher.stdout is not None
    said = [publisher.stdout.readline() for _ in range(200)]
    publisher.kill()
    said += [line for line in publisher.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    publisher.stdout.close()
    assert publisher.wait() == -9

    engine = SqliteEngine(url)
    held = [record for partition in range(3) for record in engine.read("orders", partition, 0, records=100_000)]
    engine.close()
    places = {(record.partition, record.offset): record.id for record in held}
    for line in said:
        partition, offset, event_id = line.split()
        assert places[int(partition), int(offset)] == event_id
    assert len({record.id for record in held}) == len(held)
    assert len(said) <= len(held) <= len(said) + 1
