"""Where everything is printed: data on standard output (table, one JSON document, or JSON lines), all else on standard
error. A closed pipe ends the command quietly.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from settled.cli.text import shown, shown_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA_VERSION = 1


class Output(enum.StrEnum):
    table = "table"
    json = "json"
    jsonl = "jsonl"


def chosen(output: Output | None) -> Output:
    """What was asked for; else a table in a terminal, JSON in a pipe or a file."""
    return output or (Output.table if sys.stdout.isatty() else Output.json)


def emit(
    output: Output | None,
    kind: str,
    document: Mapping[str, Any],
    *,
    draw: Callable[[], Iterable[RenderableType]],
    rows: str | None = None,
) -> None:
    """Print a report. `rows` names the list in `document` whose items are the JSON lines; none: the whole is one."""
    match chosen(output):
        case Output.table:
            console = _console()
            for part in draw():
                console.print(part)
        case Output.json:
            write(_json({"schema_version": SCHEMA_VERSION, "kind": kind, **_plain(document)}, indent=2))
        case Output.jsonl:
            for item in [document] if rows is None else document[rows]:
                write(line_json(kind, item))


def line_json(kind: str, item: Any) -> str:
    """One JSON line."""
    return _json({"schema_version": SCHEMA_VERSION, "kind": kind, **_plain(item)})


def grid(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> RenderableType:
    """A table. Columns whose name begins with `>` are aligned to the right; cells are escaped."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=shown(title) or None,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        title_justify="left",
        title_style="bold",
    )
    for name in columns:
        right = name.startswith(">")
        table.add_column(Text(name.lstrip(">")), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def line(text: str, style: str = "") -> RenderableType:
    """A line of text in a table report."""
    from rich.text import Text

    return Text(shown(text), style=style)


def write(text: str) -> None:
    """A line on standard output. When nobody reads it any more, the command ends with 0."""
    try:
        sys.stdout.write(text + "\n")
    except BrokenPipeError:
        end_quietly()


def flush() -> None:
    """Standard output, now."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        end_quietly()


def say(text: str) -> None:
    """A line for people on standard error."""
    try:
        print(shown_lines(text), file=sys.stderr, flush=True)
    except BrokenPipeError:
        end_quietly()


def end_quietly() -> NoReturn:
    """The reader of a pipe went away: that is its right."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    raise SystemExit(0)


def prepare_streams() -> None:
    """Characters that the terminal's encoding lacks are escaped instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def console_width(stream: TextIO) -> int | None:
    """None (the terminal's) in a terminal; elsewhere lines are as long as they need to be."""
    return None if stream.isatty() else 10_000


def _console() -> Any:
    from rich.console import Console

    class QuietConsole(Console):
        def on_broken_pipe(self) -> None:
            end_quietly()

    return QuietConsole(markup=False, highlight=False, emoji=False, width=console_width(sys.stdout))


def _plain(document: Any) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(document, str_keys=True)
    return plain


def _json(document: Any, indent: int | None = None) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=True, allow_nan=False)
