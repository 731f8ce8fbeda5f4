"""Hints: coalesced, without authority, lost by contract, repaired by the sweep."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from hint_process import made, refresh, repair
from shop import heard

from settled import App
from settled.delivery.watcher import Watcher
from settled.errors import ContractError, SettledError
from settled.events import AttemptFailed, HintsLost, StateChanged, Swept
from settled.record import Record
from settled.store import Tx
from settled.testing import kafka, rabbitmq
from settled.testing.postgres import database
from waiting import until

PROCESS = Path(__file__).parent / "hint_process.py"
pytestmark = [pytest.mark.xdist_group("kafka-working"), pytest.mark.timeout(240)]
MakeApp = Callable[..., App]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeApp]:
    opened: list[App] = []

    def make_app(**sections: object) -> App:
        url = f"sqlite:///{tmp_path}"
        opened.append(made("hints", f"{url}/log.db", f"{url}/effects.db", **sections))
        return opened[-1]

    yield make_app
    for app in opened:
        app.close()


@contextmanager
def watching(app: App) -> Iterator[Watcher]:
    watcher = app.watcher()
    idle = threading.Event()
    app.events.listen(lambda event: idle.set() if isinstance(event, StateChanged) and event.state == "idle" else None)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            watcher.run()
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert idle.wait(60)  # the first sweep ran, and hints are heard
        yield watcher
    finally:
        watcher.stop()
        thread.join(60)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


def orders(file: Path, table: str) -> dict[str, int]:
    connection = apsw.Connection(str(file))
    connection.set_busy_timeout(30_000)
    try:
        return dict(connection.execute(f"SELECT id, version FROM {table}").fetchall())
    finally:
        connection.close()


def change(file: Path, key: str, version: int) -> None:
    connection = apsw.Connection(str(file))
    connection.set_busy_timeout(30_000)
    connection.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", (key, version))
    connection.close()


def test_a_slow_reader_gets_one_hint_a_key_and_the_newest(make: MakeApp) -> None:
    app, go, seen = make(), threading.Event(), []

    @app.handler
    def slow(tx: Tx, hint: Record) -> None:
        seen.append((hint.key, hint.version))
        assert go.wait(60)

    app.sweep(None)
    with watching(app) as watcher:
        app.publish(key="first", version=1)
        until(lambda: seen)
        for number in range(1000):
            app.publish(key=f"k{number % 10}", version=number)
        until(lambda: len(watcher._hints) == 10 and watcher._hints._waiting[b"k9"].version == 999)
        go.set()
        until(lambda: len(seen) >= 11)
    assert sorted(seen[1:]) == sorted((b"k%d" % key, 990 + key) for key in range(10))


def test_versions_of_a_key_rise_whatever_the_order_of_hints(make: MakeApp) -> None:
    app, seen = make(), []

    @app.handler
    def note(tx: Tx, hint: Record) -> None:
        seen.append(hint.version)

    app.sweep(None)
    with watching(app):
        for version in (5, 3, 9, 1, 8, 12, 12, 2):
            app.publish(key="k", version=version)
        until(lambda: seen and seen[-1] == 12)
        app.publish(key="k", version=11)
        app.publish(key="k", version=13)
        until(lambda: seen[-1] == 13)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("engine", ["sqlite", "kafka", "rabbitmq"])
def test_the_sweep_repairs_what_a_killed_reader_lost(engine: str, tmp_path: Path) -> None:
    log = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/log.db",
        "kafka": lambda: f"kafka://{kafka.bootstrap()}",
        "rabbitmq": rabbitmq.url,
    }[engine]()
    place = "hints" if engine == "sqlite" else kafka.unique("hints"), log, f"sqlite:///{tmp_path}/effects.db"
    paths = os.pathsep.join([str(PROCESS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    chance, file = random.Random(17), tmp_path / "effects.db"
    with made(*place) as app:
        app.store  # noqa: B018 - the tables are there
        version = 0
        for _ in range(3):
            reader = subprocess.Popen([sys.executable, str(PROCESS), *place], env=environment)
            for _ in range(chance.randrange(20, 60)):
                version += 1
                change(file, f"o{version % 7}", version)
                app.publish(key=f"o{version % 7}", version=version)
                if chance.random() < 0.02:
                    before = orders(file, "orders")
                    until(lambda before=before: orders(file, "cache") == before, 60.0)  # type: ignore[misc]
            reader.send_signal(signal.SIGKILL)
            reader.wait(60)
            for _ in range(10):  # nobody listens, and some are never told of
                version += 1
                change(file, f"o{version % 7}", version)
                if chance.random() < 0.5:
                    app.publish(key=f"o{version % 7}", version=version)
        assert orders(file, "cache") != orders(file, "orders")
        reader = subprocess.Popen([sys.executable, str(PROCESS), *place], env=environment)
        until(lambda: orders(file, "cache") == orders(file, "orders"), 60.0)
        change(file, "o1", version + 1)
        until(lambda: not app.publish(key="o1", version=version + 1) or cached(file, "o1") == version + 1, 60.0)
        reader.send_signal(signal.SIGTERM)
        assert reader.wait(60) == 0


def cached(file: Path, key: str) -> int | None:
    return orders(file, "cache").get(key)


def test_a_hint_that_was_never_sent_is_repaired_in_time(make: MakeApp, tmp_path: Path) -> None:
    app = make()
    app.handler(refresh)
    app.sweep("100ms")(repair)
    with watching(app):
        change(tmp_path / "effects.db", "o1", 1)
        until(lambda: cached(tmp_path / "effects.db", "o1") == 1)


def test_memory_is_bounded_and_a_loss_brings_a_sweep(make: MakeApp, tmp_path: Path) -> None:
    app = make(delivery={"in_flight": {"records": 5}, "group_size": {"records": 5}})
    go, ran, file = threading.Event(), [], tmp_path / "effects.db"

    @app.handler
    def slow(tx: Tx, hint: Record) -> None:
        ran.append(hint.key)
        assert go.wait(60)
        refresh(tx, hint)

    app.sweep(3600)(repair)
    events = heard(app)
    with watching(app) as watcher:
        for number in range(100):
            change(file, f"o{number}", 1)
            app.publish(key=f"o{number}", version=1)
        until(lambda: watcher._hints.dropped >= 94)
        assert len(watcher._hints) <= 5
        go.set()
        until(lambda: orders(file, "cache") == orders(file, "orders"))
    assert sum(each.dropped for each in events if isinstance(each, HintsLost)) == 100 - len(ran)
    assert sum(isinstance(each, Swept) for each in events) >= 2  # at the start, and after the loss
    assert len(ran) < 20


def test_what_fails_is_left_to_the_sweep_and_harms_no_other(make: MakeApp, tmp_path: Path) -> None:
    app, broken, file = make(), threading.Event(), tmp_path / "effects.db"
    broken.set()

    @app.handler
    def fails_for_one(tx: Tx, hint: Record) -> None:
        refresh(tx, hint)
        if hint.key == b"o3" and broken.is_set():
            raise ValueError("no")

    app.sweep(0.2)(lambda tx: None if broken.is_set() else repair(tx))
    events = heard(app)
    with watching(app):
        for number in range(8):
            change(file, f"o{number}", 1)
            app.publish(key=f"o{number}", version=1)
        until(lambda: len(orders(file, "cache")) == 7)
        assert "o3" not in orders(file, "cache")
        until(lambda: any(isinstance(each, AttemptFailed) for each in events))
        broken.clear()
        until(lambda: cached(file, "o3") == 1)
    failed = [each for each in events if isinstance(each, AttemptFailed)]
    assert [each.record.key for each in failed] == [b"o3"]  # once: there is no second attempt
    assert app.store.attempts("hints-v1", "hints", 0) == []


def test_an_outage_of_the_store_is_no_failure(make: MakeApp, tmp_path: Path) -> None:
    app, file = make(), tmp_path / "effects.db"
    app.store_url += "?busy=0.2"
    app.handler(refresh)
    app.sweep(None)
    events = heard(app)
    with watching(app):
        change(file, "o1", 1)
        holder = apsw.Connection(str(file))
        holder.execute("BEGIN IMMEDIATE")
        app.publish(key="o1", version=1)
        until(lambda: any(isinstance(each, StateChanged) and each.state == "waiting" for each in events))
        holder.execute("ROLLBACK")
        holder.close()
        until(lambda: cached(file, "o1") == 1)
    assert not [each for each in events if isinstance(each, AttemptFailed)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_handler_that_does_not_end_does_not_hold_up_the_stop(make: MakeApp, tmp_path: Path, at_once: bool) -> None:
    app = make(delivery={"grace": "1h" if at_once else "300ms", "effect_tail": "100ms"})
    running, go = threading.Event(), threading.Event()

    @app.handler
    def stuck(tx: Tx, hint: Record) -> None:
        refresh(tx, hint)
        running.set()
        go.wait(60)

    app.sweep(None)
    with watching(app) as watcher:
        change(tmp_path / "effects.db", "o1", 1)
        app.publish(key="o1", version=1)
        assert running.wait(60)
        watcher.abandon() if at_once else watcher.stop()
    go.set()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "settled-hints"])
    assert orders(tmp_path / "effects.db", "cache") == {}


def test_a_drain_works_on_what_is_there_and_sweeps_once(make: MakeApp, tmp_path: Path) -> None:
    app, file = make(), tmp_path / "effects.db"
    app.handler(refresh)
    sweeps: list[int] = []

    @app.sweep(every=30)
    def counted(tx: Tx) -> None:
        sweeps.append(1)
        repair(tx)

    app.store  # noqa: B018 - the tables are there
    change(file, "o1", 4)
    app.publish(key="o1", version=4)
    app.drain()
    assert (orders(file, "cache"), sweeps) == ({"o1": 4}, [1])
    other = make()
    other.handler(refresh)
    other.sweep(30)(lambda tx: tx.execute("INSERT INTO nowhere VALUES (1)"))
    with pytest.raises(SettledError, match="the sweep failed"):
        other.drain()


def test_async_and_batch_handlers(make: MakeApp, tmp_path: Path) -> None:
    app, file = make(), tmp_path / "effects.db"

    @app.handler(batch=True)
    def several(tx: Tx, hints: list[Record]) -> None:
        for hint in hints:
            refresh(tx, hint)
            if hint.key == b"o2":
                raise ValueError("no")

    @app.sweep(None)
    async def swept(tx: Tx) -> None:
        await tx.execute("INSERT OR REPLACE INTO cache VALUES ('swept', 0)")

    with watching(app):
        for number in range(4):
            change(file, f"o{number}", 1)
        for number in range(4):
            app.publish(key=f"o{number}", version=1)
        until(lambda: orders(file, "cache") == {"swept": 0, "o0": 1, "o1": 1, "o3": 1})


def test_hints_beside_postgresql(tmp_path: Path) -> None:
    with database() as url:
        app = App(topic="hints", engine=f"sqlite:///{tmp_path}/log.db", store=url, transport={"form": "notification"})
        app.setup(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT)"))

        @app.handler
        def note(tx: Tx, hint: Record) -> None:
            assert hint.key is not None
            tx.execute("INSERT INTO seen VALUES (%s)", (hint.key.decode(),))
            if hint.key == b"bad":
                raise ValueError("no")

        seen: list[str] = []
        app.sweep("100ms")(lambda tx: seen.extend(row[0] for row in tx.execute("SELECT id FROM seen").fetchall()))
        with app, watching(app):
            for key in ("good", "bad", "last"):
                app.publish(key=key, version=1)
            until(lambda: {"good", "last"} <= set(seen))
        assert "bad" not in seen


def test_what_a_notification_refuses(make: MakeApp) -> None:
    app = make()
    with pytest.raises(ContractError, match=r"app\.sweep\(None\)"):
        app.run()
    app.sweep(None)
    with pytest.raises(ContractError, match="no handler"):
        app.run()
    with pytest.raises(ContractError, match="sweep already"):
        app.sweep(30)
    app.handler(refresh)
    with pytest.raises(ContractError, match="watcher"):
        app.worker()
    for every in (0, -1, "x", float("nan")):
        with pytest.raises(ContractError):
            make().sweep(every)
    strict = make(delivery={"mode": "effectively-once"})
    strict.handler(refresh)
    strict.sweep(None)
    with pytest.raises(ContractError, match="effectively-once"):
        strict.run()
    assert app.contract.delivery.mode == "at-most-once"
    assert app.contract.retention.age == 3600.0
