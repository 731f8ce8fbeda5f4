"""Queues: members claim records from a pool into slots.

A slot is what a partition is to a log: one member owns it at a time, under an epoch, and what it claims gets rising
numbers there. A claim is one short transaction that looks at the ownership first, so a member that lost its slot claims
nothing more. Settled claims are removed from the front. Neither needs a sync: after a power cut records are free again
or claimed still, and the inbox knows what became of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from settled import windows
from settled.engine import Fetched, Stopped
from settled.engines.sqlite import pool
from settled.engines.sqlite.claim import AT_ONCE, Claim
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.runs import Reader, Run
from settled.engines.sqlite.topics import Topic
from settled.errors import Damaged
from settled.record import Record

READ_BYTES = 64_000_000  # expanded, for one look at a slot

_STANDING = (
    "SELECT number, batch, place, count, size FROM log_claim WHERE topic = ?1 AND slot = ?2 AND number >="
    " coalesce((SELECT number FROM (SELECT number, count FROM log_claim WHERE topic = ?1 AND slot = ?2 AND number < ?3"
    " ORDER BY number DESC LIMIT 1) WHERE number + count > ?3), ?3) ORDER BY number LIMIT ?4"
)

Owns = Callable[[Connection], bool]
Fetch = tuple[Fetched | Stopped | None, bool]


class Slot:
    """One owned slot. `position`: the number of the next claim to be handed out."""

    __slots__ = ("_reader", "_tenant", "number", "position", "topic")

    def __init__(self, database: Database, reader: Reader, topic: Topic, number: int, position: int) -> None:
        """Claims below `position` are settled. Numbers go on above it, whatever a power cut took back."""
        self.topic, self.number, self.position = topic, number, position
        self._reader = reader
        self._tenant = b""  # the one that was served last
        with database.writing(durable=False) as connection:
            connection.execute(
                "INSERT INTO log_slot VALUES (?1, ?2, ?3, ?3) ON CONFLICT DO UPDATE SET next = max(next, ?3)",
                (topic.id, number, position),
            )

    def fetch(self, database: Database, owns: Owns, *, ordered: bool, records: int, size: int) -> Fetch:
        """What stands in the slot and was not handed out yet, else new claims; none: there is nothing to claim. The
        second: work of other slots' keys was found on the way, and put there."""
        most = min(records, AT_ONCE)
        with database.reading() as connection:
            runs = _fitting(_standing(connection, self.topic.id, self.number, self.position, most), most, size)
            self._reader.load(connection, runs)
            waiting = not runs and pool.waiting(connection, self.topic.id)
        passed_on = False
        try:
            if waiting:
                with database.writing(durable=False) as connection:
                    if not owns(connection):
                        return None, False
                    claim = Claim(connection, self._reader, self.topic, self.number)
                    self._tenant = claim.fill(most, size, ordered=ordered, after=self._tenant)
                    # with what another member has put here since the look above: it comes first
                    runs = _standing(connection, self.topic.id, self.number, self.position, most)
                    runs = _fitting(runs, most, size)
                    self._reader.load(connection, runs)
                    windows.reach("claim-written")
                windows.reach("claim-committed")
                passed_on = claim.passed_on
            return self._handed(runs), passed_on
        except Damaged as error:
            return Stopped(topic=self.topic.name, partition=self.number, error=error), passed_on

    def _handed(self, runs: list[Run]) -> Fetched | None:
        if not runs:
            return None
        found = self._reader.records(self.topic, self.number, runs)
        self.position = found[-1].offset + 1
        return Fetched(
            topic=self.topic.name,
            partition=self.number,
            records=found,
            next_offset=self.position,
            size=sum(record.size for record in found),
        )


def read(database: Database, topic: Topic, slot: int, number: int, records: int) -> list[Record]:
    """Up to `records` claims of a slot that are not known to be settled, from `number` on; fewer of large ones."""
    reader = Reader()
    with database.reading() as connection:
        runs = _fitting(_standing(connection, topic.id, slot, number, records), records, READ_BYTES)
        reader.load(connection, runs)
    return reader.records(topic, slot, runs)


def _standing(connection: Connection, topic: int, slot: int, position: int, most: int) -> list[Run]:
    """The runs in a slot from a number on."""
    runs = [Run(*row) for row in connection.execute(_STANDING, (topic, slot, position, most)).fetchall()]
    if runs and runs[0].number < position:
        gone = position - runs[0].number
        runs[0] = runs[0].cut(gone, runs[0].count - gone, position)
    return runs


def _fitting(runs: Sequence[Run], most: int, size: int) -> list[Run]:
    """The first records that fit; one at least."""
    fitting: list[Run] = []
    for run in runs:
        fits = min(run.count, most, size * run.count // run.size if run.size else run.count)
        if fits < run.count:
            if fits > 0 or not fitting:
                fitting.append(run.cut(0, max(1, fits), run.number))
            break
        fitting.append(run)
        most -= run.count
        size -= run.size
    return fitting
