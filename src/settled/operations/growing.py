"""Growing a topic: which of its recent keys would move to other partitions, and what that does to their order."""

from __future__ import annotations

import msgspec

from settled.engine import Engine, Form, TopicInfo
from settled.errors import ContractError, Refused
from settled.operations.topics import PAGE, newest_from
from settled.partition import partition_of

SAMPLE = 10_000  # records at most that are looked at, the newest of each partition


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """What growing does to the keys of the newest records. `records` counts all that were looked at, `keyed` those
    with a key; of the different `keys`, `moving` go to another partition, with `moving_records` of the records. A queue
    is not looked at: its partitions are slots, and no key belongs to one."""

    topic: str
    form: Form
    before: int
    partitions: int
    records: int
    keyed: int
    keys: int
    moving: int
    moving_records: int

    @property
    def share(self) -> float:
        """The share of keys that move, from 0 to 1."""
        return self.moving / self.keys if self.keys else 0.0


def review(engine: Engine, info: TopicInfo, partitions: int, *, sample: int = SAMPLE) -> Review:
    """Look at the newest records. Raises ContractError for fewer partitions than there are."""
    before = info.spec.partitions
    if partitions < before:
        raise ContractError(
            f"topic {info.spec.name!r} has {before} partitions and cannot have {partitions}",
            field="partitions",
            value=partitions,
            hint="a topic can only grow",
        )
    records, counts, parts = 0, dict[bytes, int](), [] if info.spec.form == "queue" else info.partitions
    most = -(-sample // max(1, sum(part.records > 0 for part in parts)))
    for part in parts:
        offset = newest_from(engine, info, part, most)
        while offset < part.end:
            page = engine.read(info.spec.name, part.partition, offset, records=PAGE)
            for record in page:
                if record.key is not None:
                    counts[record.key] = counts.get(record.key, 0) + 1
            records += len(page)
            offset = page[-1].offset + 1 if page else part.end
    moved = [key for key in counts if partition_of(key, before) != partition_of(key, partitions)]
    return Review(
        topic=info.spec.name,
        form=info.spec.form,
        before=before,
        partitions=partitions,
        records=records,
        keyed=sum(counts.values()),
        keys=len(counts),
        moving=len(moved),
        moving_records=sum(counts[key] for key in moved),
    )


def require_reviewed(found: Review, *, reviewed: bool) -> None:
    """Raises Refused for a topic with keys whose review nobody asked for."""
    if reviewed or not found.moving:
        return
    raise Refused(
        f"{found.topic} has keys, and {found.share:.0%} of {found.keys:,} recent ones would move: the order of their "
        "records across the change is not kept",
        hint="look at it with --review --dry-run; stop producers and drain the topic first to keep the order",
    )


def told(found: Review) -> list[str]:
    """The review in words, a line each."""
    if found.form == "queue":
        return [
            "Its partitions are slots: so many members may work at once. No key belongs to one, and no order changes."
        ]
    if not found.keyed:
        return [f"None of the newest {found.records:,} records has a key: no order changes."]
    return [
        f"Of the newest {found.records:,} records {found.keyed:,} have keys; {found.moving:,} of {found.keys:,} keys "
        f"({found.share:.0%}) would move, with {found.moving_records:,} of these records.",
        "What is published under a moved key from then on goes to its new partition, while its older records stay.",
        "Two members may then work on one key: a newer record may be settled before an older one that is still open.",
        "To keep the order: stop all producers, `settled run APP --mode drain`, grow, and start them again.",
        "With transport.version the older record becomes stale instead of undoing the newer one.",
    ]
