"""settled contract: check what a contract promises, show what is in force, explain what it means on an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from settled.cli.options import ContractArgument, EngineOption, OutputOption
from settled.cli.output import Output, chosen, emit, grid, line, write

if TYPE_CHECKING:
    from settled.operations.findings import Placed

verbs = typer.Typer(help="Check and show contracts.", no_args_is_help=True)

CheckEngine = Annotated[
    str | None,
    typer.Option("--engine", metavar="URL", help="Check also what this engine can keep."),
]


@verbs.command("check")
def check(spec: ContractArgument, engine: CheckEngine = None, output: OutputOption = None) -> None:
    """Find contradictions, and fields that nothing enforces yet. Exit 1 if there is an error among them."""
    from settled.cli.opening import source
    from settled.contract.load import load_with_places
    from settled.operations.findings import findings

    found = source(spec)
    places = load_with_places(spec)[1] if found.app is None else None
    told = findings(found.contract, _capabilities(engine), places)
    errors = sum(1 for finding in told if finding.severity == "error")

    def draw() -> Iterator[Any]:
        if told:
            yield grid(
                ("severity", "rule", "where", "message", "what to change"),
                [(one.severity, one.rule, _where(spec, one), one.message, one.remedy) for one in told],
            )
        yield line(f"{found.contract.name} v{found.contract.version}: {errors} errors, {len(told) - errors} other")

    document = {"name": found.contract.name, "version": found.contract.version, "errors": errors, "findings": told}
    emit(output, "contract-check", document, draw=draw, rows="findings")
    if errors:
        raise typer.Exit(1)


@verbs.command("show")
def show(spec: ContractArgument, output: OutputOption = None) -> None:
    """Print the contract in force: every field, defaults marked as such."""
    from settled.cli.opening import source

    contract = source(spec).contract
    if output in (None, Output.table):
        write(contract.show().rstrip("\n"))
        return
    emit(chosen(output), "contract", {"contract": contract}, draw=lambda: ())


@verbs.command("explain")
def explain(spec: ContractArgument, engine: EngineOption = None, output: OutputOption = None) -> None:
    """Say what the contract promises on an engine: who owns a record, who may read it, how long it lives, what order
    holds through which failures, what may repeat, what may be lost, and what enforces each. Opens nothing."""
    from settled import connect
    from settled.cli.opening import engine_address, source
    from settled.contract.explain import TITLES
    from settled.operations.explaining import explained

    found = source(spec)
    name, capabilities = connect.kind(engine_address(engine, found.app).url)
    contract = found.contract
    facts = explained(contract, name, capabilities)

    def draw() -> Iterator[Any]:
        yield line(
            f"{contract.name} v{contract.version}: {contract.transport.form} {contract.transport.topic} on {name}"
        )
        for about, title in TITLES.items():
            yield line(title, "bold")
            for fact in facts:
                if fact.about == about:
                    yield line(f"  {fact.told}")
                    if fact.by:
                        yield line(f"    enforced by: {fact.by}", "dim")

    document = {
        "name": contract.name,
        "version": contract.version,
        "form": contract.transport.form,
        "engine": name,
        "facts": facts,
    }
    emit(output, "contract-explain", document, draw=draw, rows="facts")


def _capabilities(url: str | None) -> Any:
    """What the engine can keep; asked only of one that is named, and without making its file."""
    if url is None:
        return None
    from settled.cli.opening import engine_address, opened_engine

    with opened_engine(engine_address(url)) as engine:
        return engine.capabilities


def _where(spec: str, finding: Placed) -> str:
    return f"{Path(spec).name}:{finding.line} {finding.field}" if finding.line else finding.field
