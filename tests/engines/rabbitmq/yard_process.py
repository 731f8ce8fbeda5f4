"""A worker in a process of its own, started by Yard.process with JSON arguments. Its handlers write down in files of
their folder when they start, because their effects die with them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from yard import Yard, insert

from settled import windows
from settled.record import Record
from settled.store import Tx

FOLDER = Path(".")


def note(name: str, text: str) -> None:
    with (FOLDER / name).open("a") as file:
        file.write(text + "\n")


def plain(tx: Tx, record: Record) -> None:
    insert(tx, record)


def boom(tx: Tx, record: Record) -> None:
    """Dies on the id `boom`."""
    if record.id == "boom":
        note("booms", record.id)
        os._exit(137)
    insert(tx, record)


def fails(tx: Tx, record: Record) -> None:
    note("starts", record.id)
    raise ValueError("always")


def stuck(tx: Tx, record: Record) -> None:
    """Inserts, then waits until the file `go` appears."""
    note("starts", record.id)
    insert(tx, record)
    never = threading.Event()
    while not (FOLDER / "go").exists():
        never.wait(0.05)


def held(tx: Tx, record: Record) -> None:
    """Waits until the file `go` appears, then inserts: no lock of the store is held meanwhile."""
    note("starts", record.id)
    never = threading.Event()
    while not (FOLDER / "go").exists():
        never.wait(0.05)
    insert(tx, record)


def dies_committed(tx: Tx, record: Record) -> None:
    """The process ends right after its first commit of an effect, before the broker is told."""
    windows.install(lambda window: os._exit(137) if window == "effect-committed" else None)
    insert(tx, record)


def main() -> None:
    global FOLDER
    given: dict[str, Any] = json.loads(sys.argv[1])
    FOLDER = Path(given["folder"])
    yard = Yard(FOLDER, given["engine"], given["store"], given["usual"])
    yard.topic = given["topic"]
    app = yard.app(globals()[given["handler"]], **given["sections"])
    app.run()


if __name__ == "__main__":
    main()
