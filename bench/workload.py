"""What all benchmarks run on: orders as JSON, about 250 B or 1 kB each, with time-ordered ids, and temp folders."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from settled.record import Message, new_id

TOPIC = "orders"
EFFECT_TABLE = "CREATE TABLE IF NOT EXISTS reservation (order_id TEXT, version INTEGER, sku TEXT, quantity INTEGER)"
EFFECT = "INSERT INTO reservation VALUES (?, ?, ?, ?)"


class Order(msgspec.Struct):
    order_id: str
    version: int
    tenant: str
    sku: str
    quantity: int
    note: str


def messages(count: int, size: int, seed: int = 1) -> list[Message]:
    """`count` orders of about `size` bytes over count/5 keys."""
    chance = random.Random(seed)
    words = ["blue", "fragile", "express", "gift", "north", "pallet", "signed", "weekend", "return", "insured"]
    made = []
    for number in range(count):
        order = f"o-{chance.randrange(max(1, count // 5)):07}"
        note = ""
        while len(note) < size - 150:
            note += chance.choice(words) + f"-{chance.randrange(10_000)} "
        value = msgspec.json.encode(
            Order(order, number, f"t-{chance.randrange(100)}", f"sku-{chance.randrange(5000)}", 1 + number % 7, note)
        )
        made.append(Message(topic=TOPIC, key=order.encode(), value=value, id=new_id(), type="OrderRequested"))
    return made


@contextmanager
def folder() -> Iterator[Path]:
    """A temp folder on a real disk (never tmpfs where there is a choice: syncs must cost what they cost)."""
    base = Path("/var/tmp")
    path = Path(tempfile.mkdtemp(prefix="settled-bench-", dir=base if base.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
