"""A batch as it lies in the log: the messages' fields as columns in MessagePack, compressed or not, with a checksum.

Columns make decoding cheap: a batch becomes records by one `map` over its lists. A column that is none or empty for
all messages is stored as nil. `checksum` covers the payload and the batch's place, `chain` all batches up to it.

A compacted batch stands for one or more that followed one another: their places, what is left of their records with
its offsets and times, and the chain as the last of them had it. Its checksum covers all of that, and its `link` holds
what the chain took from the first of them, so that it can still be told whether it follows the batch before it.
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
_LEFT = struct.Struct(">qq")
_FIRST = struct.Struct(">II16s")


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


class Left(msgspec.Struct, array_like=True, gc=False):
    """The payload of a compacted batch: offsets above its base, accepted times after its `first_us`."""

    offsets: list[int]
    times: list[int]
    columns: Columns


class Unpacked(msgspec.Struct, gc=False):
    """A batch's records as columns, with the offset and the accepted time of each."""

    offsets: Sequence[int]
    times: Sequence[int]
    columns: Columns


class Encoded(msgspec.Struct, frozen=True):
    """Messages of one partition, ready to be stored. `size` is the sum of their Record.size."""

    count: int
    size: int
    compression: int
    payload: bytes
    crc: int


class Stored(msgspec.Struct, frozen=True):
    """A batch's row without its payload. `count` is how many offsets it takes; the last three are of a compacted one:
    `kept` how many records are left of it, `first_us` when the first of them was accepted, `link` see `follows`."""

    seq: int
    base: int
    count: int
    size: int
    accepted_us: int
    checksum: int
    chain: bytes
    compression: int
    kept: int | None = None
    first_us: int | None = None
    link: bytes | None = None

    @property
    def next(self) -> int:
        return self.base + self.count

    @property
    def held(self) -> int:
        """How many records are really there."""
        return self.count if self.kept is None else self.kept


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Columns)
_left_decoder = msgspec.msgpack.Decoder(Left)
_local = threading.local()


def encode(rows: Sequence[tuple[Any, ...]], compression: Compression) -> Encoded:
    """`rows` are the messages' fields, each as `msgspec.structs.astuple` gives them."""
    _, keys, values, headers, ids, types, versions, times, correlations, causations = zip(*rows, strict=True)
    columns, size = _columns(ids, keys, values, headers, types, versions, times, correlations, causations)
    payload = _compressed(_encoder.encode(columns), compression == "zstd")
    return Encoded(len(rows), size, _CODES[compression], payload, zlib.crc32(payload))


def encode_left(base: int, first_us: int, left: Sequence[Unpacked], compression: int) -> Encoded:
    """What is left of batches that followed one another. `count` is that of the records."""
    columns: list[list[Any]] = [[] for _ in Columns.__struct_fields__]
    for piece in left:
        for column, name in zip(columns, Columns.__struct_fields__, strict=True):
            found = getattr(piece.columns, name)
            column += repeat(() if name == "headers" else None, len(piece.offsets)) if found is None else found
    told, size = _columns(*map(tuple, columns))
    offsets = [offset - base for piece in left for offset in piece.offsets]
    times = [time - first_us for piece in left for time in piece.times]
    payload = _compressed(_encoder.encode((offsets, times, told)), bool(compression))
    return Encoded(len(offsets), size, compression, payload, zlib.crc32(payload))


def chosen(batch: Unpacked, places: Sequence[int]) -> tuple[Unpacked, int]:
    """These records of a batch, and the sum of their sizes."""
    columns: list[Any] = [
        None if column is None else [column[place] for place in places]
        for column in msgspec.structs.astuple(batch.columns)
    ]
    ids, keys, values, headers, *_ = columns
    none: list[Any] = [None] * len(places)
    _, size = _columns(tuple(ids or ()), tuple(keys or none), tuple(values or none), tuple(headers or [()] * len(none)))
    offsets, times = ([each[place] for place in places] for each in (batch.offsets, batch.times))
    return Unpacked(offsets, times, Columns(*columns)), size


def decode(topic: str, identity: bytes, partition: int, stored: Stored, payload: bytes) -> list[Record]:
    """The batch's records. Raises Damaged, naming them, when the bytes are not those that were stored."""
    batch = unpack(topic, identity, partition, stored, payload)
    return records(batch, topic, partition, batch.offsets)


