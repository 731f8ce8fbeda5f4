"""Runs of a queue's records, and the batches that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from settled.engines.sqlite.database import Connection
from settled.engines.sqlite.encoding import Stored, Unpacked, records, unpack
from settled.engines.sqlite.topics import Topic
from settled.record import Record

KEPT = 16  # batches that a reader keeps decoded

_BATCH = (
    "SELECT b.seq, b.base, b.count, b.bytes, b.accepted_us, b.checksum, b.chain, b.compression, p.number, b.payload"
    " FROM log_batch b JOIN log_partition p ON p.id = b.part WHERE b.seq = ? AND b.chain <> ?"
)


class Run(msgspec.Struct, frozen=True, gc=False):
    """Records of a batch that follow one another, and the number of the first in its slot."""

    number: int
    batch: int
    place: int
    count: int
    size: int

    def cut(self, start: int, count: int, number: int) -> Run:
        """`count` of its records from `start` on (0 is the first); their first gets the number."""
        return Run(number, self.batch, self.place + start, count, self.size * count // self.count)


class Reader:
    """Batches, the last ones kept decoded. A batch's row number may be given to another after it went, its chain is
    not: what is loaded in one transaction with the runs belongs to them."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[bytes, Unpacked | tuple[Stored, int, bytes]]] = {}

    def load(self, connection: Connection, runs: Iterable[Run]) -> None:
        """Read the batches of these runs, in the caller's transaction."""
        seqs = dict.fromkeys(run.batch for run in runs)
        for seq in list(self._kept)[: max(0, len(self._kept) - KEPT)]:
            if seq not in seqs:
                del self._kept[seq]
        for seq in seqs:
            chain, kept = self._kept.pop(seq, (b"", None))
            for *row, number, payload in connection.execute(_BATCH, (seq, chain)).fetchall():
                stored = Stored(*row)
                chain, kept = stored.chain, (stored, number, payload)
            if kept is not None:
                self._kept[seq] = chain, kept

    def records(self, topic: Topic, slot: int, runs: Sequence[Run]) -> list[Record]:
        """The records of loaded runs, in their place in the slot. Raises Damaged."""
        found: list[Record] = []
        for run in runs:
            offsets = range(run.number, run.number + run.count)
            found += records(self.batch(topic, run.batch), topic.name, slot, offsets, run.place)
        return found

    def batch(self, topic: Topic, seq: int) -> Unpacked:
        """A loaded batch. Raises Damaged."""
        chain, kept = self._kept[seq]
        if not isinstance(kept, Unpacked):
            stored, number, payload = kept
            kept = unpack(topic.name, topic.raw_identity, number, stored, payload)
            self._kept[seq] = chain, kept
        return kept
