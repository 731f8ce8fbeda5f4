"""SQLite as every part of settled uses it: one way to open a file, one place where its errors get their meaning.

`open_connection` sets what durability rests on and reads it back; `translate` turns a driver error into the error
that says who must act. Only apsw's own SQLite is used: releases before 3.51.3 can damage a WAL with several writers.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import apsw

from settled.address import parts_of
from settled.errors import ContractError, Damaged, Refused, SettledError, Unavailable

SAFE_VERSION = (3, 51, 3)
BUSY_S = 30.0  # how long a connection waits for another's lock
NETWORK_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs"})

PRAGMAS: tuple[tuple[str, str, object], ...] = (  # name, what is set, what must be read back
    ("synchronous", "FULL", 2),
    ("mmap_size", "0", 0),
    ("cell_size_check", "ON", 1),
    ("trusted_schema", "OFF", 0),
)

_MEANING: dict[int, tuple[type[SettledError], str, str]] = {
    apsw.SQLITE_BUSY: (Unavailable, "is locked by another process", "trying again is safe; find who holds the lock"),
    apsw.SQLITE_LOCKED: (Unavailable, "is locked by another connection", "trying again is safe"),
    apsw.SQLITE_PROTOCOL: (Unavailable, "could not be locked", "trying again is safe"),
    apsw.SQLITE_FULL: (Unavailable, "cannot grow: the disk or a quota is full", "free some space"),
    apsw.SQLITE_IOERR: (Unavailable, "met an I/O error", "look at the disk and the system's log"),
    apsw.SQLITE_CANTOPEN: (Unavailable, "cannot be opened", "look at the folder, its rights and the open-file limit"),
    apsw.SQLITE_READONLY: (Unavailable, "cannot be written", "give this user write rights to the file and its folder"),
    apsw.SQLITE_PERM: (Unavailable, "may not be used", "give this user write rights to the file and its folder"),
    apsw.SQLITE_NOMEM: (Unavailable, "ran out of memory", "give the process more memory"),
    apsw.SQLITE_INTERRUPT: (Unavailable, "was interrupted", "trying again is safe"),
    apsw.SQLITE_CORRUPT: (Damaged, "is damaged", "stop, keep a copy, and restore a backup"),
    apsw.SQLITE_NOTADB: (Damaged, "is not a SQLite database", "check the path; nothing was changed"),
    apsw.SQLITE_AUTH: (Refused, "does not allow this statement", "leave transactions and settled's tables to settled"),
}


def path_of(url: str) -> tuple[Path, dict[str, str]]:
    """The file and the options of `sqlite:///relative.db`, `sqlite:////absolute.db` (`?name=value&...`)."""
    parts = parts_of(url, "url")
    if parts.scheme != "sqlite" or parts.netloc or len(parts.path) < 2:
        raise ContractError(
            f"{url!r} is not the address of a SQLite file",
            field="url",
            value=url,
            hint="write sqlite:///relative/path.db, or sqlite:////absolute/path.db with four slashes",
        )
    return Path(unquote(parts.path[1:])), dict(parse_qsl(parts.query, keep_blank_values=True))


def open_connection(
    path: str | os.PathLike[str],
    *,
    busy_s: float = BUSY_S,
    cache_kib: int = 8192,
    statements: int = 100,
    network: bool = False,
) -> apsw.Connection:
    """Open (or create) the database for reading and writing, in WAL mode, each commit synced to the disk.

    `statements` is the size of the cache of prepared statements. Raises Refused on an unsafe SQLite, a network file
    system (unless `network`) or settings that do not hold; ContractError for a folder that is not there; Unavailable,
    Damaged as `translate` says. The connection belongs to the process that opened it: never use it after a fork.
    """
    require_safe_version()
    file = Path(path)
    if not file.parent.is_dir():
        raise ContractError(
            f"there is no folder {str(file.parent)!r} for {file.name}", field="url", value=str(file), hint="create it"
        )
    if not network:
        _refuse_network(file)
    fresh = not file.exists()
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    try:
        connection = apsw.Connection(str(file), flags=flags, statementcachesize=statements)
    except apsw.Error as exc:
        raise translate(exc, file) from exc
    try:
        connection.set_busy_handler(busy_handler(busy_s))
        _to_wal(connection, busy_s)
        connection.execute(f"PRAGMA cache_size = -{cache_kib}")
        _set_pragmas(connection)
    except apsw.Error as exc:
        connection.close(True)
        raise translate(exc, file) from exc
    except BaseException:
        connection.close(True)
        raise
    if fresh:
        sync_folder(file.parent)
    return connection


def translate(exc: apsw.Error, what: object = "the database") -> Exception:
    """The error to raise for `exc`: Unavailable, Damaged or Refused, judged by SQLite's code. An error of the
    statement itself (syntax, constraint, type) has no other meaning and comes back as it is."""
    if isinstance(exc, apsw.ForkingViolationError):
        return Refused("a SQLite connection was carried across fork", hint="open stores and engines after the fork")
    meaning = _MEANING.get(getattr(exc, "result", -1) & 0xFF)
    if meaning is None:
        return exc
    kind, text, hint = meaning
    return kind(f"{what} {text} ({code_name(exc)})", hint=hint)


def code_name(exc: apsw.Error) -> str:
    """SQLite's own name of the error, such as SQLITE_IOERR_FSYNC."""
    extended = int(getattr(exc, "extendedresult", 0))
    names = apsw.mapping_extended_result_codes, apsw.mapping_result_codes
    return str(names[0].get(extended) or names[1].get(extended & 0xFF) or extended)


