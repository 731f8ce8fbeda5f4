"""How far a consumer is behind, partition by partition. The frontier is read before the end, so nothing is negative.

Lag counts records that are held and not settled. Holes do not count: it is measured from the first record that is
really there at or above the frontier.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from settled import clock
from settled.engine import Engine, PartitionInfo, TopicInfo
from settled.errors import SettledError
from settled.record import RECORD_OVERHEAD
from settled.store import Position


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """Where a consumer stands in one partition.

    state      settled (nothing is left), behind, never-started (the store has no position), unreadable (the next record
               cannot be read); ahead (the store is beyond the log's end) and other-log (its position is of another
               incarnation of the topic) mean that log and store do not belong together
    frontier   as the store says; none: never started
    records    held and not settled; `bytes_about`: their expanded size, estimated from the partition's average
    oldest_age_s   how long ago the oldest of them was accepted
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


def lags(engine: Engine, info: TopicInfo, positions: Mapping[int, Position]) -> list[PartitionLag]:
    """One for each partition. `positions` must have been read before `info` was."""
    return [_lag(engine, info, part, positions.get(part.partition)) for part in info.partitions]


def _lag(engine: Engine, info: TopicInfo, part: PartitionInfo, position: Position | None) -> PartitionLag:
    frontier = None if position is None else position.frontier
    start = part.begin if frontier is None else max(frontier, part.begin)
    records, oldest_us, state = 0, None, "settled" if frontier is not None else "never-started"
    if position is not None and position.identity != info.identity:
        state, records = "other-log", part.records
    elif frontier is not None and frontier > part.end:
        state = "ahead"
    elif part.records and start < part.end:
        try:
            first = engine.read(info.spec.name, part.partition, start, records=1)
        except SettledError:
            records, state = min(part.end - start, part.records), "unreadable"
        else:
            if first and first[0].offset < part.end:
                records = min(part.end - first[0].offset, part.records)
                oldest_us = first[0].accepted_us
                state = state if frontier is None else "behind"
    return PartitionLag(
        topic=info.spec.name,
        partition=part.partition,
        state=state,
        frontier=frontier,
        begin=part.begin,
        end=part.end,
        records=records,
        bytes_about=_bytes_about(part, records),
        oldest_age_s=None if oldest_us is None else max(0.0, (clock.wall_us() - oldest_us) / 1e6),
        epoch=0 if position is None else position.epoch,
    )


def _bytes_about(part: PartitionInfo, records: int) -> int:
    if not records:
        return 0
    return max(records * RECORD_OVERHEAD, part.bytes * records // part.records)
