"""Where partitions begin and end, by offset and by time, as readers of committed records see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from settled.engine import Partition, PartitionInfo
from settled.engines.kafka import faults
from settled.engines.kafka.calls import Cluster


class Positions:
    """Any thread may call it. `require_there` raises for topics, by name, that were deleted."""

    def __init__(self, cluster: Cluster, require_there: Callable[[set[str]], None]) -> None:
        self._cluster, self._require_there = cluster, require_there

    def begins(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The first offset that each partition still holds."""
        found = self._offsets([(topic, number) for number in partitions], OffsetSpec.earliest())
        return {number: info.offset for (_, number), info in found.items()}

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The next offset that each partition gives out to readers: what an open transaction holds back is not told."""
        found = self._offsets([(topic, number) for number in partitions], OffsetSpec.latest())
        return {number: info.offset for (_, number), info in found.items()}

    def at(self, topic: str, partition: int, us: int) -> int:
        """The first offset at or after a time in microseconds, the end if there is none. Kafka's are milliseconds."""
        end = self.ends(topic, [partition])[partition]
        place = (topic, partition)
        found = self._offsets([place], OffsetSpec.for_timestamp(max(0, -(-us // 1000))))[place]
        return min(found.offset, end) if found.offset >= 0 else end

    def of(self, places: list[Partition]) -> dict[Partition, PartitionInfo]:
        """What each partition holds."""
        begins = self._offsets(places, OffsetSpec.earliest())  # before the ends: no difference is below zero
        firsts = self._offsets(places, OffsetSpec.for_timestamp(0))
        ends = self._offsets(places, OffsetSpec.latest())
        return {place: _partition(place[1], begins[place], firsts[place], ends[place]) for place in places}

    def _offsets(self, places: list[Partition], spec: OffsetSpec) -> dict[Partition, ListOffsetsResultInfo]:
        """Tried again while brokers do not know a topic yet that was made just now."""
        if not places:
            return {}
        what = f"reading positions of {places[0][0]!r}"
        asked = {TopicPartition(name, number): spec for name, number in places}

        def look() -> dict[Partition, ListOffsetsResultInfo] | None:
            found = self._cluster.read(
                self._cluster.client.list_offsets, asked, what, isolation_level=IsolationLevel.READ_COMMITTED
            )
            named = {(place.topic, place.partition): value for place, value in found.items()}
            if unknown := {name for (name, _), each in named.items() if faults.passes(each)}:
                self._require_there(unknown)
                return None
            return self._cluster.each(named, what)

        return self._cluster.until(look, what)


def _partition(
    number: int, begin: ListOffsetsResultInfo, first: ListOffsetsResultInfo, end: ListOffsetsResultInfo
) -> PartitionInfo:
    """Kafka tells no sizes, and does not tell records from the holes between them."""
    last = max(begin.offset, end.offset)
    return PartitionInfo(
        partition=number,
        begin=begin.offset,
        end=last,
        records=last - begin.offset,
        bytes=None,
        stored_bytes=None,
        oldest_us=first.timestamp * 1000 if 0 <= first.offset < last and first.timestamp >= 0 else None,
        exact=False,
    )
