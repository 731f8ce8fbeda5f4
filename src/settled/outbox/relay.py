"""The relay: pending rows -> the engine -> removed once accepted. Several may run; each owns some buckets of keys.

A row is sent under its own id and removed only after its receipt, so a death in between sends it again under the same
id. A refused row is tried again later and holds back the later rows of its key, until it is parked. An outage of the
engine or the store burns no attempt: rows pile up, and drain at the governed rate when it is over.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence

import msgspec

from settled import windows
from settled.engine import Engine, Pending, Receipt
from settled.errors import SettledError, Unavailable
from settled.events import Events, Relayed, RelayStateChanged, RowRefused
from settled.outbox.backlog import Backlog
from settled.outbox.pace import Pace
from settled.outbox.policy import RelayPolicy, check
from settled.outbox.sending import Key, Sending
from settled.store import OutboxRow, RowFailure, Store
from settled.token_form import token_of

log = logging.getLogger("settled.outbox")


class Relay:
    """`run` blocks; `stop` may be called from any thread. It has a producer of its own on `engine`; both ports stay
    open when it ends."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        policy: RelayPolicy | None = None,
        *,
        name: str | None = None,
        events: Events | None = None,
        relayed: Callable[[list[Receipt]], object] | None = None,
    ) -> None:
        """`relayed` is told, on the thread of `run`, of each batch that the engine accepted, before its rows are
        removed: the receipts, in the rows' order, with their tokens. What it raises ends `run`."""
        self.policy = policy or RelayPolicy()
        check(self.policy)
        self.name = f"{name or socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.relayed = self.refused = 0
        self._store, self._engine = store, engine
        self._events = events or Events()
        self._told = relayed
        self._identities: dict[str, str] = {}  # of topics, for tokens
        self._stop = threading.Event()
        self._pace = Pace(self.policy.rate, self._pause)
        self._sending = Sending(engine, self.policy, self._refuse)
        self._held: dict[int, int] = {}
        self._hold_next = self._alive_next = 0.0
        self._unmarked: list[OutboxRow] = []  # accepted, and not yet removed
        self._unwritten: list[RowFailure] = []
        self._backlog = Backlog(store.outbox)
        self._due: list[float] = []  # when rows that were refused here are due, on this process's clock
        self._outages = 0
        self._why = ""

    def run(self, *, drain: bool = False) -> None:
        """Relay until `stop`; with `drain`, until no row is left but those that are parked, failing and not due, or
        behind such a one. Raises what only a person can mend (no tables, no rights); outages are waited out."""
        self._tell("running")
        try:
            while True:
                try:
                    if self._stop.is_set():
                        self._land(0, set())
                        return
                    if self._unmarked or self._unwritten:
                        self._write_down()  # what an outage left
                    self._hold()
                    if self._pass():
                        continue
                    if drain and self._is_drained():
                        return
                    self._rest()
                except Unavailable as outage:
                    self._wait_out(outage)
        finally:
            self._end()

    def stop(self) -> None:
        """Any thread: end `run` after the batch that is under way."""
        self._stop.set()
        self._store.outbox.wakeup()

    # One pass, in the order it runs.

    def _hold(self) -> None:
        """Between passes: say that this relay lives, and take or give up buckets."""
        now = time.monotonic()
        if now >= self._hold_next:
            self._land(0, set())
            self._write_down()  # what belongs to buckets that may be given up
            self._held = self._store.outbox.hold(self.name, lease_s=self.policy.lease_s, why=self._why)
            self._hold_next = self._alive_next = now + self.policy.lease_s / 4

    def _live(self, why: str = "") -> None:
        """Within a pass: say that this relay lives. After a silence longer than the lease some buckets are another's by
        now, and so is what was read of them."""
        now = time.monotonic()
        if now < self._alive_next:
            return
        lease_s, before = self.policy.lease_s, self._held
        self._held = self._store.outbox.hold(self.name, lease_s=lease_s, why=why or self._why, keep=True)
        self._alive_next = now + lease_s / 4
        if self._held != before:
            self._hold_next = now
            lost = len(before.keys() - self._held.keys())
            log.warning("relay %s was silent for longer than its lease: others took %d of its buckets", self.name, lost)

    def _pause(self, seconds: float) -> None:
        """Wait for the pace, which may be longer than the lease."""
        held, until = self._held, time.monotonic() + seconds
        while self._held == held and (left := until - time.monotonic()) > 0:
            if self._stop.wait(min(left, max(0.001, self._alive_next - time.monotonic()))):
                return
            self._live()

    def _pass(self) -> int:
        """Read, publish, write down. Returns how many rows were dealt with."""
        policy, held, before = self.policy, self._held, self.relayed + self.refused
        rows = self._next()
        if not rows:
            return 0
        windows.reach("relay-read")
        began = time.perf_counter()
        blocked: set[Key] = set()
        dealt = 0
        step = min(policy.batch, self._pace.step or policy.batch)
        behind = policy.rate is None and 2 * len(rows) > policy.rows
        for start in range(0, len(rows), step):
            batch = rows[start : start + step]
            self._pace.take(len(batch))
            self._live()
            if self._stop.is_set() or self._held != held:
                break
            dealt += self._publish(batch, blocked, rows if behind and start + step >= len(rows) else ())
        if self._unmarked:
            windows.reach("relay-sent")
        if blocked or self._unwritten:
            self._backlog.forget_ahead()
        if behind and 2 * len(self._unmarked) > policy.rows and not self._unwritten:
            self._remove_beside()
        else:
            self._write_down()
        self._recovered()
        count = self.relayed + self.refused - before
        self._events.tell(Relayed(self.name, count, time.perf_counter() - began))
        return dealt

    def _next(self) -> list[OutboxRow]:
        """What was read ahead; or, with nothing under way any more, what stands in the store."""
        policy = self.policy
        rows = self._backlog.take_ahead(self._held)
        if not rows:
            self._land(0, set())
            self._write_down()
            most = policy.rows if policy.rate is None else min(policy.rows, max(1, int(policy.rate)))
            rows = self._store.outbox.pending(self._held, rows=most, bytes=policy.bytes)
        return rows

    def _remove_beside(self) -> None:
        """In a backlog: let the store remove these rows while the next ones are published."""
        self._backlog.wait_for_removal()
        leaving, self._unmarked = self._unmarked, []

        def back() -> None:
            self._unmarked += leaving

        self._backlog.remove_beside(self._held, leaving, lambda: windows.reach("relay-marked"), back)

    def _publish(self, batch: Sequence[OutboxRow], blocked: set[Key], behind: Sequence[OutboxRow]) -> int:
        """Send a batch and wait for its receipts. Rows of `blocked` keys are left; a refused row's key joins them.
        `behind`: in a backlog, all rows that were read. What comes after them is read meanwhile, and their receipts
        are waited for after the next batch, where the engine leaves no gap."""
        out = [*self._unmarked, *self._sending.under_way(), *behind] if behind else []
        dealt = self._sending.send(batch, blocked)
        if behind:
            self._backlog.read_ahead(self._held, out, rows=self.policy.rows, bytes=self.policy.bytes)
        self._land(self._sending.may_stay if behind else 0, blocked)
        return dealt

    def _land(self, leave: int, blocked: set[Key]) -> None:
        landed = self._sending.land(leave, self._wait, blocked)
        self._accepted(landed.rows, landed.receipts)
        if landed.outage is not None:
            raise landed.outage

    def _wait(self) -> None:
        """The engine takes its time: stay alive for the others meanwhile."""
        self._live("waiting for the engine")
        if self._stop.is_set():
            raise Unavailable("stopped before the engine answered")

    def _accepted(self, rows: list[OutboxRow], sent: list[Pending]) -> None:
        """The engine holds these; they may be removed."""
        self._unmarked += rows
        self.relayed += len(rows)
        if self._told is not None and rows:
            self._told([self._with_token(pending.result(0)) for pending in sent])

    def _with_token(self, receipt: Receipt) -> Receipt:
        if receipt.topic not in self._identities:
            [info] = self._engine.topics([receipt.topic])
            self._identities[receipt.topic] = info.identity
        return msgspec.structs.replace(receipt, token=token_of(receipt, self._identities[receipt.topic]))

    def _refuse(self, row: OutboxRow, error: SettledError) -> None:
        policy = self.policy
        count = row.attempts + 1
        parked = count >= policy.attempts
        delay = min(policy.most_s, policy.first_s * 2.0 ** min(count - 1, 30)) * random.uniform(0.9, 1.1)
        text = f"{type(error).__name__}: {error.message}"
        due_us = self._store.clock_us() + int(delay * 1_000_000)
        self.refused += 1
        self._backlog.forget_ahead()
        self._unwritten.append(RowFailure(row, text, due_us, parked))
        if not parked:
            self._due.append(time.monotonic() + delay)
        self._events.tell(RowRefused(self.name, row.message.id, row.message.topic, text, count, parked))
        if parked:
            log.warning("outbox row %d (event %s) is parked: %s", row.seq, row.message.id, text)

    def _write_down(self) -> None:
        """Remove what was accepted, note what was refused. Kept for the next time when the store is out of reach."""
        self._backlog.wait_for_removal()
        outbox, written = self._store.outbox, self._unmarked or self._unwritten
        if self._unmarked:
            outbox.sent(self._held, self._unmarked)
            self._unmarked = []
        if self._unwritten:
            outbox.failed(self._held, self._unwritten)
            self._unwritten = []
        if written:
            windows.reach("relay-marked")

    # When there is nothing to do, or nothing can be done.

    def _is_drained(self) -> bool:
        """Nothing is left of the own buckets; have the others' owners ended theirs too?"""
        return not any(bucket not in self._held for bucket in self._store.outbox.status().by_bucket)

    def _rest(self) -> None:
        now = time.monotonic()
        self._due = [moment for moment in self._due if moment > now]
        until = min([now + self.policy.poll_s, self._hold_next, *self._due])
        self._store.outbox.wait(self.name, max(0.0, until - now) + 0.001)

    def _wait_out(self, outage: Unavailable) -> None:
        """Wait with growing distances; rows stay pending and no attempt is counted."""
        if not self._why:
            self._tell("waiting", outage.message)
        self._why = outage.message
        self._outages += 1
        self._backlog.forget_ahead()
        delay = min(5.0, 0.05 * 2.0 ** min(self._outages, 10)) * random.uniform(0.8, 1.2)
        self._stop.wait(min(delay, self.policy.lease_s / 4))

    def _recovered(self) -> None:
        self._outages = 0
        if self._why:
            self._why = ""
            self._tell("running")

    def _end(self) -> None:
        """Leave in good order as far as that is possible; the lease does the rest."""
        try:
            self._write_down()
            self._store.outbox.leave(self.name)
        except Unavailable as outage:
            log.info("relay %s leaves without saying so: %s", self.name, outage)
        finally:
            self._backlog.close()
            if (error := self._sending.close()) is not None:
                log.info("what was in the relay's last batch is sent again: %s", error)
            self._tell("stopped")

    def _tell(self, state: str, why: str = "") -> None:
        self._events.tell(RelayStateChanged(self.name, state, why))
