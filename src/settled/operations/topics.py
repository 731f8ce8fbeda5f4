"""Topics for people: their positions and sizes, and the records themselves without joining a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from settled.delivery.tailing import Tailing
from settled.engine import Counting, Engine, PartitionInfo, Tail, TopicInfo, TopicSpec
from settled.errors import ContractError
from settled.record import Record, checked_name

PAGE = 200


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which a topic is not what the contract wants. `remedy` says how to bring them together."""

    field: str
    wanted: str
    found: str
    remedy: str


def topic(engine: Engine, name: str) -> TopicInfo:
    """The topic. Raises ContractError naming those that are there."""
    checked_name("topic", name)
    found = engine.topics([name])
    if found:
        return found[0]
    there = ", ".join(info.spec.name for info in engine.topics()[:10]) or "none yet"
    raise ContractError(f"there is no topic {name!r}", field="topic", value=name, hint=f"topics there: {there}")


def last_records(engine: Engine, info: TopicInfo, count: int, partition: int | None = None) -> list[Record]:
    """The newest `count` records of a topic (or of one partition of it), in the order of acceptance."""
    found: list[Record] = []
    for part in info.partitions:
        if partition in (None, part.partition) and part.records:
            start = newest_from(engine, info, part, count)
            found += list(_stream(engine, info.spec.name, part.partition, start, part.end))[-count:]
    return sorted(found, key=_by_acceptance)[-count:] if count else []


def newest_from(engine: Engine, info: TopicInfo, part: PartitionInfo, count: int) -> int:
    """From where on the newest `count` records of a partition are there, in a compacted topic perhaps more."""
    span = max(1, count)
    while (start := max(part.begin, part.end - span)) > part.begin and info.spec.compact:
        if isinstance(engine, Counting):
            there = engine.held(info.spec.name, part.partition, start, part.end)
        else:
            there = len(engine.read(info.spec.name, part.partition, start, records=count))
        if there >= count:
            break
        span *= 4
    return start


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
    tail: Tail, shown: Mapping[int, int], lost: Callable[[int, int], object], *, idle_s: float | None = None
) -> Iterator[Record]:
    """Records as they come to a tail, without those that were shown already: below these offsets of each partition.
    `lost` is told of what passed, and of interruptions, as by `Tailing`."""
    for record in Tailing(tail, idle_s=idle_s, lost=lost):
        if record.offset >= shown.get(record.partition, 0):
            yield record


def compare(wanted: TopicSpec, info: TopicInfo) -> list[Difference]:
    """In what the topic is not as the contract wants it. What the spec leaves open is not compared."""
    has, told = info.spec, list[tuple[str, object, object, str]]()
    alter = "publish or run with the contract, which sets it"
    if wanted.partitions != has.partitions:
        remedy = f"set transport.partitions: {has.partitions} in the contract; a topic cannot shrink"
        if wanted.partitions > has.partitions:
            remedy = f"settled topic grow {has.name} --partitions {wanted.partitions} --review says what it does"
        told.append(("transport.partitions", wanted.partitions, has.partitions, remedy))
    if wanted.retention_s != has.retention_s:
        told.append(("retention.age", _bound(wanted.retention_s, " s"), _bound(has.retention_s, " s"), alter))
    if _per_partition(wanted.retention_bytes, has.partitions) != _per_partition(has.retention_bytes, has.partitions):
        told.append(("retention.bytes", _bound(wanted.retention_bytes), _bound(has.retention_bytes), alter))
    if wanted.compact != has.compact:
        remedy = alter if wanted.compact else f"{alter}; of brokers, their own tools end compaction"
        told.append(("retention.compact", _truth(wanted.compact), _truth(has.compact), remedy))
    if wanted.compact and has.compact and wanted.tombstone_s != has.tombstone_s:
        told.append(("retention.tombstones", f"{wanted.tombstone_s:.15g} s", f"{has.tombstone_s:.15g} s", alter))
    for field, want, found, remedy in (
        ("transport.record_limit", wanted.max_message_bytes, has.max_message_bytes, alter),
        ("transport.replicas", wanted.replicas, has.replicas, "the broker's own tools add and move replicas"),
        ("transport.min_isr", wanted.min_isr, has.min_isr, alter),
    ):
        if want is not None and found is not None and want != found:
            told.append((field, want, found, remedy))
    if wanted.max_message_bytes is not None and has.max_message_bytes is None:
        told.append(("transport.record_limit", wanted.max_message_bytes, "the engine's own", alter))
    return [Difference(field=f, wanted=str(w), found=str(h), remedy=r) for f, w, h, r in told]


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


def _per_partition(size: int | None, partitions: int) -> int | None:
    """As an engine counts that bounds partitions and not topics: rounded up."""
    return None if size is None else -(-size // partitions)


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _bound(value: float | None, unit: str = " bytes") -> str:
    return "no bound" if value is None else f"{value:.15g}{unit}"
