"""What a handler publishes, until its unit settles: rows gather here and go out with the marks, under the same commit.

So publishing costs no statement of its own and takes no lock early, and the rows are numbered after all that the unit
wrote. A handler that publishes very much has its rows written in parts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from settled.outbox_row import Row, made, row_of
from settled.record import MAX_ID_BYTES, Record

HELD_ROWS, HELD_BYTES = 1000, 4_000_000
_NAMES = uuid.UUID("6f1f7a0e-6a55-5c7e-9f0b-2f6f3d7c9a11")


def nothing() -> Record | None:
    """No record is being handled."""
    return None


class Outgoing:
    """One unit's messages. `write` puts rows into the outbox; `current` tells the record being handled."""

    def __init__(self, consumer: str, write: Callable[[list[Row]], None]) -> None:
        self.current: Callable[[], Record | None] = nothing
        self.on_publish: Callable[[], None] = lambda: None
        self._consumer, self._write = consumer, write
        self._rows: list[Row] = []
        self._bytes = 0
        self._cause: Record | None = None
        self._ordinal = 0

    def publish(
        self,
        value: Any = None,
        *,
        topic: str,
        key: bytes | str | None = None,
        id: str | None = None,
        type: str | None = None,
        version: int | None = None,
        event_time: datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> str:
        cause = self.current()
        if cause is not None:
            id = id or self._id_after(cause)
            causation_id = causation_id or cause.id
            correlation_id = correlation_id or cause.correlation_id or cause.id
        message = made(
            value,
            topic=topic,
            key=key,
            id=id,
            type=type,
            version=version,
            event_time=event_time,
            headers=headers,
            correlation_id=correlation_id,
            causation_id=causation_id,
        )
        self._rows.append(row_of(message))
        self._bytes += message.size
        if len(self._rows) >= HELD_ROWS or self._bytes >= HELD_BYTES:
            self.flush()
        self.on_publish()
        return message.id

    def flush(self) -> None:
        """Write what is held."""
        if self._rows:
            rows, self._rows, self._bytes = self._rows, [], 0
            self._write(rows)

    def drop(self) -> None:
        """Forget what is held: what it belongs to was undone, and its record may run again."""
        self._rows, self._bytes = [], 0
        self._cause, self._ordinal = None, 0

    def _id_after(self, cause: Record) -> str:
        """Stable: the cause's id, the consumer and how many this run of the handler has published before."""
        if cause is not self._cause:
            self._cause, self._ordinal = cause, 0
        self._ordinal += 1
        found = f"{cause.id}:{self._consumer}:{self._ordinal}"
        if len(found) * 4 <= MAX_ID_BYTES or len(found.encode()) <= MAX_ID_BYTES:
            return found
        return str(uuid.uuid5(_NAMES, found))