def records(batch: Unpacked, topic: str, partition: int, offsets: Sequence[int], first: int = 0) -> list[Record]:
    """The batch's records from `first` on, one for each of `offsets`, which are theirs from now on."""
    columns = batch.columns
    nothing: Any = repeat(None)
    parts: list[Any] = [columns.keys, columns.values, columns.headers or repeat(()), columns.ids]
    parts += [columns.types, columns.versions, columns.event_times, columns.correlations, columns.causations]
    parts = [nothing if part is None else part for part in (*parts, batch.times)]
    if first or len(offsets) < len(batch.offsets):
        parts = [part if isinstance(part, repeat) else part[first : first + len(offsets)] for part in parts]
    return list(map(Record, repeat(topic), repeat(partition), offsets, *parts))


def unpack(topic: str, identity: bytes, partition: int, stored: Stored, payload: bytes) -> Unpacked:
    """The batch's records as columns. Raises as `decode` does."""
    if not _is_whole(identity, partition, stored, payload):
        raise damaged(topic, partition, stored.base, stored.next, "do not match their checksum")
    try:
        raw = _decompressor().decompress(payload) if stored.compression else payload
        found = _unpacked(stored, raw)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise damaged(topic, partition, stored.base, stored.next, f"cannot be decoded ({error})") from error
    held = len(found.columns.ids)
    if held != stored.held:
        raise damaged(topic, partition, stored.base, stored.next, f"are {held} and not {stored.held}")
    return found


def _is_whole(identity: bytes, partition: int, stored: Stored, payload: bytes) -> bool:
    try:
        return checksum(identity, partition, stored, zlib.crc32(payload)) == stored.checksum
    except struct.error:  # a number that no batch has
        return False


def _unpacked(stored: Stored, raw: bytes) -> Unpacked:
    if stored.kept is None:
        return Unpacked(range(stored.base, stored.next), (stored.accepted_us,) * stored.count, _decoder.decode(raw))
    left, first_us = _left_decoder.decode(raw), stored.first_us or 0
    return Unpacked(
        [stored.base + offset for offset in left.offsets], [first_us + time for time in left.times], left.columns
    )


def checksum(identity: bytes, partition: int, stored: Stored, crc: int) -> int:
    """The payload's crc carried on over the batch's place, so that a batch that was moved is found too. That of a
    compacted one covers its chain and link as well."""
    place = _PLACE.pack(
        identity, partition, stored.base, stored.count, stored.size, stored.accepted_us, stored.compression
    )
    check = zlib.crc32(place, crc)
    if stored.kept is None:
        return check
    left = _LEFT.pack(stored.kept, stored.first_us or 0)
    return zlib.crc32(left + stored.chain + (stored.link or b""), check)


def chain_start(identity: bytes, partition: int) -> bytes:
    return hashlib.blake2b(identity + struct.pack(">I", partition), digest_size=16).digest()


def chain_link(before: bytes, check: int, base: int, count: int) -> bytes:
    """The fingerprint up to and with a batch, from the one before it and the batch's checksum."""
    return hashlib.blake2b(before + _LINK.pack(check, base, count), digest_size=16).digest()


def link_of(first: Stored) -> bytes:
    """What a compacted batch keeps of the first that it stands for."""
    return first.link or _FIRST.pack(first.checksum, first.count, first.chain)


def follows(before: bytes, stored: Stored) -> bool:
    """Whether the fingerprint up to the batch is `before`."""
    check, count, chain = stored.checksum, stored.count, stored.chain
    try:
        if stored.kept is not None:
            check, count, chain = _FIRST.unpack(stored.link or b"")
        return chain_link(before, check, stored.base, count) == chain
    except struct.error:  # numbers that no batch has
        return False


def damaged(topic: str, partition: int, first: int, following: int, what: str) -> Damaged:
    return Damaged(
        f"{topic}/{partition}: the records at offsets {first} to {following - 1} {what}",
        hint="nothing after them is served; restore a copy of the log, or replay from the source",
    )


def _columns(
    ids: tuple[str, ...],
    keys: tuple[bytes | None, ...],
    values: tuple[bytes | None, ...],
    headers: tuple[Headers, ...],
    *others: tuple[Any, ...],
) -> tuple[tuple[Any, ...], int]:
    """The columns as they are stored, and the sum of Record.size."""
    count = len(ids)
    size = RECORD_OVERHEAD * count + sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
    plain = headers.count(()) == count
    if not plain:
        size += sum(64 + len(name) + len(value or b"") for pairs in headers for name, value in pairs)
    return (ids, _column(keys), _column(values), None if plain else headers, *map(_column, others)), size


def _compressed(raw: bytes, wanted: bool) -> bytes:
    return _compressor().compress(raw) if wanted else raw


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
