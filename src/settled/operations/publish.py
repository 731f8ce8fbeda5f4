"""Publish a file of events. A run that was killed goes on where it came to: the producer's name is derived from the
file, and the sequence of a message is its line number.

Bad lines never stop the run; each is reported by its number. They are found again by a run that continues, so its
verdict is that of a run that was never interrupted.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from settled.contract import specs
from settled.contract.model import Contract
from settled.engine import Engine, Producer
from settled.errors import InvalidMessage, TooLarge
from settled.operations.mapping import Mapping, Unfit
from settled.operations.rows import BadRow, Reader, Row
from settled.record import Message, checked

SAMPLE = 1024 * 1024  # bytes from each end of a file that its name is derived from
TELL_S = 0.1


class Published(msgspec.Struct, kw_only=True):
    """How far a run came.

    lines       read so far, blank ones left out
    published   accepted in this run; `before`: in an earlier run
    refused     lines that are no messages
    """

    lines: int = 0
    published: int = 0
    before: int = 0
    refused: int = 0
    bytes: int = 0  # of the messages published
    seconds: float = 0.0
    producer: str | None = None
    resumed_after: int | None = None

    @property
    def per_second(self) -> float:
        return self.published / self.seconds if self.seconds else 0.0


def publish(
    engine: Engine,
    contract: Contract,
    reader: Reader,
    mapping: Mapping,
    *,
    identity: str | None = None,
    bad: Callable[[BadRow], None],
    progress: Callable[[Published], None] = lambda counts: None,
    check: Callable[[], None] = lambda: None,
) -> Published:
    """Publish all rows and wait until they are accepted. `bad` is called for each line that is no message, `check`
    before each: what it raises ends the run, with what was sent before kept.

    With an `identity` (and an engine that keeps it) what an earlier run published is not published again. Raises
    Unavailable: the same call goes on later.
    """
    engine.ensure_topic(specs.topic_spec(contract))
    named = identity is not None and engine.capabilities.producer_resume
    spec = msgspec.structs.replace(specs.producer_spec(contract), identity=identity if named else None)
    counts = Published(producer=spec.identity)
    started = time.monotonic()
    producer = engine.producer(spec)
    try:
        counts.resumed_after = producer.resume_point() if named else None
        limit = contract.transport.record_limit or engine.capabilities.max_message_bytes
        _send_all(producer, reader, mapping, counts, limit, bad, _now_and_then(progress, counts, started), check)
        producer.flush()
    finally:
        counts.seconds = time.monotonic() - started
        producer.close()
    progress(counts)
    return counts


def file_identity(file: BinaryIO, name: str, mapping: Mapping) -> str:
    """A producer's name for this file published this way: its path, its size and both its ends, and the mapping."""
    size = os.fstat(file.fileno()).st_size
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr((os.fspath(Path(name).resolve()), size, msgspec.structs.astuple(mapping))).encode())
    for start in (0, max(0, size - SAMPLE)):
        file.seek(start)
        digest.update(file.read(SAMPLE))
    file.seek(0)
    return f"file-{digest.hexdigest()}"


def _send_all(
    producer: Producer,
    reader: Reader,
    mapping: Mapping,
    counts: Published,
    limit: int,
    bad: Callable[[BadRow], None],
    tell: Callable[[], None],
    check: Callable[[], None],
) -> None:
    named = counts.producer is not None
    after = -1 if counts.resumed_after is None else counts.resumed_after
    for row in reader.rows():
        check()
        counts.lines += 1
        fault = row if isinstance(row, BadRow) else None
        if isinstance(row, Row):
            try:
                message = mapping.message(row)
                if row.line > after:
                    producer.send(message, sequence=row.line if named else None)
                    counts.published += 1
                    counts.bytes += message.size
                else:
                    _check(message, limit)
                    counts.before += 1
            except Unfit as error:
                fault = BadRow(row.line, str(error), _raw(row))
            except InvalidMessage as error:
                fault = BadRow(row.line, error.message, _raw(row))
        if fault is not None:
            counts.refused += 1
            bad(fault)
        if not counts.lines & 0xFF:
            tell()


def _check(message: Message, limit: int) -> None:
    """What the producer would refuse."""
    if checked(message).size > limit:
        raise TooLarge(f"message {message.id!r} has {message.size} bytes, above the limit of {limit}")


def _raw(row: Row) -> bytes:
    return row.raw or msgspec.json.encode(row.cells)


def _now_and_then(progress: Callable[[Published], None], counts: Published, started: float) -> Callable[[], None]:
    told = started

    def tell() -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= TELL_S:
            told, counts.seconds = now, now - started
            progress(counts)

    return tell
