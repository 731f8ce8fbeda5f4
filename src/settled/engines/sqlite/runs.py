"""Runs of a queue's records, and the batches that hold them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence, Set

import msgspec

from settled.engines.sqlite.database import Connection
from settled.engines.sqlite.encoding import Stored, Unpacked, records, unpack
from settled.engines.sqlite.topics import Topic
from settled.errors import Damaged
from settled.record import Record

# Batches, and expanded bytes, that a reader keeps beside those it was just asked for.
KEPT, KEPT_BYTES = 100, 16_000_000

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
        self._kept: dict[int, _Kept] = {}

    def load(self, connection: Connection, runs: Iterable[Run], beside: Set[int] = frozenset()) -> int:
        """Read the batches of these runs, in the caller's transaction; `beside` names some that were read in it and are
        still asked for. Returns the expanded bytes of those that were read."""
        seqs = dict.fromkeys(run.batch for run in runs)
        if not seqs:
            return 0
        self._forget(seqs.keys() | beside)
        for seq in seqs:
            kept = self._kept.pop(seq, None)
            for *row, number, payload in connection.execute(_BATCH, (seq, kept.chain if kept else b"")).fetchall():
                stored = Stored(*row)
                kept = _Kept(stored.chain, stored.size, (stored, number, payload))
            if kept is not None:
                self._kept[seq] = kept
        return sum(self._kept[seq].size for seq in seqs if seq in self._kept)

    def records(self, topic: Topic, slot: int, runs: Sequence[Run]) -> list[Record]:
        """The records of loaded runs, in their place in the slot, up to the first that is damaged. Raises Damaged when
        there is none before it."""
        found: list[Record] = []
        for run in runs:
            offsets = range(run.number, run.number + run.count)
            try:
                batch = self.batch(topic, run.batch)
            except Damaged:
                if found:
                    break
                raise
            found += records(batch, topic.name, slot, offsets, run.place)
        return found

    def batch(self, topic: Topic, seq: int) -> Unpacked:
        """A loaded batch. Raises Damaged."""
        kept = self._kept.get(seq)
        if kept is None:
            raise Damaged(
                f"{topic.name}: batch {seq} of the queue is missing from the log's file",
                hint="its claims cannot be served; restore a copy of the log, or publish its records again",
            )
        if not isinstance(kept.content, Unpacked):
            stored, number, payload = kept.content
            kept.content = unpack(topic.name, topic.raw_identity, number, stored, payload)
        return kept.content

    def _forget(self, wanted: Container[int]) -> None:
        """Those that were not asked for lately."""
        count, size = 0, 0
        for seq, kept in reversed(list(self._kept.items())):
            if seq not in wanted:
                count, size = count + 1, size + kept.size
                if count > KEPT or size > KEPT_BYTES:
                    del self._kept[seq]


class _Kept(msgspec.Struct, gc=False):
    chain: bytes
    size: int
    content: Unpacked | tuple[Stored, int, bytes]
