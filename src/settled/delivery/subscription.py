"""Subscription: what a worker must know of its contract, in seconds, bytes and numbers."""

from __future__ import annotations

from typing import Literal

import msgspec

from settled.delivery.retry import RetryPolicy
from settled.engine import ConsumerGroup, Start
from settled.store import ConsumerSpec

Mode = Literal["at-most-once", "at-least-once", "effectively-once"]


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer of one topic.

    group, consumer   what to join the engine with; what to tell the store
    mode              what a crash may do: lose (at-most-once), repeat (at-least-once), neither (effectively-once)
    start             where a group that is new begins
    ordered           records of a key run in order, one at a time
    shared            what this member does not take others may: it is a queue, and little is taken ahead
    concurrency       groups side by side; none: 1, and up to 4 while handlers wait, where the store runs transactions
                      in parallel (see pool.py)
    group_records, group_bytes, target_s, linger_s   bounds of one transaction, see flow.GroupSize; a group waits up to
                      `linger_s` to fill up
    in_flight_records, in_flight_bytes   received and not ended, per process
    on_gap            what to do when wanted records are gone: go on and say so, or stop the partition
    grace_s           how long running work may take to end when stopping
    horizon_s         how long inbox marks are kept at least; none: for ever
    """

    group: ConsumerGroup
    consumer: ConsumerSpec
    mode: Mode = "effectively-once"
    start: Start = "earliest"
    ordered: bool = True
    shared: bool = False
    concurrency: int | None = None
    group_records: int = 2000
    group_bytes: int = 8 * 1024 * 1024
    target_s: float = 0.1
    linger_s: float = 0.0
    in_flight_records: int = 10_000
    in_flight_bytes: int = 64 * 1024 * 1024
    on_gap: Literal["continue", "stop"] = "continue"
    grace_s: float = 25.0
    horizon_s: float | None = 14 * 86400.0
    retry: RetryPolicy = RetryPolicy()
