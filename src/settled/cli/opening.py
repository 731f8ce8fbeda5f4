"""What a verb works on: the contract or app that was named, and the engine and store, with where each address came
from. Verbs that only look never create a file: a log that is not there is told, not made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from settled.address import parts_of
from settled.errors import ContractError, Unavailable

if TYPE_CHECKING:
    from settled.app import App
    from settled.contract.model import Contract
    from settled.engine import Engine
    from settled.store import Store

DEFAULT_CONTRACT = "contract.yaml"


class Address(NamedTuple):
    """A URL and who said so."""

    url: str
    origin: str

    @property
    def shown(self) -> str:
        return without_password(self.url)


class Source(NamedTuple):
    """A contract, from a file or with its app."""

    contract: Contract
    app: App | None
    name: str


def source(spec: str) -> Source:
    """The contract that `spec` names: a file of YAML, or an app. Raises ContractError."""
    if Path(spec).suffix in {".yaml", ".yml"} or (Path(spec).is_file() and Path(spec).suffix != ".py"):
        from settled.contract.load import load

        return Source(load(spec), None, spec)
    from settled.cli.apps import load_app

    app = load_app(spec)
    return Source(app.contract, app, spec)


def stated_source(spec: str | None) -> Source:
    """As `source`; without a name, the contract.yaml of the working directory."""
    if spec is not None:
        return source(spec)
    if Path(DEFAULT_CONTRACT).is_file():
        return source(DEFAULT_CONTRACT)
    raise ContractError(
        f"no contract is named, and there is no {DEFAULT_CONTRACT} here",
        field="--contract",
        hint="add --contract FILE (or APP); `settled init DIR` writes one",
    )


def engine_address(flag: str | None, app: App | None = None) -> Address:
    from settled.app import DEFAULT_ENGINE

    return _address(flag, "--engine", app.engine_url if app else None, "SETTLED_ENGINE", DEFAULT_ENGINE)


def store_address(flag: str | None, app: App | None = None) -> Address:
    from settled.app import DEFAULT_STORE

    return _address(flag, "--store", app.store_url if app else None, "SETTLED_STORE", DEFAULT_STORE)


def _address(flag: str | None, option: str, app_url: str | None, variable: str, default: str) -> Address:
    named = os.environ.get(variable)
    if flag:
        return Address(flag, f"the option {option}")
    if app_url and app_url not in (named, default):
        return Address(app_url, "the app")
    return Address(named, f"the variable {variable}") if named else Address(default, "the default")


@contextmanager
def opened_engine(address: Address, *, create: bool = False) -> Iterator[Engine]:
    """The engine; with `create` its file may be made. Raises Unavailable when there is none."""
    from settled import connect

    if not create and not is_there(address.url):
        raise Unavailable(f"there is no log at {address.shown} ({address.origin})", hint=_WHERE.format("--engine"))
    engine = connect.engine(address.url)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def opened_store(address: Address) -> Iterator[Store]:
    """The store, as it is. Raises Unavailable when there is none."""
    from settled import connect

    if not is_there(address.url):
        raise Unavailable(f"there is no store at {address.shown} ({address.origin})", hint=_WHERE.format("--store"))
    store = connect.store(address.url)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def opened_store_or_none(address: Address) -> Iterator[Store | None]:
    """The store, or none when nothing was ever settled into it: no file, or no tables of settled's."""
    if not is_there(address.url):
        yield None
        return
    with opened_store(address) as store:
        try:
            store.positions()
        except ContractError as error:
            if error.field != "store":
                raise
            yield None
        else:
            yield store


def is_there(url: str) -> bool:
    """Whether something is there to open. Servers are asked when they are opened."""
    if parts_of(url, "url").scheme != "sqlite":
        return True
    from settled.sqlite import path_of

    path = path_of(url)[0]
    return path.exists() or path.with_name(path.name + "-tip").exists()  # a tip without its log is told by the engine


def without_password(url: str) -> str:
    """The address with the secrets left out that may stand in it."""
    parts = parts_of(url, "url")
    user, _, host = parts.netloc.rpartition("@")
    pairs = [pair.partition("=")[0] + "=***" if "password" in pair.lower() else pair for pair in parts.query.split("&")]
    netloc = f"{user.partition(':')[0]}{':***' if ':' in user else ''}@{host}" if user else parts.netloc
    query = "?" + "&".join(pairs) if parts.query else ""
    return f"{parts.scheme}://{netloc}{parts.path}{query}" if parts.scheme else url


_WHERE = "is this the right folder? name another with {}; publishing and running make them"
