"""Pauses: partitions of which a person wants nothing settled for now. The same SQL for every store.

A pause raises the fence, so that what runs under the owner's epoch commits nothing any more; the owner acquires again,
finds the pause, and waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from settled.store import Pause
from settled.stores.statements import Statements

SELECT = (
    "SELECT consumer, topic, partition, reason, who, paused_us FROM settled_pause"
    " WHERE (CAST(? AS TEXT) IS NULL OR consumer = ?) ORDER BY consumer, topic, partition"
)
_INSERT = (
    "INSERT INTO settled_pause (consumer, topic, partition, reason, who, paused_us) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING"
)
_RAISE = (
    "UPDATE settled_frontier SET epoch = epoch + 1, owner = '' WHERE partition = ?"
    " AND consumer_id = (SELECT id FROM settled_consumer WHERE name = ?)"
    " AND topic_id = (SELECT id FROM settled_topic WHERE name = ?)"
)
_FIND = "SELECT 1 FROM settled_pause WHERE consumer = ? AND topic = ? AND partition = ?"
_DELETE = "DELETE FROM settled_pause WHERE consumer = ? AND topic = ? AND partition = ?"


def begin(handle: Statements, consumer: str, topic: str, partitions: Sequence[int], reason: str, who: str) -> None:
    for partition in sorted(partitions):
        handle.run(_INSERT, (consumer, topic, partition, reason, who, handle.now()))
        handle.run(_RAISE, (partition, consumer, topic))


def end(handle: Statements, consumer: str, topic: str, partitions: Sequence[int]) -> list[int]:
    paused = [number for number in sorted(partitions) if handle.all(_FIND, (consumer, topic, number))]
    handle.run_many(_DELETE, [(consumer, topic, number) for number in paused])
    return paused


def pause_of(row: tuple[str, str, int, str, str, int]) -> Pause:
    consumer, topic, partition, reason, who, paused_us = row
    return Pause(consumer=consumer, topic=topic, partition=partition, reason=reason, who=who, paused_us=paused_us)
