"""The thread that keeps one membership alive, however long the consumer's owner is busy. It puts what it learns into
the consumer's inbox and wakes the owner; it sleeps until the next heartbeat is due or another member wakes it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from settled import clock
from settled.engine import Delivery
from settled.engines.sqlite.membership import Membership, Round
from settled.engines.sqlite.wake import Waiter, Waker
from settled.errors import SettledError, Unavailable

log = logging.getLogger("settled.engines.sqlite")

_SOON_S = 0.02
_LONGEST_S = 3.0


class Heartbeat:
    """Made and ended by the consumer's owner; `stale` may be asked by any thread."""

    def __init__(self, membership: Membership, waiter: Waiter, waker: Waker, owner: Waiter) -> None:
        self.inbox: deque[Delivery] = deque()
        self.fault: SettledError | None = None  # the membership cannot go on; poll raises it
        self._membership, self._waiter, self._waker, self._owner = membership, waiter, waker, owner
        self._every_s = min(membership.spec.lease_s / 3, _LONGEST_S)
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="settled-heartbeat", daemon=True)

    def start(self, first: Round) -> None:
        self._soon = self._spread(first)
        self._thread.start()

    def stale(self) -> bool:
        """Whether the lease ran out by the clock: this process was stopped, or its heartbeats cannot get through."""
        return clock.boot_us() >= self._membership.lease_until_us

    def hurry(self) -> None:
        """Do the next round now."""
        self._waiter.wake()

    def end(self) -> None:
        self._ended = True
        self._waiter.wake()
        self._thread.join()

    def _run(self) -> None:
        soon = self._soon
        while True:
            self._waiter.wait(_SOON_S if soon else self._every_s)
            self._waiter.drain()
            if self._ended:
                return
            try:
                soon = self._spread(self._membership.round())
                self.fault = None
            except Unavailable as error:
                log.warning("heartbeat of %s: %s", self._membership.name, error)
                soon = False
            except SettledError as error:
                self.fault = error
                self._owner.wake()
                soon = False

    def _spread(self, result: Round) -> bool:
        if result.news:
            self.inbox.extend(result.news)
            self._owner.wake()
        if result.until_us:
            self._membership.lease_until_us = result.until_us
        if result.tell:
            self._waker.wake("members", but=self._waiter.name)
        return result.again
