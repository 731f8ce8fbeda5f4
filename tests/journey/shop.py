"""One interaction on SQLite in a folder, as the journey tests need it: an App with short times, effects that show every
double run as a second row, workers on threads and in processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from settled.app import App
from settled.delivery.worker import Worker
from settled.events import Event
from settled.outcome import Outcome
from settled.record import Record
from settled.sqlite import open_connection
from settled.store import Tx
from waiting import until

SECTIONS: dict[str, dict[str, Any]] = {
    "delivery": {"lease": "1s", "grace": "10s"},
    "producer": {"batch": {"time": "1ms"}},
    "poison": {"attempts": {"defect": 3}, "backoff": {"first": "10ms", "most": "20ms"}},
}
PROCESS = Path(__file__).parent / "process.py"


def table(tx: Tx) -> None:
    """Effects without any unique constraint: a double run is a second row."""
    tx.execute("CREATE TABLE IF NOT EXISTS effects (n INTEGER PRIMARY KEY, event_id TEXT, key BLOB, value BLOB)")


def insert(tx: Tx, record: Record) -> None:
    tx.execute("INSERT INTO effects (event_id, key, value) VALUES (?, ?, ?)", (record.id, record.key, record.value))


def merged(sections: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    found = dict(sections)
    for name, value in more.items():
        found[name] = merged(found.get(name, {}), value) if isinstance(value, dict) else value
    return found


class Shop:
    """Apps on one log and one effect store in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log, self.effects_file = folder / "log.db", folder / "effects.db"
        self._apps: list[App] = []

    def app(
        self,
        handler: Callable[..., Any] | None = insert,
        *,
        topic: str = "t",
        group: str = "g",
        partitions: int = 1,
        batch: bool = False,
        store: str = "",
        **sections: Any,
    ) -> App:
        found = App(
            topic=topic,
            group=group,
            engine=f"sqlite:///{self.log}",
            store=f"sqlite:///{self.effects_file}{store}",
            **merged(merged(SECTIONS, {"transport": {"partitions": partitions}}), sections),
        )
        if handler is not None:
            found.handler(batch=batch)(handler)
        found.setup(table)
        self._apps.append(found)
        return found

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        connection = open_connection(self.effects_file)
        try:
            return [tuple(row) for row in connection.execute(sql, params)]
        finally:
            connection.close()

    def ids(self) -> list[str]:
        """Event ids of the effects in the order in which they were made; none before there is a table of them."""
        if not self.effects_file.exists() or not self.rows("SELECT 1 FROM sqlite_master WHERE name = 'effects'"):
            return []
        return [row[0] for row in self.rows("SELECT event_id FROM effects ORDER BY n")]

    def close(self) -> None:
        for each in self._apps:
            each.close()

    # What is durable.

    def frontier(self, app: App, partition: int = 0, group: str = "g") -> int:
        for _, found in app.store.positions(group):
            if (found.topic, found.partition) == (app.contract.transport.topic, partition):
                return found.frontier
        return -1

    def tally(self, app: App, group: str = "g") -> dict[Outcome, int]:
        return app.store.tally(group)

    # Processes.

    def process(self, handler: str, **arguments: Any) -> subprocess.Popen[str]:
        """A worker in a process of its own; `handler` is a function in process.py."""
        given = {"folder": str(self.folder), "handler": handler, **arguments}
        paths = [str(PROCESS.parent), str(PROCESS.parent.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.Popen(
            [sys.executable, str(PROCESS), json.dumps(given)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lines(self, name: str) -> list[str]:
        """What handlers wrote down outside the store, in the order in which they started."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    ended(process)


def ended(process: subprocess.Popen[str], timeout: float = 30.0) -> tuple[int, str]:
    """Its exit code and what it said."""
    said, _ = process.communicate(timeout=timeout)
    return process.returncode, said


@contextlib.contextmanager
def working(app: App, member: str | None = None) -> Iterator[Worker]:
    """A worker on a thread; what it raises is raised here at the end."""
    worker = app.worker(member=member)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised again below, on the test's thread
            raised.append(error)

    thread = threading.Thread(target=run, name="worker")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(40)
        assert not thread.is_alive(), "the worker did not stop"
    if raised:
        raise raised[0]


def heard(app: App) -> list[Event]:
    """What the app tells from now on."""
    events: list[Event] = []
    app.events.listen(events.append)
    return events


def wait_settled(shop: Shop, app: App, end: int, partition: int = 0, timeout: float = 30.0) -> None:
    until(lambda: shop.frontier(app, partition) >= end, timeout)
