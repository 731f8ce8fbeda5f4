"""The course of the demo: workers start, the stream is published, one worker is killed midway and started again, and
when all is settled the effect database is held against the stream.

Half the effects are awaited before a worker is picked, and the last 40% of the stream are published from then on, so
that it dies with work in flight and leaves work for its successor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import apsw

from settled.app import App
from settled.drills.demo import handed, moment, orders, stream, verdict
from settled.drills.demo.crew import Crew
from settled.operations.progress import is_drained
from settled.record import Message

BEFORE_KILL = 0.6  # of the stream, published before a worker is picked
KILL_AT = 0.5  # of the effects
JOIN_S, STALL_S = 30.0, 60.0


class Watcher(Protocol):
    """Who is told how it goes."""

    def say(self, text: str) -> None:
        """Something happened."""
        ...

    def progress(self, made: int, wanted: int) -> None:
        """How many effects there are. Called often."""
        ...


def run(folder: Path, *, records: int, workers: int, seed: int, watcher: Watcher) -> verdict.Verdict:
    """Run the demo in `folder`, which must be empty. Raises SettledError when it cannot come to an end."""
    with orders.app_in(folder) as app, Crew(folder) as crew:
        messages = stream.generate(records, seed=seed, topic=app.contract.transport.topic)
        foretold = stream.foretell(messages)
        app.store.positions()  # the tables are there before the first worker
        watcher.say(f"starting {workers} workers")
        for _ in range(workers):
            crew.start()
        crew.until(lambda: _have_work(app, workers), JOIN_S, "no partition came to every worker")
        began = time.perf_counter()
        watcher.say(f"publishing {len(messages):,} messages of {len({m.key for m in messages}):,} orders")
        publisher = _Publisher(app, messages)
        publisher.start()
        _watch_through_kill(app, crew, publisher, watcher, folder / orders.EFFECTS, len(foretold.applied))
        seconds = time.perf_counter() - began
        crew.stop()
        rows = verdict.rows_in(folder / orders.EFFECTS)
    return verdict.judge(foretold, rows, handed=handed.count(folder), seconds=seconds)


def _watch_through_kill(
    app: App, crew: Crew, publisher: _Publisher, watcher: Watcher, effects: Path, wanted: int
) -> None:
    with _counting(effects) as made:

        def told(done: Callable[[], bool]) -> Callable[[], bool]:
            def look() -> bool:
                publisher.check()
                watcher.progress(made(), wanted)
                return done()

            return look

        def until(done: Callable[[], bool], failure: str) -> None:
            crew.until(told(done), STALL_S, failure, progress=made)

        until(lambda: made() >= wanted * KILL_AT, "the effects stopped coming")
        victim = crew.name_of(_owner(app))
        moment.ask(crew.folder, victim)
        publisher.go_on.set()
        until(lambda: moment.is_there(crew.folder, victim), f"worker {victim} got no more work")
        pid = crew.kill(victim)
        watcher.say(f"killed worker {victim} (process {pid}, SIGKILL) between its effects and their commit")
        watcher.say(f"started worker {crew.start()} in its place")
        until(lambda: not publisher.is_alive(), "publishing stopped")
        publisher.check()
        until(is_drained(app.engine, app.store, app.contract), "the last records were not settled")


def _have_work(app: App, workers: int) -> bool:
    groups = app.engine.groups(app.contract.delivery.group)
    busy = [member for group in groups for member in group.members if member.partitions]
    return len(busy) >= min(workers, app.contract.transport.partitions)


def _owner(app: App) -> int:
    """The process that owns the most partitions."""
    members = [member for group in app.engine.groups(app.contract.delivery.group) for member in group.members]
    pid = max(members, key=lambda member: len(member.partitions)).pid
    assert pid is not None, "the embedded log names the processes of its members"
    return pid


@contextmanager
def _counting(effects: Path) -> Iterator[Callable[[], int]]:
    """How many reservations there are, read over a connection of our own."""
    connection = apsw.Connection(str(effects), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(5_000)
    try:
        yield lambda: connection.execute("SELECT made FROM reservation ORDER BY made DESC LIMIT 1").get or 0
    finally:
        connection.close()


class _Publisher(threading.Thread):
    """Publishes the stream; waits at `BEFORE_KILL` until `go_on` is set."""

    def __init__(self, app: App, messages: Sequence[Message]) -> None:
        super().__init__(name="demo-publisher", daemon=True)
        self.go_on = threading.Event()
        self._app, self._messages = app, messages
        self._error: Exception | None = None

    def run(self) -> None:
        pause = int(len(self._messages) * BEFORE_KILL)
        try:
            producer = self._app.producer()
            try:
                for message in self._messages[:pause]:
                    producer.send(message)
                producer.flush()
                self.go_on.wait()
                for message in self._messages[pause:]:
                    producer.send(message)
            finally:
                producer.close()
        except Exception as error:  # noqa: BLE001 - raised again in the main thread, by `check`
            self._error = error

    def check(self) -> None:
        """Raises what ended it before its time."""
        if self._error is not None:
            raise self._error
