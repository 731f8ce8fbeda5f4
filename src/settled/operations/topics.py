"""Topics for people: their positions and sizes, and the records themselves without joining a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from settled.engine import Engine, TopicInfo
from settled.errors import ContractError, Unsupported
from settled.record import Record, checked_name

PAGE = 200
FOLLOW_S = 0.25


def topic(engine: Engine, name: str) -> TopicInfo:
    """The topic. Raises ContractError naming those that are there."""
    checked_name("topic", name)
    infos = engine.topics()
    for info in infos:
        if info.spec.name == name:
            return info
    there = ", ".join(info.spec.name for info in infos[:10]) or "none yet"
    raise ContractError(f"there is no topic {name!r}", field="topic", value=name, hint=f"topics there: {there}")


def last_records(engine: Engine, info: TopicInfo, count: int, partition: int | None = None) -> list[Record]:
    """The newest `count` records of a topic (or of one partition of it), in the order of acceptance."""
    found: list[Record] = []
    for part in info.partitions:
        if partition in (None, part.partition) and part.records:
            start = max(part.begin, part.end - count)
            found += engine.read(info.spec.name, part.partition, start, records=count)
    return sorted(found, key=_by_acceptance)[-count:] if count else []


def records_from(engine: Engine, info: TopicInfo, starts: dict[int, int]) -> Iterator[Record]:
    """Records from the given offsets to the end as it is now, partitions merged by acceptance time."""
    ends = {part.partition: part.end for part in info.partitions}
    streams = {
        number: _stream(engine, info.spec.name, number, offset, ends[number]) for number, offset in starts.items()
    }
    heads = {number: head for number, stream in streams.items() if (head := next(stream, None)) is not None}
    while heads:
        number = min(heads, key=lambda each: _by_acceptance(heads[each]))
        yield heads[number]
        following = next(streams[number], None)
        if following is None:
            del heads[number]
        else:
            heads[number] = following


def starts_at(engine: Engine, info: TopicInfo, us: int, partition: int | None = None) -> dict[int, int]:
    """For each partition (or the one named) the first offset accepted at or after `us`; its end if there is none."""
    numbers = [part.partition for part in info.partitions if partition in (None, part.partition)]
    return {number: engine.offset_at(info.spec.name, number, us) for number in numbers}


def require_partition(info: TopicInfo, partition: int) -> None:
    """Raises ContractError for a partition that the topic does not have."""
    if not any(part.partition == partition for part in info.partitions):
        raise ContractError(
            f"topic {info.spec.name!r} has no partition {partition}",
            field="partition",
            value=partition,
            hint=f"it has 0 to {len(info.partitions) - 1}",
        )


def follow(
    engine: Engine, name: str, starts: dict[int, int], wait: Callable[[float], object] = time.sleep
) -> Iterator[Record]:
    """Records from the given offsets on as they come, for ever. `wait` is called when there is nothing new."""
    reached = dict(starts)
    while True:
        found: list[Record] = []
        for part in topic(engine, name).partitions:
            offset = max(reached.get(part.partition, 0), part.begin)
            if offset < part.end:
                page = engine.read(name, part.partition, offset, records=PAGE)
                reached[part.partition] = page[-1].offset + 1 if page else part.end
                found += page
        yield from sorted(found, key=_by_acceptance)
        if not found:
            wait(FOLLOW_S)


def grow(engine: Engine, name: str, partitions: int) -> TopicInfo:
    """Add partitions. Raises Unsupported for an engine that has its own tools for it."""
    topic(engine, name)
    change = getattr(engine, "grow_topic", None)
    if change is None:
        raise Unsupported(f"settled does not grow topics of {engine.name}", hint="use the broker's own tools")
    grown: TopicInfo = change(name, partitions)
    return grown


def _stream(engine: Engine, name: str, partition: int, offset: int, end: int) -> Iterator[Record]:
    while offset < end:
        page = engine.read(name, partition, offset, records=PAGE)
        for record in page:
            if record.offset >= end:
                return
            yield record
        if not page:
            return
        offset = page[-1].offset + 1


def _by_acceptance(record: Record) -> tuple[int, int, int]:
    return record.accepted_us, record.partition, record.offset
