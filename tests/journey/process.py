"""A worker in a process of its own, started by Shop.process with JSON arguments. Its handlers write down in files of
their folder when they start, because their effects die with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from shop import Shop, insert

from settled.clock import wall_us
from settled.record import Message, Record
from settled.store import Tx

FOLDER = Path(".")


def note(name: str, text: str) -> None:
    with (FOLDER / name).open("a") as file:
        file.write(text + "\n")


def plain(tx: Tx, record: Record) -> None:
    insert(tx, record)


def boom(tx: Tx, record: Record) -> None:
    """Dies on the value `boom`."""
    if record.value == b"boom":
        note("booms", record.id)
        os._exit(137)
    insert(tx, record)


def stuck(tx: Tx, record: Record) -> None:
    """Inserts, then waits until the file `go` appears; for good if it never does."""
    note("starts", record.id)
    insert(tx, record)
    never = threading.Event()
    while not (FOLDER / "go").exists():
        never.wait(0.05)


def stuck_before(tx: Tx, record: Record) -> None:
    """Waits before its first statement: it holds no lock of the store."""
    note("starts", record.id)
    never = threading.Event()
    while not (FOLDER / "go").exists():
        never.wait(0.05)
    insert(tx, record)


def stuck_on_e0(tx: Tx, record: Record) -> None:
    if record.id == "e0":
        stuck(tx, record)
    else:
        insert(tx, record)


def stuck_swallowing(tx: Tx, record: Record) -> None:
    with contextlib.suppress(BaseException):
        stuck(tx, record)


def noted(tx: Tx, record: Record) -> None:
    """Writes down when it started, by the kernel's clock, and takes its time."""
    note("starts", f"{record.id} {wall_us()}")
    threading.Event().wait(0.02)
    insert(tx, record)


def fails(tx: Tx, record: Record) -> None:
    note("starts", record.id)
    raise ValueError("no")


def fails_on_e0(tx: Tx, record: Record) -> None:
    note("starts", record.id)
    if record.id == "e0":
        raise ValueError("no")
    insert(tx, record)


def publish(shop: Shop, first: int, count: int, **arguments: Any) -> None:
    app = shop.app(None, **arguments)
    producer = app.producer()
    for number in range(first, first + count):
        producer.send(Message(topic="t", key=b"k%d" % (number % 20), value=b"v", id=f"e{number}"))
    producer.close()
    app.close()


def fails_on_e0_or_booms(tx: Tx, record: Record) -> None:
    if record.id == "e0":
        raise ValueError("no")
    boom(tx, record)


def fails_then_dies(tx: Tx, record: Record) -> None:
    """Fails at first, and kills its worker when it is tried again."""
    if record.value != b"boom":
        insert(tx, record)
        return
    note("starts", record.id)
    if len(Path(FOLDER / "starts").read_text().splitlines()) == 1:
        raise ValueError("no")
    boom(tx, record)


def main() -> None:
    global FOLDER
    given = json.loads(sys.argv[1])
    FOLDER = Path(given.pop("folder"))
    if shift := given.pop("shift_s", 0):  # what this process takes for the time of day
        now, now_ns = time.time, time.time_ns
        time.time = lambda: now() + shift
        time.time_ns = lambda: now_ns() + shift * 1_000_000_000
    shop = Shop(FOLDER)
    handler, drain = given.pop("handler"), given.pop("drain", False)
    if handler == "publish":
        publish(shop, given.pop("first"), given.pop("count"), **given)
        return
    member = given.pop("member", None)
    app = shop.app(globals()[handler], **given)
    with app:
        app.run(drain=drain, member=member)


if __name__ == "__main__":
    main()
