"""settled init: a folder to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from settled.cli.output import say


def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Write a contract, a handler, sample events and a README that run as they are."""
    from settled.operations.starter import write_starter

    for path in write_starter(folder):
        say(f"wrote {path}")
    say(f"next: cd {folder}, and what its README.md says")
