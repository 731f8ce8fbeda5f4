"""What a topic of form log is: the stream `topic:log:facts` says it, and which groups have joined. Its last word holds.

partitions  the streams `topic:log:0`, `topic:log:1`, ..., all made with the same arguments

A stream keeps whole files of messages and lets the oldest go as a new one begins, so files are small where little is to
be kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from settled.engine import TopicSpec
from settled.engines.rabbitmq.topology import require_limit, require_name
from settled.errors import ContractError, Unsupported

MOST_PARTITIONS = 1_000
LARGEST_FILE, SMALLEST_FILE = 64 * 1024 * 1024, 64 * 1024
FILES = 8  # so many of a stream's files hold what `retention_bytes` keeps


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the topic is. `stream`: the arguments that its partitions were made with."""

    identity: str
    partitions: int
    stream: dict[str, Any]
    retention_s: float | None = None
    retention_bytes: int | None = None
    max_message_bytes: int | None = None

    def spec(self, name: str) -> TopicSpec:
        return TopicSpec(
            name=name,
            partitions=self.partitions,
            retention_s=self.retention_s,
            retention_bytes=self.retention_bytes,
            max_message_bytes=self.max_message_bytes,
        )


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    group: str


class Known(msgspec.Struct, frozen=True):
    """What the stream of facts says."""

    facts: Facts
    groups: tuple[str, ...]


def stream_of(topic: str, partition: int) -> str:
    """The stream that a partition is."""
    return f"{topic}:log:{partition}"


def facts_in(bodies: Iterable[bytes]) -> Known | None:
    """What the messages of a topic's stream of facts say together."""
    facts: Facts | None = None
    groups: dict[str, None] = {}
    for body in bodies:
        try:
            said = msgspec.json.decode(body, type=dict[str, Any])
            if "group" in said:
                groups[msgspec.convert(said, Joined).group] = None
                continue
            found = msgspec.convert(said, Facts)
        except msgspec.MsgspecError:
            continue
        if facts is None:
            facts = found
        elif found.identity == facts.identity:
            facts = msgspec.structs.replace(
                facts,
                partitions=max(facts.partitions, found.partitions),
                max_message_bytes=found.max_message_bytes,
            )
    return None if facts is None else Known(facts, tuple(groups))


def check(spec: TopicSpec) -> None:
    """Raises for what a log on streams cannot be."""
    require_name(spec.name)
    if spec.compact:
        raise Unsupported(
            "streams on RabbitMQ are not compacted: old files go, whatever keys they hold",
            field="compact",
            hint="set retention.compact: false, or run on an engine that compacts",
        )
    if not 1 <= spec.partitions <= MOST_PARTITIONS:
        raise ContractError(
            f"{spec.partitions} partitions are not from 1 to {MOST_PARTITIONS}",
            field="partitions",
            value=spec.partitions,
        )
    for field, kept in (("retention_s", spec.retention_s), ("retention_bytes", spec.retention_bytes)):
        if kept is not None and kept <= 0:
            raise ContractError("retention must be above 0", field=field, value=kept)
    require_limit(spec.max_message_bytes)


def arguments(spec: TopicSpec) -> dict[str, Any]:
    """What each partition is declared with. Of bytes a partition keeps its share of the topic's, two files at least."""
    found: dict[str, Any] = {"x-queue-type": "stream"}
    size = LARGEST_FILE
    if spec.retention_bytes is not None:
        each = math.ceil(spec.retention_bytes / spec.partitions)
        size = max(SMALLEST_FILE, min(size, each // FILES))
        found["x-max-length-bytes"] = max(each, 2 * size)
    if spec.retention_s is not None:
        found["x-max-age"] = f"{math.ceil(spec.retention_s)}s"
    return {**found, "x-stream-max-segment-size-bytes": size}


def compare(there: Facts, spec: TopicSpec) -> None:
    """Raises ContractError for the first difference that cannot be made good."""
    for field in ("partitions", "retention_s", "retention_bytes"):
        has, wanted = getattr(there, field), getattr(spec, field)
        if has != wanted:
            fixed = "streams keep what they were made with: state it so, or publish to a topic of another name"
            raise ContractError(
                f"topic {spec.name!r} has {field} {has}, not {wanted}: nothing was changed",
                field=field,
                value=wanted,
                hint=_as_is(has) if field == "partitions" else fixed,
            )


def _as_is(partitions: int) -> str:
    return f"state transport.partitions: {partitions}; `settled topic grow` adds some, and none can be taken away"
