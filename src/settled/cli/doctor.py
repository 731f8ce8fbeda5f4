"""settled doctor: is everything in place, and where did each setting come from?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from settled.cli.options import ContractOption, EngineOption, OutputOption, StoreOption
from settled.cli.output import emit, grid

if TYPE_CHECKING:
    from settled.cli.opening import Address
    from settled.contract.model import Contract
    from settled.operations.doctor import Check


def doctor(
    contract: ContractOption = None,
    engine: EngineOption = None,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """Look at versions, log and store. Exit 1 when something is bad, 69 when something cannot be reached."""
    from settled.cli.opening import engine_address, source, store_address

    stated = source(contract) if contract is not None else None
    app = stated.app if stated else None
    said = stated.contract if stated else None
    checks = list(_checks(engine_address(engine, app), store_address(store, app), said))

    def draw() -> Iterator[Any]:
        yield grid(("what", "state", "found", "what to do"), [(c.name, c.state, c.told, c.remedy) for c in checks])

    states = {check.state for check in checks}
    emit(output, "doctor", {"healthy": not states & {"bad", "unreachable"}, "checks": checks}, draw=draw, rows="checks")
    if "bad" in states:
        raise typer.Exit(1)
    if "unreachable" in states:
        raise typer.Exit(69)


def _checks(log: Address, effects: Address, contract: Contract | None) -> Iterator[Check]:
    from settled.cli.opening import is_there, opened_engine, opened_store
    from settled.operations import doctor as operation
    from settled.operations.doctor import Check, Place

    yield from operation.versions()
    log_place = Place(kind="log", url=log.url, shown=log.shown, origin=log.origin)
    yield from operation.place(log_place)
    if is_there(log.url):
        yield from operation.log(lambda: opened_engine(log), contract)
    else:
        yield Check(name="log content", state="note", told="not there yet; publishing makes it")
    yield from operation.place(Place(kind="effects", url=effects.url, shown=effects.shown, origin=effects.origin))
    if is_there(effects.url):
        yield operation.effects(lambda: opened_store(effects))
    else:
        yield Check(name="effects content", state="note", told="not there yet; running a worker makes it")
