"""What a worker was handed, written down before it sees it: one line per run of offsets, in a file of its own.

The operating system keeps what was written when the process is killed, so the counts hold through SIGKILL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from settled.app import App
from settled.engine import Consumer, ConsumerGroup, Delivery, Engine, Fetched
from settled.record import Record

SUFFIX = ".handed"


class WatchedApp(App):
    """An App whose consumers write down what they are handed, to `ledger` (set it before the first use)."""

    ledger: Path

    @property
    def engine(self) -> Engine:
        return cast(Engine, _Watched(super().engine, self.ledger))


def count(folder: Path) -> tuple[int, int]:
    """(delivered, redelivered) as the ledgers in `folder` say: all that was handed out, and what was so again."""
    handed: Counter[tuple[int, int]] = Counter()
    for ledger in folder.glob(f"*{SUFFIX}"):
        for line in ledger.read_text().splitlines():
            partition, first, last = map(int, line.split())
            handed.update((partition, offset) for offset in range(first, last + 1))
    return handed.total(), handed.total() - len(handed)


class _Watched:
    """An engine or a consumer, as it is but for what is written down."""

    def __init__(self, watched: Any, ledger: Path) -> None:
        self._watched, self._ledger = watched, ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)

    def consumer(self, group: ConsumerGroup) -> Consumer:
        return cast(Consumer, _Watched(self._watched.consumer(group), self._ledger))

    def poll(self, timeout: float, *, records: int, bytes: int) -> list[Delivery]:
        deliveries: list[Delivery] = self._watched.poll(timeout, records=records, bytes=bytes)
        fetched = [each for each in deliveries if isinstance(each, Fetched)]
        if fetched:
            lines = "".join(line for each in fetched for line in _lines(each.records))
            with self._ledger.open("ab", buffering=0) as ledger:  # one write: a kill leaves no half line
                ledger.write(lines.encode())
        return deliveries


def _lines(records: Sequence[Record]) -> Iterator[str]:
    """Runs of offsets without a hole, as `partition first last`."""
    first = 0
    for place, record in enumerate(records):
        behind = records[place + 1].offset if place + 1 < len(records) else None
        if behind != record.offset + 1:
            yield f"{record.partition} {records[first].offset} {record.offset}\n"
            first = place + 1
