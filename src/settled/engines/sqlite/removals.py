"""What is settled leaves a queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from settled import windows
from settled.engines.sqlite import pool
from settled.engines.sqlite.database import Connection, Database
from settled.errors import SettledError

log = logging.getLogger("settled.engines.sqlite")

REMOVED = 2000  # settled runs of claims in one transaction


class Removals:
    """Settled claims are removed on a thread of its own, so that nobody waits for it. What is left undone, the next
    owner of the slot does."""

    def __init__(self, database: Database, owns: Callable[[Connection, int, int], bool], freed: Callable[[], None]):
        """`freed` is called when claims were removed: others may have waited for their keys."""
        self._database, self._owns, self._freed = database, owns, freed
        self._noted: dict[tuple[int, int], int] = {}  # topic and slot -> frontier
        self._stir = threading.Condition()
        self._removing = threading.Lock()  # taken before `_stir`
        self._ended = False
        self._thread: threading.Thread | None = None

    def note(self, topic: int, slot: int, frontier: int) -> None:
        """The claims below `frontier` are settled."""
        with self._stir:
            self._noted[topic, slot] = frontier
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="settled-removals", daemon=True)
                self._thread.start()
            self._stir.notify()

    def finish(self, topic: int, slot: int) -> None:
        """Do what is noted of a slot now: it is about to be given back."""
        self._do((topic, slot))

    def close(self) -> None:
        """Do all that is noted, then end."""
        with self._stir:
            self._ended = True
            self._stir.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._stir:
                while not self._noted and not self._ended:
                    self._stir.wait()
                if not self._noted:
                    return
                place = next(iter(self._noted))
            self._do(place)

    def _do(self, place: tuple[int, int]) -> None:
        with self._removing:
            with self._stir:
                frontier = self._noted.pop(place, None)
            if frontier is None:
                return
            try:
                self._remove(*place, frontier)
            except SettledError as error:  # the next frontier takes it along
                log.warning("settled claims of slot %s are not removed yet: %s", place[1], error)

    def _remove(self, topic: int, slot: int, frontier: int) -> None:
        """In short transactions. Nothing is done for a slot that is another's."""
        below = -1
        while below < frontier:
            with self._database.writing(durable=False) as connection:
                if not self._owns(connection, topic, slot):
                    return
                below = pool.remove(connection, topic, slot, frontier, most=REMOVED)
                windows.reach("claims-removed")
        self._freed()
