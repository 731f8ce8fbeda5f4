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
from settled.contract import specs
from settled.contract.model import Contract
from settled.engine import Engine, TopicInfo, TopicSpec
from settled.errors import ContractError, SettledError, Unavailable
from settled.operations import topics
from settled.store import Store

State = Literal["ok", "note", "bad", "unreachable"]
PACKAGES = ("settled", "apsw", "msgspec", "zstandard", "ruamel.yaml", "typer", "rich", "psycopg", "confluent-kafka")
EXTRAS = {
    "psycopg": "PostgreSQL effects need settled[postgres]",
    "confluent-kafka": "Apache Kafka needs settled[kafka]",
}
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
            if package in EXTRAS:
                yield Check(name=package, state="note", told=f"not installed; {EXTRAS[package]}")
            else:
                yield Check(name=package, state="bad", told="not installed", remedy=f"pip install {package}")
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


def log(opened: Callable[[], AbstractContextManager[Engine]], contract: Contract | None = None) -> Iterator[Check]:
    """Opens the log, which compares it with what it remembers of itself, and looks at it; with a contract also whether
    its topic is as the contract wants it."""
    spec = specs.topic_spec(contract) if contract is not None else None
    try:
        with opened() as engine:
            infos = engine.topics()
            records = sum(part.records for info in infos for part in info.partitions)
            yield Check(name="log content", state="ok", told=f"{len(infos)} topics, {records:,} records")
            durability = contract.producer.durability if contract is not None else "memory"
            for one in engine.examine(spec, durability):
                yield Check(name=one.name, state=one.state, told=one.told, remedy=one.remedy)
            if spec is not None:
                yield from _topic(spec, engine.topics([spec.name]))
    except SettledError as error:
        yield _failed("log content", error)


def _topic(spec: TopicSpec, infos: list[TopicInfo]) -> Iterator[Check]:
    name = f"topic {spec.name}"
    info = next((info for info in infos if info.spec.name == spec.name), None)
    if info is None:
        yield Check(name=name, state="note", told="not there yet; publishing makes it")
        return
    differences = topics.compare(spec, info)
    for each in differences:
        told = f"{each.field} is {each.found}, the contract wants {each.wanted}"
        yield Check(name=name, state="bad", told=told, remedy=each.remedy)
    if not differences:
        yield Check(name=name, state="ok", told="as the contract wants it")
    for note in info.notes:
        yield Check(name=name, state="note", told=note)


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
    except SettledError as error:
        return _failed(name, error)


def _failed(name: str, error: SettledError) -> Check:
    state: State = "unreachable" if isinstance(error, Unavailable) else "bad"
    return Check(name=name, state=state, told=error.message, remedy=error.hint)


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
