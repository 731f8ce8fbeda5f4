"""Forgetting a group that does not come back: an ability that engines may have beside the port, and what they refuse.

The effect store is no part of it. It knows the consumer's frontier and marks as before, so that a group of the same
name that comes back goes on where its effects end: no effect is made twice. What was removed meanwhile is a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, runtime_checkable

from settled.errors import ContractError, Refused


@runtime_checkable
class Forgetting(Protocol):
    """An engine that keeps something for groups, which can be removed."""

    def forget_group(self, group: str, topics: Collection[str] | None = None, *, force: bool = False) -> dict[str, int]:
        """Remove what is kept for a group on these topics, none: on all that it is known for. Durable when it returns:
        nothing waits for the group any more. Returns by topic how many records went at once, with a queue that was the
        group's own. Any thread.

        Raises Refused while the group has live members on a topic, and for records that would go unless `force`;
        ContractError for a topic of which nothing is kept for the group; Unsupported where the topic cannot be
        forgotten alone. Nothing was changed then.
        """
        ...


def still_at_work(group: str, topic: str, members: Iterable[str]) -> Refused:
    return Refused(
        f"group {group!r} has members on topic {topic!r}: {', '.join(sorted(members))}",
        hint="stop its workers first; a killed one is gone after its lease",
    )


def holds_records(group: str, topic: str, count: int) -> Refused:
    return Refused(
        f"{count:,} records of topic {topic!r} wait for group {group!r}, and would go with it",
        hint="let a worker settle them, or add --force: they are lost for this group",
    )


def no_group(group: str, topic: str, known: Iterable[str]) -> ContractError:
    there = ", ".join(sorted(known)) or "none"
    about = f" of topic {topic!r}" if topic else ""
    return ContractError(
        f"nothing{about} is kept for a group {group!r}",
        field="group",
        value=group,
        hint=f"topics of which something is: {there}; `settled group ls` lists groups",
    )


def no_queue_of_a_group(topic: str) -> ContractError:
    return ContractError(
        f"topic {topic!r} is a queue: it keeps its records for whoever works on them, and nothing for a group",
        field="topic",
        value=topic,
        hint="there is nothing to forget; another group may work on it",
    )
