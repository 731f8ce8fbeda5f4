"""How far a consumer is behind, partition by partition. The frontier is read before the end, so nothing is negative.

Lag counts records that are held and not settled. Holes do not count: it is measured from the first record that is
really there at or above the frontier, and where compaction left holes behind that the engine counts. Where it cannot
tell records from holes, up to COUNTED records are counted by reading them, and a longer lag is told as the offsets that
it spans.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from settled import clock
from settled.engine import Counting, Engine, PartitionInfo, TopicInfo
from settled.errors import SettledError
from settled.record import RECORD_OVERHEAD, Record
from settled.store import Position

COUNTED = 200  # records at most that are read to count them


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """Where a consumer stands in one partition.

    state      settled (nothing is left), behind, never-started (the store has no position), unreadable (the next record
               cannot be read); ahead (the store is beyond the log's end) and other-log (its position is of another
               incarnation of the topic) mean that log and store do not belong together
    frontier   as the store says; none: never started
    records    held and not settled; `bytes_about`: their expanded size, estimated from the partition's average, or
               from the records that were read
    oldest_age_s   how long ago the oldest of them was accepted
    committed  the engine's own copy of the frontier, which may lag behind it; none: it has none
    """

    topic: str
    partition: int
    state: str
    frontier: int | None
    begin: int
    end: int
    records: int
    bytes_about: int
    oldest_age_s: float | None
    epoch: int = 0
    committed: int | None = None


def lags(
    engine: Engine, info: TopicInfo, positions: Mapping[int, Position], committed: Mapping[int, int] | None = None
) -> list[PartitionLag]:
    """One for each partition. `positions` must have been read before `info` was."""
    told = committed or {}
    return [
        _lag(engine, info, part, positions.get(part.partition), told.get(part.partition)) for part in info.partitions
    ]


def _lag(
    engine: Engine, info: TopicInfo, part: PartitionInfo, position: Position | None, committed: int | None
) -> PartitionLag:
    frontier = None if position is None else position.frontier
    start = part.begin if frontier is None else max(frontier, part.begin)
    state = "settled" if frontier is not None else "never-started"
    records, next_ones = 0, list[Record]()
    if info.queue is not None:
        return _slot(info, part, position, committed)
    if position is not None and position.identity != info.identity:
        state, records = "other-log", part.records
    elif frontier is not None and frontier > part.end:
        state = "ahead"
    elif part.records and start < part.end:
        try:
            next_ones = _next(engine, info, part, start)
            records = _count(engine, info, part, next_ones)
        except SettledError:
            records, state = min(part.end - start, part.records), "unreadable"
        else:
            state = "behind" if records and frontier is not None else state
    oldest_us = next_ones[0].accepted_us if next_ones else None
    return PartitionLag(
        topic=info.spec.name,
        partition=part.partition,
        state=state,
        frontier=frontier,
        begin=part.begin,
        end=part.end,
        records=records,
        bytes_about=_bytes_about(part, records, next_ones),
        oldest_age_s=None if oldest_us is None else max(0.0, (clock.wall_us() - oldest_us) / 1e6),
        epoch=0 if position is None else position.epoch,
        committed=committed,
    )


def _slot(info: TopicInfo, part: PartitionInfo, position: Position | None, committed: int | None) -> PartitionLag:
    """Of a queue: what is claimed into a slot and not settled. What is ready to be claimed is in no slot yet."""
    frontier = None if position is None else position.frontier
    records = min(part.records, max(0, part.end - max(frontier or 0, part.begin)))
    state = "settled" if position is not None else "never-started"
    if position is not None and position.identity != info.identity:
        state = "other-log"
    elif records and position is not None:
        state = "behind"
    age_s = None if part.oldest_us is None or not records else max(0.0, (clock.wall_us() - part.oldest_us) / 1e6)
    return PartitionLag(
        topic=info.spec.name,
        partition=part.partition,
        state=state,
        frontier=frontier,
        begin=part.begin,
        end=part.end,
        records=records,
        bytes_about=_bytes_about(part, records, []),
        oldest_age_s=age_s,
        epoch=0 if position is None else position.epoch,
        committed=committed,
    )


def _next(engine: Engine, info: TopicInfo, part: PartitionInfo, start: int) -> list[Record]:
    """The first records that are not settled: one, or as many as are counted where the engine counts holes, too."""
    found = engine.read(info.spec.name, part.partition, start, records=1 if part.exact else COUNTED)
    return [record for record in found if record.offset < part.end]


def _count(engine: Engine, info: TopicInfo, part: PartitionInfo, next_ones: list[Record]) -> int:
    if not next_ones:
        return 0
    if not part.exact and len(next_ones) < COUNTED:
        return len(next_ones)
    if part.records < part.end - part.begin and isinstance(engine, Counting):
        return engine.held(info.spec.name, part.partition, next_ones[0].offset, part.end)
    return min(part.end - next_ones[0].offset, part.records)


def _bytes_about(part: PartitionInfo, records: int, next_ones: list[Record]) -> int:
    if not records:
        return 0
    if part.bytes is None:
        return sum(record.size for record in next_ones) * records // len(next_ones) if next_ones else 0
    return max(records * RECORD_OVERHEAD, part.bytes * records // part.records)
