"""How many partitions of each topic each member should own. Pure: everyone who computes it from the same members and
topics gets the same answer, so that the group needs no leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def shares(topics: Mapping[int, int], members: Sequence[tuple[str, frozenset[int]]]) -> dict[tuple[str, int], int]:
    """The share of each (member, topic).

    `topics` says how many partitions a topic has; `members` stand in the order in which they joined, with the topics
    that they ask for. Partitions are handed out one by one to whoever has the fewest so far, the eldest first, so
    totals differ by one at most where all ask for the same topics, and only depend on who is there.
    """
    totals = {member: 0 for member, _ in members}
    result: dict[tuple[str, int], int] = {}
    for topic in sorted(topics):
        asking = [member for member, wanted in members if topic in wanted]
        for member in asking:
            result[member, topic] = 0
        for _ in range(topics[topic] if asking else 0):
            least = min(asking, key=totals.__getitem__)  # the first of equals: the eldest
            totals[least] += 1
            result[least, topic] += 1
    return result
