"""settled run: one worker here, or several as processes under a parent that restarts them."""

from __future__ import annotations

import enum
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from settled.cli.options import EngineOption, StoreOption
from settled.cli.output import say

if TYPE_CHECKING:
    from settled.app import App
    from settled.events import Event

IDLE_TOLD_S = 2.0


class Mode(enum.StrEnum):
    forever = "forever"
    drain = "drain"


def run(
    app: Annotated[str, typer.Argument(metavar="APP", help="app.py, path/to/app.py:name or module:name.")],
    workers: Annotated[int, typer.Option(min=1, max=256, help="Worker processes.")] = 1,
    mode: Annotated[
        Mode, typer.Option(help="forever, or until all that the topic holds now is settled.")
    ] = Mode.forever,
    member: Annotated[str | None, typer.Option(metavar="NAME", help="This worker's name, for people.")] = None,
    relay: Annotated[
        bool | None,
        typer.Option("--relay/--no-relay", help="Relay the outbox beside; unless stated, once there is something."),
    ] = None,
    engine: EngineOption = None,
    store: StoreOption = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run an app's handler over its topic. The first SIGTERM or Ctrl-C stops in good order, the second at once."""
    from settled.cli.apps import load_app

    for number in (signal.SIGTERM, signal.SIGINT):  # before a worker minds them, and after
        signal.signal(number, _end_at_once)
    found = load_app(app)
    _place(found, engine, store)
    if supervised:
        _work(found, mode, member, relay, quiet=True)
        return
    _announce(found, workers, mode)
    if workers == 1:
        _work(found, mode, member, relay, quiet=False)
        return
    _prepare(found)
    found.close()
    options = [*(("--engine", engine) if engine else ()), *(("--store", store) if store else ())]
    options += [] if relay is None else ["--relay" if relay else "--no-relay"]
    code = _supervise(app, workers, mode, member, options)
    if code:
        raise typer.Exit(code)


def _end_at_once(number: int, frame: object) -> None:
    """As a kill would, which harms nothing. An exception raised between any two steps might: in the middle of joining,
    or of starting a thread."""
    os._exit(0 if number == signal.SIGTERM else 130)


def _place(app: App, engine: str | None, store: str | None) -> None:
    """What the command line says goes before what the app says."""
    app.engine_url = engine or app.engine_url
    app.store_url = store or app.store_url


def _announce(app: App, workers: int, mode: Mode) -> None:
    from settled.cli.opening import without_password

    contract = app.contract
    say(
        f"{contract.name} v{contract.version}: topic {contract.transport.topic}, group {contract.delivery.group}, "
        f"{contract.delivery.mode}, mode {mode.value}, {workers} worker{'s' if workers > 1 else ''}"
    )
    say(f"  log     {without_password(app.engine_url)}")
    say(f"  effects {without_password(app.store_url)}")


def _prepare(app: App) -> None:
    """All that can be refused is refused before the first record: the contract, the handler, log and store."""
    from settled.cli.apps import of_the_user
    from settled.operations.findings import require_startable

    require_startable(app.contract, app.engine.capabilities)
    try:
        app.watcher() if app.contract.transport.form == "notification" else app.worker()
    except Exception as error:  # of the user's set-up function: whatever its driver raises
        raise of_the_user(error, "the app's set-up") from error


def _work(app: App, mode: Mode, member: str | None, relay: bool | None, *, quiet: bool) -> None:
    import logging

    from settled.operations.supervise import stop_with_parent

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    with app:
        _prepare(app)
        narrator = _Narrator(member or f"pid {os.getpid()}")
        app.events.listen(narrator.hear)
        if quiet:
            stop_with_parent(sys.stdin.fileno(), lambda: os.kill(os.getpid(), signal.SIGTERM))
        app.run(drain=mode is Mode.drain, member=member, relay=relay)
    narrator.sum_up()


def _supervise(spec: str, workers: int, mode: Mode, member: str | None, options: list[str]) -> int:
    from settled.operations.supervise import Supervisor

    commands = []
    for number in range(1, workers + 1):
        name = f"{member or 'worker'}-{number}"
        command = [sys.executable, "-m", "settled", "run", spec, "--supervised", "--mode", mode.value, "--member", name]
        commands.append((name, [*command, *options]))
    return Supervisor(commands, drain=mode is Mode.drain, say=lambda text: say(f"settled: {text}")).run()


class _Narrator:
    """Tells on standard error what a person wants to know of a running worker. Idleness is told when it lasts: every
    worker is idle for a moment, until the others have given it its share."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: threading.Timer | None = None
        self._counts: dict[str, int] = {}
        self._failures: set[str] = set()

    def hear(self, event: Event) -> None:
        from settled.events import AttemptFailed, GapFound, HintsLost, PartitionChanged, Settled, StateChanged, Swept

        match event:
            case Settled(counts=counts):
                for outcome, count in counts.items():
                    word = outcome.name.lower()
                    self._counts[word] = self._counts.get(word, 0) + count
            case StateChanged(state=state, why=why):
                self._state(state, why)
            case AttemptFailed(record=record, failure=failure) if failure.fingerprint not in self._failures:
                self._failures.add(failure.fingerprint)  # each kind once: a thousand equal ones tell no more
                place = f"{record.topic}/{record.partition}@{record.offset}"
                say(f"{self._name}: {place} failed ({failure.kind}): {failure.error}: {failure.message[:300]}")
            case PartitionChanged(topic=topic, partition=partition, change="stopped" | "lost" as change, why=why):
                say(f"{self._name}: {topic}/{partition} {change}: {why}")
            case HintsLost(passed=passed, dropped=dropped):
                say(f"{self._name}: {passed} hints passed unread, {dropped} were too many to hold")
            case Swept(failure=failure) if failure is not None:
                say(f"{self._name}: the sweep failed ({failure.kind}): {failure.error}: {failure.message[:300]}")
            case GapFound():
                lost = event.next - event.first
                say(f"{self._name}: {event.topic}/{event.partition}: gap of {lost} from {event.first} on")

    def _state(self, state: str, why: str) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        text = f"{self._name}: {state}" + (f": {why}" if why else "")
        if state != "idle":
            say(text)
            return
        self._idle = threading.Timer(IDLE_TOLD_S, say, (text,))
        self._idle.daemon = True
        self._idle.start()

    def sum_up(self) -> None:
        told = ", ".join(f"{count:,} {word}" for word, count in sorted(self._counts.items())) or "nothing"
        say(f"{self._name}: settled here: {told}")
