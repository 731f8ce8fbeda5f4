"""Telling: what a worker says of itself, to listeners at once and to people through the store."""

from __future__ import annotations

import logging
import os
import socket
import time

from settled.errors import SettledError
from settled.events import Events, StateChanged
from settled.store import Store, WorkerReport

log = logging.getLogger("settled.delivery")

AGAIN_S = 5.0  # how often an unchanged state is told to the store, so that silence means something


class Telling:
    """The state of one member: starting, running, idle, paused, waiting, stopping, stopped; and why, in words."""

    def __init__(self, store: Store, events: Events, consumer: str, member: str) -> None:
        self._store, self._events, self._consumer, self._member = store, events, consumer, member
        self._state = ("", "")
        self._told = 0.0

    def tell(self, state: str, why: str = "") -> None:
        """Tell a change at once, and an unchanged state from time to time. Never raises: nothing depends on it."""
        changed = (state, why) != self._state
        if not changed and time.monotonic() - self._told < AGAIN_S:
            return
        self._state, self._told = (state, why), time.monotonic()
        if changed:
            self._events.tell(StateChanged(self._consumer, state, why))
        report = WorkerReport(
            consumer=self._consumer,
            member=self._member,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=state,
            why=why,
        )
        try:
            self._store.report(self._consumer, self._member, None if state == "stopped" else report)
        except SettledError as error:
            log.debug("the state was not told: %s", error)
