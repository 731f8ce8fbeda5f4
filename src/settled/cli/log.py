"""settled log: the embedded log as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from settled.cli.confirm import confirm, required_reason
from settled.cli.options import DryRunOption, EngineOption, OutputOption, ReasonOption, StoreOption, YesOption
from settled.cli.output import emit, grid, line, say

verbs = typer.Typer(help="The embedded log as a whole.", no_args_is_help=True)


@verbs.callback()
def _log() -> None:
    """The embedded log as a whole."""


@verbs.command("accept-loss")
def accept_loss(
    reason: ReasonOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    engine: EngineOption = None,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """Go on with a log that went back in time (a restored copy, a deleted WAL). No offset is used twice; what lies
    between is recorded as lost."""
    from settled.cli.opening import engine_address, is_there, opened_store_or_none, store_address
    from settled.errors import Unavailable
    from settled.operations import loss

    address = engine_address(engine)
    loss.require_embedded(address.url)
    if not is_there(address.url):
        raise Unavailable(f"there is no log at {address.shown} ({address.origin})", hint="name it with --engine")
    with opened_store_or_none(store_address(store)) as effects:
        say(f"accept the loss in {address.shown}: all partitions go on above every offset ever given.")
        say(f"The highest frontier in the store is {loss.highest_frontier(effects) + 1}. Stop all workers first.")
        if dry_run:
            return
        why = required_reason(reason)
        confirm("accept the loss?", yes=yes)
        done = loss.accept(address.url, effects, reason=why)

    def draw() -> Iterator[Any]:
        yield line(f"generation {done.generation} begins")
        yield grid(
            ("topic", ">partition", ">lost from", ">goes on at"),
            [(one.topic, one.partition, one.first, one.next) for one in done.losses],
        )

    emit(output, "accept-loss", {"generation": done.generation, "losses": done.losses}, draw=draw, rows="losses")
