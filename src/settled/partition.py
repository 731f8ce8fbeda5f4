"""Which partition a key belongs to: Kafka's default rule (murmur2), so that keys stay where they are when a user moves
to Kafka. An empty key is a key like any other; records without a key have no partition of their own.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from settled.errors import ContractError

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash as Kafka's clients compute it, as a signed number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for k in struct.unpack_from(f"<{whole // 4}I", data):
        k = k * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    h ^= h >> 15
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, in a topic of so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def other_number(topic: str, there: int, asked: int, *, queue: bool = False) -> ContractError:
    """What to say where a contract asks for another number of partitions than the topic has."""
    hint = "keep the number it has: a topic can only grow"
    if asked > there:
        moves = "" if queue else " (it says which keys move to other partitions)"
        hint = f"keep the number it has, or let it grow first: settled topic grow {topic} --partitions {asked}{moves}"
    return ContractError(
        f"topic {topic!r} has {there} partitions, not {asked}", field="partitions", value=asked, hint=hint
    )
