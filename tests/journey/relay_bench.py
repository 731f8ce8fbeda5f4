"""A store with an outbox, a log, and what the relay tests do with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from caller_kinds import KINDS
from settled import connect, outbox
from settled.engine import Engine, TopicSpec
from settled.outbox import Relay, RelayPolicy
from settled.record import Message, Record
from settled.store import Store

PROCESS = Path(__file__).with_name("relay_process.py")
QUICK = {"first_s": 0.02, "most_s": 0.1, "lease_s": 0.5, "poll_s": 0.2}


class RelayBench:
    def __init__(self, folder: Path, store_url: str, opened: ExitStack) -> None:
        self.store_url, self.engine_url = store_url, f"sqlite:///{folder}/log.db"
        self._opened = opened
        self.store: Store = opened.enter_context(closing(connect.store(store_url)))
        self.store.migrate()
        self.engine: Engine = opened.enter_context(closing(connect.engine(self.engine_url)))
        self.kind = KINDS["apsw" if self.store.name == "sqlite" else "psycopg"]

    def topic(self, name: str = "t", *, partitions: int = 2, **fields: Any) -> None:
        self.engine.ensure_topic(TopicSpec(name=name, partitions=partitions, **fields))

    def put(self, *messages: Message) -> None:
        with self.kind.transaction(self.store_url) as connection:
            for message in messages:
                outbox.add(connection, message, max_bytes=10_000_000)

    def relay(self, **policy: Any) -> Relay:
        return Relay(self.store, self.engine, RelayPolicy(**{**QUICK, **policy}))

    @contextmanager
    def relaying(self, **policy: Any) -> Iterator[Relay]:
        """A relay that runs in a thread."""
        relay = self.relay(**policy)
        thread = threading.Thread(target=relay.run)
        thread.start()
        try:
            yield relay
        finally:
            relay.stop()
            thread.join(30)
            assert not thread.is_alive()

    def records(self, name: str = "t") -> list[Record]:
        return all_records(self.engine, name)

    def ids(self, name: str = "t") -> list[str]:
        return [record.id for record in self.records(name)]

    def empty(self) -> bool:
        status = self.store.outbox.status()
        return status.pending + status.failing == 0

    def process(self, **given: Any) -> subprocess.Popen[str]:
        """A relay in a process of its own, ready to run."""
        policy = {**QUICK, **given.pop("policy", {})}
        given = {"store": self.store_url, "engine": self.engine_url, "policy": policy, **given}
        process = subprocess.Popen(
            [sys.executable, str(PROCESS), json.dumps(given)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._opened.callback(_ended, process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process


def all_records(engine: Engine, topic: str) -> list[Record]:
    """All that the topic holds, by partition and offset."""
    info = next(info for info in engine.topics() if info.spec.name == topic)
    found: list[Record] = []
    for part in info.partitions:
        offset = part.begin
        while offset < part.end:
            read = engine.read(topic, part.partition, offset, records=1000)
            found += read
            offset = read[-1].offset + 1
    return found


def _ended(process: subprocess.Popen[str]) -> None:
    """No process outlives its test, even a stopped one."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def message(ident: str, key: bytes | None = b"k", **fields: Any) -> Message:
    return Message(**{"topic": "t", "key": key, "id": ident, **fields})


def in_order(records: list[Record]) -> bool:
    """Whether the first occurrences of each key's ids, which end in -N, stand in rising order of N."""
    last: dict[bytes | None, int] = {}
    seen: set[str] = set()
    for record in records:
        number = int(record.id.rpartition("-")[2])
        if record.id not in seen and last.get(record.key, -1) > number:
            return False
        seen.add(record.id)
        last[record.key] = max(number, last.get(record.key, -1))
    return True
