"""Reading ahead: in a backlog, the rows of the next pass are read beside while those of this one are published.

What was read ahead is good only if this pass went through: a row that was refused, or not sent, holds back later rows
of its key, and some of those may have been read already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from settled.store import Outbox, OutboxRow


class Reading:
    """Used by the relay's thread alone."""

    def __init__(self, outbox: Callable[[], Outbox]) -> None:
        self._outbox = outbox
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="settled-relay-reading")
        self._ahead: Future[list[OutboxRow]] | None = None
        self._held: Mapping[int, int] = {}

    def start(self, held: Mapping[int, int], *, rows: int, bytes: int, but: Sequence[int]) -> None:
        """Read on beyond `but`: what this pass has, and what is being removed."""
        self._held = held
        self._ahead = self._beside.submit(self._outbox().pending, held, rows=rows, bytes=bytes, but=but)

    def drop(self) -> None:
        """This pass did not go through."""
        self._ahead = None

    def take(self, held: Mapping[int, int], *, rows: int, bytes: int, but: Sequence[int]) -> list[OutboxRow]:
        """What was read ahead, or what is there now. That nothing was there is not taken for granted."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and held == self._held and (found := ahead.result()):
            return found
        return self._outbox().pending(held, rows=rows, bytes=bytes, but=but)

    def close(self) -> None:
        self._beside.shutdown(cancel_futures=True)
