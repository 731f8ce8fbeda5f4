"""A batch as it lies in the log: the messages' fields as columns in MessagePack, compressed or not, with a checksum.

Columns make decoding cheap: a batch becomes records by one `map` over its lists. A column that is none or empty for
all messages is stored as nil. `checksum` covers the payload and the batch's place, `chain` all batches up to it.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import zlib
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import msgspec
import zstandard

from settled.engine import Compression
from settled.errors import Damaged
from settled.record import RECORD_OVERHEAD, Headers, Record

_CODES: dict[Compression, int] = {"none": 0, "zstd": 1}
_PLACE = struct.Struct(">16sIQIQQB")
_LINK = struct.Struct(">IQI")


class Columns(msgspec.Struct, array_like=True, gc=False):
    ids: list[str]
    keys: list[bytes | None] | None
    values: list[bytes | None] | None
    headers: list[Headers] | None
    types: list[str | None] | None
    versions: list[int | None] | None
    event_times: list[int | None] | None
    correlations: list[str | None] | None
    causations: list[str | None] | None


class Encoded(msgspec.Struct, frozen=True):
    """Messages of one partition, ready to be stored. `size` is the sum of their Record.size."""

    count: int
    size: int
    compression: int
    payload: bytes
    crc: int


class Stored(msgspec.Struct, frozen=True):
    """A batch's row without its payload."""

    seq: int
    base: int
    count: int
    size: int
    accepted_us: int
    checksum: int
    chain: bytes
    compression: int

    @property
    def next(self) -> int:
        return self.base + self.count


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Columns)
_local = threading.local()


def encode(rows: Sequence[tuple[Any, ...]], compression: Compression) -> Encoded:
    """`rows` are the messages' fields, each as `msgspec.structs.astuple` gives them."""
    _, keys, values, headers, ids, types, versions, times, correlations, causations = zip(*rows, strict=True)
    count = len(rows)
    size = RECORD_OVERHEAD * count + sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
    plain = headers.count(()) == count
    if not plain:
        size += sum(64 + len(name) + len(value or b"") for pairs in headers for name, value in pairs)
    columns = (
        ids,
        _column(keys),
        _column(values),
        None if plain else headers,
        _column(types),
        _column(versions),
        _column(times),
        _column(correlations),
        _column(causations),
    )
    payload = _encoder.encode(columns)
    if compression == "zstd":
        payload = _compressor().compress(payload)
    return Encoded(count, size, _CODES[compression], payload, zlib.crc32(payload))


def decode(topic: str, identity: bytes, partition: int, stored: Stored, payload: bytes) -> list[Record]:
    """The batch's records. Raises Damaged, naming them, when the bytes are not those that were stored."""
    if checksum(identity, partition, stored, zlib.crc32(payload)) != stored.checksum:
        raise damaged(topic, partition, stored.base, stored.next, "do not match their checksum")
    try:
        raw = _decompressor().decompress(payload) if stored.compression else payload
        columns = _decoder.decode(raw)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise damaged(topic, partition, stored.base, stored.next, f"cannot be decoded ({error})") from error
    if len(columns.ids) != stored.count:
        raise damaged(topic, partition, stored.base, stored.next, f"are {len(columns.ids)} and not {stored.count}")
    nothing: Any = repeat(None)
    return list(
        map(
            Record,
            repeat(topic),
            repeat(partition),
            range(stored.base, stored.next),
            columns.keys or nothing,
            columns.values or nothing,
            columns.headers or repeat(()),
            columns.ids,
            columns.types or nothing,
            columns.versions or nothing,
            columns.event_times or nothing,
            columns.correlations or nothing,
            columns.causations or nothing,
            repeat(stored.accepted_us),
        )
    )


def checksum(identity: bytes, partition: int, stored: Stored, crc: int) -> int:
    """The payload's crc carried on over the batch's place, so that a batch that was moved is found too."""
    place = _PLACE.pack(
        identity, partition, stored.base, stored.count, stored.size, stored.accepted_us, stored.compression
    )
    return zlib.crc32(place, crc)


def chain_start(identity: bytes, partition: int) -> bytes:
    return hashlib.blake2b(identity + struct.pack(">I", partition), digest_size=16).digest()


def chain_link(before: bytes, check: int, base: int, count: int) -> bytes:
    """The fingerprint up to and with a batch, from the one before it and the batch's checksum."""
    return hashlib.blake2b(before + _LINK.pack(check, base, count), digest_size=16).digest()


def damaged(topic: str, partition: int, first: int, following: int, what: str) -> Damaged:
    return Damaged(
        f"{topic}/{partition}: the records at offsets {first} to {following - 1} {what}",
        hint="nothing after them is served; restore a copy of the log, or replay from the source",
    )


def _column(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return None if values.count(None) == len(values) else values


def _compressor() -> zstandard.ZstdCompressor:
    found: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if found is None:
        found = _local.compressor = zstandard.ZstdCompressor(level=1)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    return found
