"""Which partitions of which consumers people mean when they pause or resume a group."""

from __future__ import annotations

from collections.abc import Sequence

from settled.errors import ContractError
from settled.operations.status import Status


def chosen(found: Status, group: str, places: Sequence[str]) -> dict[tuple[str, str], list[int]]:
    """Partition numbers by (consumer, topic). A place is `topic/partition`, or `topic` for all of its partitions.

    `found` is of the group alone. Raises ContractError for a group, topic or partition that is not there.
    """
    if not found.consumers:
        raise ContractError(f"there is no group {group!r}", field="GROUP", value=group, hint="settled group ls")
    numbers: dict[tuple[str, str], set[int]] = {}
    for place in places:
        topic, slash, number = place.partition("/")
        there = [
            (one.consumer, part.partition)
            for one in found.consumers
            for part in one.partitions
            if part.topic == topic and number in ("", str(part.partition))
        ]
        if not there or (slash and not number):
            known = sorted({part.topic for one in found.consumers for part in one.partitions})
            raise ContractError(
                f"group {group!r} has no partition {place!r}",
                field="PLACE",
                value=place,
                hint=f"TOPIC/PARTITION or TOPIC; its topics: {', '.join(known) or 'none'}",
            )
        for consumer, partition in there:
            numbers.setdefault((consumer, topic), set()).add(partition)
    return {key: sorted(each) for key, each in numbers.items()}
