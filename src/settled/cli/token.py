"""settled token: position tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from settled.cli.options import OutputOption
from settled.cli.output import emit, grid

verbs = typer.Typer(help="Position tokens.", no_args_is_help=True)


@verbs.callback()
def _token() -> None:
    """Position tokens."""


@verbs.command("check")
def check(
    token: Annotated[str, typer.Argument(help="The token, as publish gave it.", show_default=False)],
    output: OutputOption = None,
) -> None:
    """Say which record a token names. Asks no log and no store; exits 2 for what is no token."""
    from settled.tokens import read_token

    found = read_token(token)
    document = {
        "topic": found.topic,
        "event_id": found.event_id,
        "partition": found.partition,
        "offset": found.offset,
        "incarnation": found.identity or None,
    }

    def draw() -> Iterator[Any]:
        yield grid(("field", "value"), [(name, "-" if value is None else value) for name, value in document.items()])

    emit(output, "token", document, draw=draw)
