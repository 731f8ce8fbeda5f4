"""Progress on standard error: a bar in a terminal, a plain line every five seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from settled.cli.output import say

PLAIN_EVERY_S = 5.0

Tell = Callable[[int, str], None]  # how far (in the units of the total), and words


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Tell]:
    """A function to tell how far the work came. `total` none: not known."""
    if sys.stderr.isatty():
        with _bar(what, total) as tell:
            yield tell
    else:
        yield _plain(what, total)


def _plain(what: str, total: int | None) -> Tell:
    told = time.monotonic()

    def tell(done: int, words: str) -> None:
        nonlocal told
        if time.monotonic() - told >= PLAIN_EVERY_S:
            told = time.monotonic()
            share = f"{min(100.0, 100 * done / total):.0f}%, " if total else ""
            say(f"{what}: {share}{words}")

    return tell


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total, words="")

        def tell(done: int, words: str) -> None:
            bar.update(task, completed=done, words=words)

        yield tell
