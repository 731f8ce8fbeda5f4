"""A relay's rows in a store: read ahead while the engine accepts the ones before, removed beside while the next go out.

Both are the database's work, and so need not wait for the relay's own. Not more than one read and one removal are
ahead or behind, so memory is bounded by two reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from settled.errors import Unavailable
from settled.store import Outbox, OutboxRow


class Backlog:
    """One thread owns it; removals run on a thread of its own."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._ahead: tuple[Mapping[int, int], list[OutboxRow]] | None = None
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="settled-relay-removal")
        self._removal: Future[None] | None = None
        self._leaving: list[int] = []  # numbers of rows that are being removed

    def take(self, held: Mapping[int, int], *, rows: int, bytes: int) -> list[OutboxRow]:
        """The next rows of these buckets: those that were read ahead, unless buckets changed hands since."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == held and ahead[1]:
            return ahead[1]
        return self._outbox.pending(held, rows=rows, bytes=bytes, but=self._leaving)

    def read_ahead(self, held: Mapping[int, int], under_way: Sequence[OutboxRow], *, rows: int, bytes: int) -> None:
        """Read what comes after the rows that are under way. A store out of reach is met by their removal."""
        but = [*self._leaving, *(row.seq for row in under_way)]
        try:
            self._ahead = held, self._outbox.pending(held, rows=rows, bytes=bytes, but=but)
        except Unavailable:
            self._ahead = None

    def forget_ahead(self) -> None:
        """What was read may no longer be next: something before it did not go out."""
        self._ahead = None

    def remove_beside(
        self,
        held: Mapping[int, int],
        rows: Sequence[OutboxRow],
        then: Callable[[int], object],
        back: Callable[[], object],
    ) -> None:
        """Let the store remove these rows. On the other thread `then` is told how many it removed, and `back` is called
        if it could not. Raises what the removal before this one met."""
        self.wait_for_removal()
        self._leaving = [row.seq for row in rows]

        def remove() -> None:
            try:
                removed = self._outbox.sent(held, rows)
            except BaseException:
                back()
                raise
            then(removed)

        self._removal = self._beside.submit(remove)

    def wait_for_removal(self) -> None:
        """Raises what it met."""
        removal, self._removal = self._removal, None
        if removal is not None:
            wait([removal])
            self._leaving = []
            removal.result()

    def close(self) -> None:
        self._beside.shutdown()
