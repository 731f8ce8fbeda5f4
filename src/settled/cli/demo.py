"""`settled demo`: the main job before your eyes. Its engine room is `settled.drills.demo`."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from settled.cli.options import OutputOption
from settled.cli.output import Output, say, write
from settled.errors import ContractError

if TYPE_CHECKING:
    from settled.drills.demo.verdict import Verdict

PLAIN_EVERY_S = 2.0
LABELS = {
    "published": "published",
    "delivered": "delivered",
    "redelivered": "redelivered",
    "applied": "applied",
    "duplicates": "duplicates refused",
    "stale": "stale refused",
    "lost": "lost",
    "doubled": "doubled",
    "order_violations": "order violations",
    "seconds": "seconds",
    "effects_per_second": "effects per second",
}


def demo(
    records: Annotated[int, typer.Option(min=100, help="Messages to publish.")] = 20_000,
    workers: Annotated[int, typer.Option(min=1, max=12, help="Worker processes.")] = 2,
    seed: Annotated[int, typer.Option(help="The same seed gives the same stream.")] = 1,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Work in this new or empty folder, and keep it.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """Publish orders, kill a worker midway, then count the reservations in the database."""
    from settled.drills.demo.run import run

    folder = _folder(keep)
    try:
        with _watcher() as watcher:
            found = run(folder, records=records, workers=workers, seed=seed, watcher=watcher)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    _print(found, output or Output.table)
    if not found.good:
        raise typer.Exit(1)


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="settled-demo-"))
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise ContractError(
            f"{keep} is not empty", field="--keep", value=str(keep), hint="name a new folder or an empty one"
        )
    return keep.resolve()


def _print(found: Verdict, output: Output) -> None:
    import msgspec

    if output is not Output.table:
        raw = msgspec.json.encode(found)
        write((raw if output is Output.jsonl else msgspec.json.format(raw, indent=2)).decode())
        return
    for name, value in msgspec.structs.asdict(found).items():
        write(f"{LABELS[name]:<20}{value:>12,}")
    write("")
    if found.good:
        write("Every order version that should have a reservation has one, once, in order.")
    else:
        write("FAILED: lost, doubled and order violations should all be 0.")


class _Lines:
    """Progress as lines on standard error."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def say(self, text: str) -> None:
        say(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def progress(self, made: int, wanted: int) -> None:
        if made and time.monotonic() - self._told >= PLAIN_EVERY_S:
            self._told = time.monotonic()
            self.say(f"{made:,} of {wanted:,} effects")


class _Bar:
    """Progress as a bar on standard error; what happens is written above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("effects"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("effects", total=None)

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False)

    def progress(self, made: int, wanted: int) -> None:
        self._bar.update(self._task, completed=made, total=wanted)


def _watcher() -> _Lines | _Bar:
    return _Bar() if sys.stderr.isatty() else _Lines()
