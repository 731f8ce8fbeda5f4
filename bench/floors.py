"""The floors: what a careful person writes by hand for the same work, single-threaded, without settled's guarantees.

They do no validation, no back-pressure, no ownership, no retries; they only move the same bytes through the same
libraries with the same durability.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import apsw
import msgspec
import zstandard

from bench.workload import EFFECT, EFFECT_TABLE, Order
from settled.record import Message

GROUP = 400
Row = tuple[int, int, str, bytes]  # partition's row id, offset, event id, value


def open_file(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def publish(path: Path, made: Sequence[Message]) -> float:
    """Records a second: pack, compress, insert one row per 400 records, commit with a sync."""
    connection = open_file(path)
    connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, count INTEGER, payload BLOB)")
    encoder, compressor = msgspec.msgpack.Encoder(), zstandard.ZstdCompressor(level=1)
    began = time.perf_counter()
    records = iter(made)
    while batch := list(islice(records, GROUP)):
        packed = encoder.encode([(m.key, m.value, m.headers, m.id, m.type, m.version) for m in batch])
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO log (count, payload) VALUES (?, ?)", (len(batch), compressor.compress(packed)))
        connection.execute("COMMIT")
    seconds = time.perf_counter() - began
    connection.close()
    return len(made) / seconds


class _Columns(msgspec.Struct, array_like=True):
    """The columns of a batch as the log holds them, see settled.engines.sqlite.encoding."""

    ids: list[str]
    keys: list[bytes | None] | None
    values: list[bytes] | None


def settle(log: Path, effects: Path) -> float:
    """Records a second: read the log's batches, unpack, decode, insert inbox and effect rows, commit each 400."""
    target = open_file(effects)
    target.execute(EFFECT_TABLE)
    target.execute(
        "CREATE TABLE inbox (consumer INTEGER, event_id TEXT, outcome INTEGER, place INTEGER, offset INTEGER,"
        " settled_us INTEGER, PRIMARY KEY (consumer, event_id)) WITHOUT ROWID"
    )
    target.execute("CREATE TABLE frontier (place INTEGER PRIMARY KEY, frontier INTEGER)")
    decode = msgspec.json.Decoder(Order).decode
    cursor = target.cursor()
    began, total = time.perf_counter(), 0
    for group in groups(log):
        now = time.time_ns() // 1000
        cursor.execute("BEGIN IMMEDIATE")
        cursor.executemany(
            "INSERT INTO inbox VALUES (1, ?, 1, ?, ?, ?) ON CONFLICT DO NOTHING",
            [(event_id, place, offset, now) for place, offset, event_id, _ in group],
        )
        for _, _, _, value in group:
            order = decode(value)
            cursor.execute(EFFECT, (order.order_id, order.version, order.sku, order.quantity))
        reached = {place: offset + 1 for place, offset, _, _ in group}
        cursor.executemany("INSERT OR REPLACE INTO frontier VALUES (?, ?)", list(reached.items()))
        cursor.execute("COMMIT")
        total += len(group)
    seconds = time.perf_counter() - began
    target.close()
    return total / seconds


def groups(log: Path) -> Iterator[list[Row]]:
    """The log's records in groups of 400, batch after batch as they were written."""
    source = open_file(log)
    decompressor, unpack = zstandard.ZstdDecompressor(), msgspec.msgpack.Decoder(_Columns).decode
    held: list[Row] = []
    for part, base, payload in source.execute("SELECT part, base, payload FROM log_batch ORDER BY seq"):
        columns = unpack(decompressor.decompress(payload))
        held += [(part, base + n, *pair) for n, pair in enumerate(zip(columns.ids, columns.values or [], strict=True))]
        while len(held) >= GROUP:
            yield held[:GROUP]
            held = held[GROUP:]
    if held:
        yield held
    source.close()
