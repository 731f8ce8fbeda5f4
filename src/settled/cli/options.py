"""The options that verbs share: one spelling and one meaning each."""

from __future__ import annotations

from typing import Annotated

import typer

from settled.cli.output import Output

OutputOption = Annotated[
    Output | None,
    typer.Option(
        "--output",
        "-o",
        envvar="SETTLED_OUTPUT",
        help="How to report. A table in a terminal and JSON elsewhere, unless stated.",
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="URL", help="The log; else the app's, else SETTLED_ENGINE, else sqlite:///settled-log.db."
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The effect store; else the app's, else SETTLED_STORE, else sqlite:///settled-effects.db.",
    ),
]
ContractOption = Annotated[
    str | None,
    typer.Option(
        "--contract", metavar="FILE|APP", help="A contract file, or an app: path/to/app.py, app.py:name or module:name."
    ),
]
ContractArgument = Annotated[
    str, typer.Argument(metavar="FILE|APP", help="A contract file, or an app: app.py, app.py:name or module:name.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept with what is done.")]
