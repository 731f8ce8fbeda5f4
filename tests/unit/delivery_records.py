"""Records for tests of the deciders."""

from __future__ import annotations

from settled.record import Record


def record(offset: int, key: bytes | None = None, *, id: str | None = None, value: bytes | None = b"v") -> Record:
    return Record(topic="t", partition=0, offset=offset, key=key, value=value, headers=(), id=id or f"e{offset}")
