"""Is everything in place? Versions, settings and who made them, the log, the store: each looked at, not assumed."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Literal

import apsw
import msgspec

from settled import sqlite
from settled.engine import Engine
from settled.engines.sqlite import tip
from settled.errors import ContractError, SettledError, Unavailable
from settled.store import Store

State = Literal["ok", "note", "bad", "unreachable"]
PACKAGES = ("settled", "apsw", "msgspec", "zstandard", "ruamel.yaml", "typer", "rich", "psycopg")
DURABILITY = ("journal_mode", "synchronous", "mmap_size", "cell_size_check", "trusted_schema", "wal_autocheckpoint")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing looked at. `remedy` is set when something is to be done."""

    name: str
    state: State
    told: str
    remedy: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """An engine or store: its address as it may be shown, who said so, and how to open it."""

    kind: Literal["log", "effects"]
    url: str
    shown: str
    origin: str


def versions() -> Iterator[Check]:
    """What is installed."""
    yield Check(name="python", state="ok", told=f"{platform.python_version()} on {platform.platform(terse=True)}")
    for package in PACKAGES:
        try:
            yield Check(name=package, state="ok", told=metadata.version(package))
        except metadata.PackageNotFoundError:
            if package != "psycopg":
                yield Check(name=package, state="bad", told="not installed", remedy=f"pip install {package}")
            else:
                yield Check(name=package, state="note", told="not installed; PostgreSQL effects need settled[postgres]")
    yield _of("sqlite", _sqlite_version)


def place(found: Place) -> Iterator[Check]:
    """Where it is and who said so; for a SQLite file its file system and what its durability rests on."""
    yield Check(name=found.kind, state="ok", told=f"{found.shown} (from {found.origin})")
    if not found.url.startswith("sqlite:"):
        return
    try:
        path = sqlite.path_of(found.url)[0].absolute()
    except ContractError as error:
        yield Check(name=found.kind, state="bad", told=error.message, remedy=error.hint)
        return
    if not path.parent.is_dir():
        yield Check(name=found.kind, state="bad", told=f"there is no folder {path.parent}", remedy="create it")
        return
    kind = sqlite.file_system(path.parent)
    network = kind in sqlite.NETWORK_SYSTEMS
    remedy = "use a local disk: SQLite's locks do not hold on network file systems" if network else ""
    name = f"{found.kind} file system"
    yield Check(name=name, state="bad" if network else "ok", told=kind or "not known", remedy=remedy)
    if path.exists():
        yield _of(f"{found.kind} durability", lambda: _pragmas(path))


def log(opened: Callable[[], AbstractContextManager[Engine]], found: Place) -> Check:
    """Opens the log, which compares it with its tip."""

    def look() -> str:
        with opened() as engine:
            topics = engine.topics()
            records = sum(part.records for info in topics for part in info.partitions)
            told = f"{len(topics)} topics, {records:,} records"
            if engine.name == "sqlite":
                mark = tip.read(sqlite.path_of(found.url)[0])
                told += f"; history whole, {mark.commits:,} appends" if mark else "; no tip beside it"
            return told

    return _of("log content", look)


def effects(opened: Callable[[], AbstractContextManager[Store]]) -> Check:
    """Opens the store, which compares its schema with this release's."""

    def look() -> str:
        with opened() as store:
            consumers = {name for name, _ in store.positions()}
            return f"schema is this release's; {len(consumers)} consumers"

    return _of("effects content", look)


def _of(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name=name, state="ok", told=look())
    except Unavailable as error:
        return Check(name=name, state="unreachable", told=error.message, remedy=error.hint)
    except SettledError as error:
        return Check(name=name, state="bad", told=error.message, remedy=error.hint)


def _sqlite_version() -> str:
    sqlite.require_safe_version()
    return f"{apsw.sqlite_lib_version()}, inside apsw"


def _pragmas(path: Path) -> str:
    connection = sqlite.open_connection(path)
    try:
        return ", ".join(f"{name}={connection.pragma(name)}" for name in DURABILITY)
    except apsw.Error as error:
        raise sqlite.translate(error, path) from error
    finally:
        connection.close()
