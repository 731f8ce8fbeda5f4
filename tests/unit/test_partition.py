"""Keys go where Kafka's clients send them."""

from __future__ import annotations

import pytest

from settled.partition import murmur2, partition_of

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", VECTORS)
def test_the_hash_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == VECTORS[key]


def test_the_partition_is_kafkas() -> None:
    """The sign bit is cleared, not negated."""
    for key, number in VECTORS.items():
        assert partition_of(key, 12) == (number & 0x7FFFFFFF) % 12


def test_an_empty_key_is_a_key() -> None:
    assert partition_of(b"", 4) == (murmur2(b"") & 0x7FFFFFFF) % 4
    assert murmur2(b"") == 275646681
