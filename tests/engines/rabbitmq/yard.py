"""One interaction over a queue on RabbitMQ, as these tests need it: an App with short times, effects that show every
double run as a second row, workers on threads and in processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from settled.app import App
from settled.delivery.worker import Worker
from settled.errors import Unavailable
from settled.record import Message, Record
from settled.sqlite import open_connection
from settled.store import Tx
from settled.testing import rabbitmq
from settled.testing.engine_tools import Member
from waiting import until

SECTIONS: dict[str, dict[str, Any]] = {
    "transport": {"form": "queue", "partitions": 4},
    "delivery": {"lease": "2s", "grace": "10s", "ordering": "none"},
    "poison": {"attempts": {"defect": 3}, "backoff": {"first": "10ms", "most": "20ms"}, "owner": "tests"},
}
LOG: dict[str, dict[str, Any]] = {
    "transport": {"form": "log", "partitions": 4},
    "producer": {"durability": "memory"},  # one node
    "delivery": {"lease": "2s", "grace": "10s"},
    "poison": SECTIONS["poison"],
}
PROCESS = Path(__file__).parent / "yard_process.py"


def table(tx: Tx) -> None:
    """Effects without any unique constraint: a double run is a second row."""
    key = "n bigserial PRIMARY KEY" if tx.dialect == "postgresql" else "n INTEGER PRIMARY KEY"
    tx.execute(f"CREATE TABLE IF NOT EXISTS effects ({key}, event_id TEXT)")


def insert(tx: Tx, record: Record) -> None:
    mark = "%s" if tx.dialect == "postgresql" else "?"
    tx.execute(f"INSERT INTO effects (event_id) VALUES ({mark})", (record.id,))


class Yard:
    """Apps on one topic and one effect store."""

    def __init__(
        self, folder: Path, engine_url: str, store_url: str = "", sections: dict[str, dict[str, Any]] = SECTIONS
    ) -> None:
        self.folder, self.engine_url, self.sections = folder, engine_url, sections
        self.store_url = store_url or f"sqlite:///{folder}/effects.db"
        self.topic = rabbitmq.unique("yard")
        self._apps: list[App] = []

    def app(
        self, handler: Callable[..., Any] | None = insert, *, engine: str = "", group: str = "g", **sections: Any
    ) -> App:
        usual = self.sections
        merged = {name: {**usual.get(name, {}), **sections.get(name, {})} for name in {*usual, *sections}}
        found = App(topic=self.topic, group=group, engine=engine or self.engine_url, store=self.store_url, **merged)
        if handler is not None:
            found.handler(handler)
        found.setup(table)
        self._apps.append(found)
        return found

    def publish(self, ids: list[str], **fields: Any) -> None:
        app = self.app(None)
        producer = app.producer()
        for each in ids:
            producer.send(Message(topic=self.topic, id=each, **{"value": b"v", "key": each.encode(), **fields}))
        producer.close()

    def ids(self) -> list[str]:
        """Event ids of the effects in the order in which they were made; none before there is a table of them."""
        if self.store_url.startswith("sqlite"):
            path = Path(self.store_url.removeprefix("sqlite:///"))
            if not path.exists():
                return []
            connection = open_connection(path)
            try:
                if not list(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'effects'")):
                    return []
                return [row[0] for row in connection.execute("SELECT event_id FROM effects ORDER BY n")]
            finally:
                connection.close()
        import psycopg

        with psycopg.connect(self.store_url) as connected:
            return [row[0] for row in connected.execute("SELECT event_id FROM effects ORDER BY n").fetchall()]

    def settles(self, ids: list[str]) -> None:
        """Wait until there is one row for each, and no other."""
        until(lambda: len(self.ids()) >= len(ids), 60.0)
        assert sorted(self.ids()) == sorted(ids)

    def note(self, name: str) -> list[str]:
        """The lines that handlers in processes wrote down."""
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    @contextlib.contextmanager
    def working(self, app: App) -> Iterator[Worker]:
        """The app's worker on a thread while the block runs."""
        worker = app.worker()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                worker.run()
            except BaseException as error:  # noqa: BLE001 - raised below, on the test's thread
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join(60.0)
            assert not thread.is_alive()
        if failed:
            raise failed[0]

    def process(self, handler: str, *, engine: str = "", **sections: Any) -> subprocess.Popen[str]:
        """A worker in a process of its own; `handler` is a function in yard_process.py."""
        given = {
            "folder": str(self.folder),
            "engine": engine or self.engine_url,
            "store": self.store_url,
            "topic": self.topic,
            "handler": handler,
            "sections": sections,
            "usual": self.sections,
        }
        paths = [str(PROCESS.parent), str(PROCESS.parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.Popen([sys.executable, str(PROCESS), json.dumps(given)], env=environment, text=True)

    def close(self) -> None:
        for each in self._apps:
            each.close()


def polled(member: Member) -> bool:
    """False while no node answers, or none has its copies up."""
    try:
        member.poll()
    except Unavailable:
        return False
    return True
