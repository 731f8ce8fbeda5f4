"""The tip: a small file beside the log that remembers how far the log had come, so that a log that went back in time
(an older copy restored, its WAL deleted) is noticed instead of giving the same offsets out again.

It is written after each commit that was synced, and never synced itself: after a power cut it may be older than the
log, which says nothing, but never newer. Appends of durability `memory` are not synced and so never move it; what
protects their offsets after a power cut is the reservation, see `append.reserve`.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path

import msgspec

from settled.errors import Unavailable

log = logging.getLogger("settled.engines.sqlite")

_RECORD = struct.Struct("<8s16sqq")
_MAGIC = b"settled1"
_SIZE = 64


class Mark(msgspec.Struct, frozen=True):
    """identity: of the log; commits: its counter; highest: the highest offset ever given in any partition."""

    identity: bytes
    commits: int
    highest: int


def tip_path(log: Path) -> Path:
    return log.with_name(log.name + "-tip")


def read(log: Path) -> Mark | None:
    """The mark, or none when the file is missing or does not match its checksum."""
    try:
        return _decode(tip_path(log).read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"{tip_path(log)} cannot be read: {error}", hint="give this user rights to it") from error


class Tip:
    """The open tip file. Any thread; a lower mark never replaces a higher one of the same log."""

    def __init__(self, log: Path) -> None:
        try:
            self._file = os.open(tip_path(log), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unavailable(
                f"{tip_path(log)} cannot be opened: {error}", hint="give this user rights to it"
            ) from error

    def advance(self, mark: Mark) -> None:
        """Never raises: what was appended is stored, and an older tip is no worse than none."""
        try:
            found = _decode(os.pread(self._file, _SIZE, 0))
            if found is None or found.identity != mark.identity or found.commits < mark.commits:
                self.replace(mark)
        except OSError as error:
            log.warning("the log's tip could not be written: %s", error)

    def replace(self, mark: Mark) -> None:
        raw = _RECORD.pack(_MAGIC, mark.identity, mark.commits, mark.highest)
        os.pwrite(self._file, (raw + struct.pack("<I", zlib.crc32(raw))).ljust(_SIZE, b"\0"), 0)

    def close(self) -> None:
        os.close(self._file)


def _decode(raw: bytes) -> Mark | None:
    if len(raw) != _SIZE:
        return None
    body, (crc,) = raw[: _RECORD.size], struct.unpack_from("<I", raw, _RECORD.size)
    magic, identity, commits, highest = _RECORD.unpack(body)
    if magic != _MAGIC or zlib.crc32(body) != crc:
        return None
    return Mark(identity, commits, highest)
