"""The application under drill: found as `settled run` finds it, pointed at the drill's log and store."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from settled.app import App
from settled.contract.load import with_changes
from settled.errors import ContractError

SAMPLE = "settled.drills.sample:app"


def find(reference: str) -> App:
    """`package.module:app`, `path/to/file.py` or `path/to/file.py:app`; "" is the sample application. Without a name
    the module must hold one App."""
    place, _, name = (reference or SAMPLE).partition(":")
    module = _from_file(place) if place.endswith(".py") else _from_name(place)
    found = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name:
        found = {name: found[name]} if name in found else {}
    if len(found) != 1:
        raise ContractError(
            f"{reference} holds {len(found)} apps" if not name else f"there is no App {name!r} in {place}",
            field="app",
            value=reference,
            hint="name it: package.module:app or path/to/file.py:app",
        )
    (app,) = found.values()
    if app.contract.transport.form == "notification":
        raise ContractError(
            "hints are lost by contract: a drill has nothing to count",
            field="transport.form",
            value="notification",
            hint="kill its process in a test of your own, and compare the tables once its sweep ran",
        )
    return app


def looked_at(reference: str, engine: str, store: str, changes: Mapping[str, Any]) -> App:
    """The application at other addresses, its contract changed for the drill; several may be open in one process."""
    app = find(reference)
    return app.at(engine=engine, store=store, contract=with_changes(app.contract, changes, source="drill"))


def moved(reference: str, engine: str, store: str, changes: Mapping[str, Any]) -> App:
    """The application itself, moved to other addresses: whatever refers to it finds itself there."""
    app = find(reference)
    app.engine_url, app.store_url = engine, store
    app.contract = with_changes(app.contract, changes, source="drill")
    return app


def _from_file(place: str) -> Any:
    path = Path(place)
    if not path.is_file():
        raise ContractError(f"there is no file {place}", field="app", value=place, hint="give the path of your app")
    name = f"settled_drilled_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _from_name(place: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not place.startswith(error.name):
            raise
        raise ContractError(
            f"there is no module {place!r}",
            field="app",
            value=place,
            hint="run where it can be imported, or give a file",
        ) from error
