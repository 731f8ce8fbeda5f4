"""The history of a drill: one file of JSON lines per process, merged by the kernel's monotonic clock, which all
processes of a machine share. A line is written with one system call, so a killed process loses none.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from settled.record import Message, Record


class Event(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Something that happened. Which fields are set depends on `what`:

    publish      step (invoke, ok, fail: known not stored, info: not known), id, key, digest; ok: partition, offset
    log          what the log holds at the end: partition, offset, id, key, digest; begin: its first offsets
    compacted    a partition of a topic in which the newest records of a key may take the place of older ones
    deliver      a handler is about to run: id, partition, offset, key, digest, epoch
    effect       a row of the side table: as deliver, and `n`, its place in the order of insertion
    ended        what the inbox (or the quarantine) says at the end: id, outcome
    entry        a quarantine entry at the end: id, outcome is its state, note says why it is there
    call         a call outside, as its receiver saw it: id, note is the key, outcome the answer
    outcome      the answer that a run of a handler went by: id, outcome
    settled      a group's endings became durable: counts
    owner        a partition changed hands here: partition, epoch, outcome is the change
    frontier     as seen in the store: partition, offset, epoch; `missing`: offsets below it that have no ending
    committed    as seen in the engine: partition, offset
    replay       positions may go back from now on: partition
    death        this process is about to be killed in `window` (or was killed at random)
    resume       `seconds` from a death until work on its partitions went on
    drained      step ok or fail (not within its deadline)
    bound        `note` names what is bounded, n is its size, offset the limit
    """

    what: str
    t: float = 0.0
    pid: int = 0
    step: str = ""
    id: str = ""
    key: str | None = None
    partition: int = -1
    offset: int = -1
    epoch: int = -1
    digest: int = 0
    n: int = -1
    outcome: str = ""
    window: str = ""
    seconds: float = 0.0
    counts: dict[str, int] = {}
    missing: list[int] = []
    note: str = ""


FULL_S = 0.01  # how often a write is tried again while the disk is full
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


class Writer:
    """One process's file. Any thread."""

    def __init__(self, folder: Path, role: str) -> None:
        self._pid = os.getpid()
        path = folder / f"{role}-{self._pid}-{time.monotonic_ns()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        """Time and process are filled in where the event does not say them."""
        event.t, event.pid = event.t or time.monotonic(), event.pid or self._pid
        line = _encoder.encode(event) + b"\n"
        with self._lock:
            while line := line[self._written(line) :]:
                time.sleep(FULL_S)

    def _written(self, line: bytes) -> int:
        """How many bytes of it: a full disk may take a part. That is the drill's own fault to bear, never the
        handler's."""
        try:
            return os.write(self._file, line)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG):
                raise
            return 0

    def write_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.write(event)

    def close(self) -> None:
        os.close(self._file)


def read(folder: Path) -> list[Event]:
    """All events of all processes, in the order in which they happened."""
    events = [event for path in sorted(folder.glob("*.jsonl")) for event in read_file(path)]
    events.sort(key=lambda event: event.t)
    return events


def read_file(path: Path) -> list[Event]:
    """One process's events. A last line without its end is of a write that was cut off, and is left out."""
    return [_decoder.decode(line) for line in path.read_bytes().split(b"\n")[:-1]]


def shown_key(key: bytes | None) -> str | None:
    """A key as the history holds it: text that tells all keys apart."""
    return None if key is None else key.decode("utf-8", "backslashreplace")


def digest_of(message: Message | Record) -> int:
    """A checksum over what must arrive as it was sent."""
    found = 0
    for part in (message.key, message.value):
        found = zlib.crc32(b"-" if part is None else b"+" + part, found)
    for name, value in message.headers:
        found = zlib.crc32(name.encode() + (b"-" if value is None else b"+" + value), found)
    return found


def of_record(what: str, record: Record, **more: int) -> Event:
    """An event about a record, with its place and its checksum."""
    return Event(
        what=what,
        id=record.id,
        key=shown_key(record.key),
        partition=record.partition,
        offset=record.offset,
        digest=digest_of(record),
        epoch=more.get("epoch", -1),
        n=more.get("n", -1),
    )
