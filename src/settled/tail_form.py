"""How a tail's position is written: the topic, its incarnation and an offset for each partition, as one line of text
that people need not read. It is a mark for counting, not a secret and not a right.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from settled.errors import ContractError, HistoryLost
from settled.record import Record

_FORM = 1
_Fields = tuple[int, str, str, list[int]]


def write(topic: str, identity: str, offsets: Sequence[int]) -> str:
    """The position of a reader that stands before these offsets, partition by partition."""
    return packed((_FORM, topic, identity, list(offsets)))


def read(text: str, topic: str, identity: str) -> list[int]:
    """The offsets. Raises ContractError for what is no position of this topic, HistoryLost for one in a topic of this
    name that was made anew since."""
    name, incarnation, offsets = _fields(text)
    if name != topic:
        raise no_position(f"the position is of topic {name!r}, not {topic!r}", text)
    if incarnation != identity:
        raise HistoryLost(
            f"topic {topic!r} was made anew since the position was taken: what passed in between cannot be counted",
            hint="begin without a position",
        )
    return offsets


def moved(text: str, records: Iterable[Record]) -> str:
    """The position of a reader that stood at `text` and was given these records since, in order."""
    topic, identity, offsets = _fields(text)
    for record in records:
        offsets += [0] * (record.partition + 1 - len(offsets))
        offsets[record.partition] = record.offset + 1
    return write(topic, identity, offsets)


def passed(topic: str, before: Sequence[int], ends: Sequence[int]) -> int:
    """How many offsets lie between a position and the ends; partitions that came later count from their beginning.
    Raises HistoryLost where the log ends before the position."""
    reached = [*before, *[0] * (len(ends) - len(before))]
    for number, (offset, end) in enumerate(zip(reached, ends, strict=False)):
        if offset > end:
            raise gone_back(topic, number, offset, end)
    if len(reached) > len(ends):
        raise gone_back(topic, len(ends), reached[len(ends)], 0)
    return sum(end - offset for offset, end in zip(reached, ends, strict=True))


def gone_back(topic: str, partition: int, offset: int, end: int) -> HistoryLost:
    return HistoryLost(
        f"{topic}/{partition} ends at {end}, before the position {offset} that was reached in it",
        hint="the log went back or is another one; begin without a position, and read what it tells of afresh",
    )


def packed(fields: Sequence[object]) -> str:
    """Fields as one line of text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(fields)).decode().rstrip("=")


def unpacked(text: str, kind: Any) -> Any:
    """The fields. Raises ContractError for a text that holds no such ones."""
    try:
        held = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(held, type=kind)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise no_position("this is no position of a tail", text) from None


def no_position(message: str, text: str) -> ContractError:
    return ContractError(message, field="after", value=text, hint="give what `position` of a tail of this topic said")


def _fields(text: str) -> tuple[str, str, list[int]]:
    fields: _Fields = unpacked(text, _Fields)
    form, topic, identity, offsets = fields
    if form != _FORM or any(offset < 0 for offset in offsets):
        raise no_position("this is no position that this release can read", text)
    return topic, identity, offsets