def busy_handler(limit_s: float) -> Callable[[int], bool]:
    """Waits for another's lock in short sleeps of uneven length, so that waiters do not move in step."""
    started = 0.0

    def wait(calls: int) -> bool:
        nonlocal started
        if calls == 0:
            started = time.monotonic()
        elif time.monotonic() - started > limit_s:
            return False
        time.sleep(random.uniform(0.0002, 0.001 if calls < 20 else 0.005))
        return True

    return wait


def require_safe_version() -> None:
    """Refuse a SQLite whose WAL several writers can damage (fixed in 3.51.3)."""
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < SAFE_VERSION:
        raise Refused(
            f"SQLite {version} can damage a database with several writers",
            hint="install an apsw wheel with SQLite 3.51.3 or newer: pip install -U apsw",
        )


def sync_folder(folder: Path) -> None:
    """Make the creation of a file in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_wal(connection: apsw.Connection, busy_s: float) -> None:
    """Switching to WAL does not always wait for a lock by itself: several processes may create the file at once."""
    deadline = time.monotonic() + busy_s
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.01))
            continue
        if mode != "wal":
            raise Refused(f"the database stays in journal mode {mode}", hint="put it on a local file system")
        return


def _set_pragmas(connection: apsw.Connection) -> None:
    for name, value, expected in PRAGMAS:
        connection.execute(f"PRAGMA {name} = {value}")
        found: Any = connection.execute(f"PRAGMA {name}").fetchall()
        if found and found[0][0] != expected:  # no row: this build has no such thing to switch off
            raise Refused(f"PRAGMA {name} is {found[0][0]} after it was set to {value}", hint="use apsw's own wheel")


def file_system(folder: Path) -> str:
    """The kind of file system that holds `folder`, as the kernel calls it; empty where it cannot be known."""
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():
        return ""
    folder, best, kind = folder.resolve(), "", ""
    for line in mounts.read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        mount = left.split(" ")[4].replace("\\040", " ")
        if folder.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, right.split(" ")[0]
    return kind


def _refuse_network(file: Path) -> None:
    """SQLite's locks do not hold on network file systems."""
    kind = file_system(file.parent)
    if kind in NETWORK_SYSTEMS:
        raise Refused(
            f"{file} is on a network file system ({kind}), where SQLite's locks do not hold",
            hint="use a local disk, or PostgreSQL for effects",
        )
