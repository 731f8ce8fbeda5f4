"""Real purchase orders: the table that workers keep equals one computed straight from the file, also when a twentieth
of the events is published again and workers are killed at ten random moments.
"""

import csv
import gzip
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import apsw
import pytest

from settled import App
from settled.cli.apps import load_app
from settled.operations.progress import is_drained
from waiting import until

pytestmark = [pytest.mark.xdist_group("cores"), pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
ITEMS = ROOT / "examples/real-orders/items.py"
DATA = Path(os.environ.get("SETTLED_TEST_DATA") or ROOT.parent / "shared/data") / "po_fulfilment_bpi2019.csv.gz"
KILLS = 10

Event = dict[str, str]
Row = tuple[str, str, str, str, int, int, int]


@pytest.fixture(scope="module")
def events() -> list[Event]:
    if not DATA.exists():
        message = f"{DATA.name} is not there; set SETTLED_TEST_DATA to the folder that holds it"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with gzip.open(DATA, "rt", newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 59_564
    return found


def as_they_should_be(events: list[Event]) -> list[Row]:
    """The item table, straight from the file: no log, no store, no settled."""
    table: dict[str, Row] = {}
    for event in events:
        item = event["po_item"]
        length = table[item][5] + 1 if item in table else 1
        version = int(event["version"])
        table[item] = (item, event["purchase_order"], event["tenant"], event["activity"], version, length, length)
    return [table[item] for item in sorted(table)]


def again(events: list[Event], draw: random.Random) -> list[Event]:
    """The events, a twentieth of them published a second time up to 1,000 events later."""
    copies: dict[int, list[Event]] = {}
    for place in draw.sample(range(len(events)), len(events) // 20):
        copies.setdefault(min(len(events) - 1, place + draw.randint(1, 1_000)), []).append(events[place])
    return [each for place, event in enumerate(events) for each in (event, *copies.get(place, ()))]


def publish(file: Path, folder: Path) -> None:
    """As a person would."""
    command = [sys.executable, "-m", "settled", "publish", str(file), "--contract", str(ITEMS)]
    command += ["--id", "{file}:{key}:{version}", "--type-column", "activity", "--time-column", "event_time"]
    subprocess.run([*command, "--quiet"], env=_environment(folder), check=True, stdout=subprocess.DEVNULL)


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "SETTLED_ENGINE": f"sqlite:///{folder}/log.db",
        "SETTLED_STORE": f"sqlite:///{folder}/effects.db",
    }


class Workers:
    """Processes that run the example."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with (self._folder / "workers.log").open("ab") as log:
            command = [sys.executable, "-m", "settled", "run", str(ITEMS)]
            self._running.append(subprocess.Popen(command, env=_environment(self._folder), stdout=log, stderr=log))

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        assert process.poll() is None, "the worker had ended before it was killed"
        process.kill()
        assert process.wait() == -signal.SIGKILL

    def stop(self) -> list[int]:
        for process in self._running:
            process.terminate()
        codes = [process.wait(40) for process in self._running]
        self._running.clear()
        return codes

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@contextmanager
def _workers(folder: Path, count: int) -> Iterator[Workers]:
    workers = Workers(folder)
    try:
        for _ in range(count):
            workers.start()
        yield workers
    finally:
        workers.end()


@contextmanager
def _database(app: App) -> Iterator[Callable[[str], list[tuple]]]:
    """A connection of our own to the effects; the tables are there, even before the first worker."""
    app.store.positions()
    connection = apsw.Connection(app.store_url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(10_000)
    try:
        yield lambda sql: list(connection.execute(sql))
    finally:
        connection.close()


def app_in(folder: Path) -> App:
    """The example's app, as `settled run` has it."""
    app = load_app(str(ITEMS))
    app.engine_url, app.store_url = f"sqlite:///{folder}/log.db", f"sqlite:///{folder}/effects.db"
    return app


def test_the_table_equals_the_file(events: list[Event], tmp_path: Path):
    publish(DATA, tmp_path)
    with app_in(tmp_path) as app:
        drained = is_drained(app.engine, app.store, app.contract)
        with _workers(tmp_path, 2) as workers:
            until(drained, 90)
            assert workers.stop() == [0, 0]
        with _database(app) as query:
            assert query("SELECT * FROM item ORDER BY po_item") == as_they_should_be(events)


def test_the_table_equals_the_file_after_second_copies_and_ten_kills(events: list[Event], tmp_path: Path):
    draw = random.Random(20)
    moments = sorted(draw.sample(range(len(events) * 9 // 10), KILLS))
    file = tmp_path / DATA.name.removesuffix(".gz")
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, events[0])
        writer.writeheader()
        writer.writerows(again(events, draw))
    publish(file, tmp_path)
    with app_in(tmp_path) as app, _database(app) as query:
        drained = is_drained(app.engine, app.store, app.contract)

        def settled_more_than(moment: int) -> bool:
            return (query("SELECT sum(length) FROM item")[0][0] or 0) > moment

        with _workers(tmp_path, 2) as workers:
            for moment in moments:
                until(partial(settled_more_than, moment), 60)
                workers.kill(draw.randrange(2))
                workers.start()
            assert not drained()
            until(drained, 90)
            assert workers.stop() == [0, 0]
        assert query("SELECT * FROM item ORDER BY po_item") == as_they_should_be(events)
