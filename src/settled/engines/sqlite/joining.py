"""Batches joined: what is left of several that follow one another becomes one, which takes their place in the log."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from settled.engines.sqlite.database import Connection
from settled.engines.sqlite.encoding import Stored, Unpacked, checksum, encode_left, link_of
from settled.engines.sqlite.topics import Topic

STEP, STEP_BYTES = 64, 1_000_000  # batches and stored bytes that are replaced in one transaction, about
FULL, FULL_BYTES = 400, 600_000  # records and expanded bytes of a batch that is not joined with others
MOST_OFFSETS = 2**31  # that one batch may take


class Joined:
    """What is left of batches, and the rows that it replaces."""

    def __init__(self) -> None:
        self.rows: list[Stored] = []
        self.left: list[Unpacked] = []
        self.records = self.size = self.stored = self.dropped = 0

    def add(self, row: Stored, stored: int, left: Sequence[Unpacked], size: int) -> None:
        """`stored`: the bytes that the row takes; `left`: what stays of it, `size` expanded bytes."""
        count = sum(len(piece.offsets) for piece in left)
        self.rows.append(row)
        self.left += [piece for piece in left if piece.offsets]
        self.records, self.size, self.stored = self.records + count, self.size + size, self.stored + stored
        self.dropped += row.held - count

    def takes(self, row: Stored, records: int, size: int, span_us: int | None) -> bool:
        """Whether the row follows these, and all together stay within bounds; `span_us`: of accepted times."""
        if not self.rows:
            return True
        first, last = self.rows[0], self.rows[-1]
        since = first.accepted_us if first.first_us is None else first.first_us
        return (
            row.base == last.next
            and self.records + records <= FULL
            and self.size + size <= FULL_BYTES
            and row.next - first.base < MOST_OFFSETS
            and (span_us is None or row.accepted_us - since <= span_us)
        )

    @property
    def step_is_full(self) -> bool:
        return len(self.rows) >= STEP or self.stored >= STEP_BYTES

    @property
    def changed(self) -> bool:
        """Whether replacing them makes a difference."""
        return self.dropped > 0 or len(self.rows) > 1


def pack(topic: Topic, number: int, joined: Joined) -> tuple[Stored, bytes]:
    """The batch that takes their place, under the first one's row."""
    first, last = joined.rows[0], joined.rows[-1]
    since = joined.left[0].times[0] if joined.left else last.accepted_us
    compression = max(row.compression for row in joined.rows)
    encoded = encode_left(first.base, since, joined.left, compression)
    made = Stored(
        seq=first.seq,
        base=first.base,
        count=last.next - first.base,
        size=encoded.size,
        accepted_us=last.accepted_us,
        checksum=0,
        chain=last.chain,
        compression=compression,
        kept=encoded.count,
        first_us=since,
        link=link_of(first),
    )
    check = checksum(topic.raw_identity, number, made, encoded.crc)
    return msgspec.structs.replace(made, checksum=check), encoded.payload


def are_there(connection: Connection, rows: Sequence[Stored]) -> bool:
    """Whether these batches are as they were read."""
    found = connection.execute(
        f"SELECT seq, base, count, checksum FROM log_batch WHERE seq IN ({','.join('?' * len(rows))})",
        tuple(row.seq for row in rows),
    ).fetchall()
    return set(found) == {(row.seq, row.base, row.count, row.checksum) for row in rows}


def replace(connection: Connection, part: int, joined: Joined, made: Stored, payload: bytes) -> None:
    """Put the batch in their place, and count what is held anew."""
    going = [row.seq for row in joined.rows[1:]]
    if going:
        connection.execute(f"DELETE FROM log_batch WHERE seq IN ({','.join('?' * len(going))})", tuple(going))
    connection.execute(
        "UPDATE log_batch SET count = ?, bytes = ?, accepted_us = ?, checksum = ?, chain = ?, compression = ?, "
        "payload = ?, kept = ?, first_us = ?, link = ? WHERE seq = ?",
        (
            made.count,
            made.size,
            made.accepted_us,
            made.checksum,
            made.chain,
            made.compression,
            payload,
            made.kept,
            made.first_us,
            made.link,
            made.seq,
        ),
    )
    connection.execute(
        "UPDATE log_partition SET records = records - ?, bytes = bytes - ?, stored = stored - ? WHERE id = ?",
        (joined.dropped, sum(row.size for row in joined.rows) - made.size, joined.stored - len(payload), part),
    )
