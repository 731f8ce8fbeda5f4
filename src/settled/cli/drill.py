"""`settled drill`: kill real workers in every window, then compare the effects with what was published. Its engine room
is `settled.drills.drill`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from settled.cli.options import OutputOption, YesOption
from settled.cli.output import Output, chosen, emit, line, say

if TYPE_CHECKING:
    from settled.drills.report import Report, Row


def drill(
    app: Annotated[
        str, typer.Argument(metavar="APP", help="path/to/app.py, app.py:name or module:name; none: a sample.")
    ] = "",
    window: Annotated[
        list[str] | None,
        typer.Option("--window", "-w", metavar="W", help="A window (see docs/windows.md); repeatable."),
    ] = None,
    named: Annotated[
        list[str] | None, typer.Option("--drill", metavar="NAME", help="A drill by name, e.g. stall; repeatable.")
    ] = None,
    kills: Annotated[int, typer.Option(min=1, max=100_000, help="Deaths in each window.")] = 5,
    records: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Records to publish: one JSON object a line (key, value, ...).")
    ] = None,
    check: Annotated[
        str, typer.Option(metavar="SQL", help="One row per effect: event id, then key and order if there are any.")
    ] = "",
    engine: Annotated[
        str, typer.Option(metavar="URL", help="The log; none: fresh files. kafka-test:, rabbitmq-test: run brokers.")
    ] = "",
    store: Annotated[str, typer.Option(metavar="URL", help="The effect store; none: fresh files.")] = "",
    seed: Annotated[int | None, typer.Option(help="Repeat the plan of an earlier run.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Work in this folder, and keep databases and histories.")
    ] = None,
    yes: YesOption = False,
    output: OutputOption = None,
) -> None:
    """Kill workers of APP in every window, restart them; say whether an effect was lost, doubled or out of order."""
    from settled.drills.drill import Drill, run
    from settled.drills.report import text

    asked = Drill(
        app=app,
        windows=tuple(window or ()),
        named=tuple(named or ()),
        kills=kills,
        records=records,
        check=check,
        engine=engine,
        store=store,
        folder=keep,
        seed=seed,
        yes=yes,
    )
    shown = chosen(output)
    found = run(asked, told=_tell if shown is Output.table else lambda row: None)
    emit(output, "drill", _document(found), draw=lambda: map(line, text(found)), rows="windows")
    if found.verdict != "pass":
        raise typer.Exit(1)


def _tell(row: Row) -> None:
    say(f"{row.window}: {row.kills} kills, {'FAILED' if row.failed else 'good'} ({row.seconds:.1f} s)")


def _document(found: Report) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(found)
    return document
