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
from typing import Any

import msgspec

from settled import windows
from settled.engine import Engine, Pending, Producer, ProducerSpec, Receipt
from settled.errors import SettledError, Unavailable
from settled.events import Events, Relayed, RelayStateChanged, RowRefused
from settled.outbox.backlog import Backlog
from settled.outbox.pace import Pace
from settled.outbox.policy import RelayPolicy, check
from settled.outbox_row import BUCKETS
from settled.record import Message
from settled.store import OutboxRow, RowFailure, Store
from settled.token_form import token_of

log = logging.getLogger("settled.outbox")

Key = tuple[str, bytes]


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
        self._producer: Producer | None = None
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
            while not self._stop.is_set():
                try:
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
            self._write_down()  # what belongs to buckets that may be given up
            lease_s = self.policy.lease_s
            found = self._store.outbox.hold(self.name, lease_s=lease_s, why=self._why)
            self._held = found.buckets
            self._alive_next = now + lease_s / 4
            self._hold_next = now + lease_s / (40 if found.awaited else 4)

    def _live(self, why: str = "") -> None:
        """Within a pass: say that this relay lives. After a silence longer than the lease some buckets are another's by
        now, and so is what was read of them: rows that could not be removed tell that, too."""
        now = time.monotonic()
        if now < self._alive_next:
            return
        lease_s, before = self.policy.lease_s, self._held
        self._held = self._store.outbox.hold(self.name, lease_s=lease_s, why=why or self._why, keep=True).buckets
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
        most = policy.rows if policy.rate is None else min(policy.rows, max(1, int(policy.rate)))
        rows = self._backlog.take(held, rows=most, bytes=policy.bytes)
        if not rows:
            self._write_down()
            return 0
        windows.reach("relay-read")
        began = time.perf_counter()
        blocked: set[Key] = set()
        step = min(policy.batch, self._pace.step or policy.batch)
        behind = policy.rate is None and 2 * len(rows) > policy.rows
        for start in range(0, len(rows), step):
            batch = rows[start : start + step]
            self._pace.take(len(batch))
            self._live()
            if self._stop.is_set() or self._held != held:
                break
            self._publish(batch, blocked, rows if behind and start + step >= len(rows) else ())
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
        return count

    def _remove_beside(self) -> None:
        """In a backlog: let the store remove these rows while the next ones are published."""
        self._backlog.wait_for_removal()
        leaving, self._unmarked = self._unmarked, []

        def back() -> None:
            self._unmarked += leaving

        def then(removed: int) -> None:
            self._removed(removed, len(leaving))
            windows.reach("relay-marked")

        self._backlog.remove_beside(self._held, leaving, then, back)

    def _removed(self, removed: int, of: int) -> None:
        """Fewer than were sent: their buckets may be another's by now, or a person put some away. Look before any more
        are sent."""
        if removed < of:
            self._alive_next = 0.0

    def _publish(self, batch: Sequence[OutboxRow], blocked: set[Key], behind: Sequence[OutboxRow]) -> None:
        """Send a batch and wait for its receipts. Rows of `blocked` keys are left; a refused row's key joins them.
        `behind`: in a backlog, all rows that are under way; what comes after them is read meanwhile."""
        producer = self._opened()
        send, topics = producer.send, self.policy.topics
        rows: list[OutboxRow] = []
        sent: list[Pending] = []
        for row in batch:
            message = row.message
            if blocked and _key(message) in blocked:
                continue
            if topics and message.topic in topics:
                message = msgspec.structs.replace(message, topic=topics[message.topic])
            try:
                sent.append(send(message))
            except Unavailable:
                raise
            except SettledError as error:
                self._refuse(row, error, blocked)
            else:
                rows.append(row)
        accepted = self._flush(producer, 0.0) if behind and rows else None
        if accepted is None and behind:
            self._backlog.read_ahead(self._held, behind, rows=self.policy.rows, bytes=self.policy.bytes)
        if rows and not (self._wait(producer) if accepted is None else accepted):
            self._judge(rows, sent, blocked)
        else:
            self._accepted(rows, sent)

    def _wait(self, producer: Producer) -> bool:
        """Wait for all receipts, staying alive for the others meanwhile. False: some failed."""
        while (accepted := self._flush(producer, self.policy.lease_s / 4)) is None:
            self._live("waiting for the engine")
            if self._stop.is_set():
                raise Unavailable("stopped before the engine answered")
        return accepted

    def _flush(self, producer: Producer, seconds: float) -> bool | None:
        """Whether all were accepted; none: it is not known after so long."""
        try:
            producer.flush(timeout=seconds)
        except TimeoutError:
            return None
        except SettledError:
            return False
        return True

    def _judge(self, rows: Sequence[OutboxRow], sent: Sequence[Pending], blocked: set[Key]) -> None:
        """Each receipt by itself. An outage leaves its rows pending; whether they were stored is not known."""
        outage: Unavailable | None = None
        good: list[tuple[OutboxRow, Pending]] = []
        for row, pending in zip(rows, sent, strict=True):
            try:
                pending.result(self.policy.lease_s)
            except TimeoutError:
                outage = outage or Unavailable("the engine gave no answer", hint="it is asked again")
            except Unavailable as error:
                outage = outage or error
            except SettledError as error:
                self._refuse(row, error, blocked)
            else:
                good.append((row, pending))
        self._accepted([row for row, _ in good], [pending for _, pending in good])
        if outage is not None:
            raise outage

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

    def _refuse(self, row: OutboxRow, error: SettledError, blocked: set[Key]) -> None:
        policy = self.policy
        if row.message.key is not None:
            blocked.add(_key(row.message))
        count = row.attempts + 1
        parked = count >= policy.attempts
        delay = min(policy.most_s, policy.first_s * 2.0 ** min(count - 1, 30)) * random.uniform(0.9, 1.1)
        text = f"{type(error).__name__}: {error.message}"
        due_us = self._store.clock_us() + int(delay * 1_000_000)
        self.refused += 1
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
            self._removed(outbox.sent(self._held, self._unmarked), len(self._unmarked))
            self._unmarked = []
        if self._unwritten:
            outbox.failed(self._held, self._unwritten)
            self._unwritten = []
        if written:
            windows.reach("relay-marked")

    # When there is nothing to do, or nothing can be done.

    def _is_drained(self) -> bool:
        """Nothing is left of the own buckets; have the others' owners ended theirs too?"""
        others = {bucket: -1 for bucket in range(BUCKETS) if bucket not in self._held}
        return not others or not self._store.outbox.pending(others, rows=1, bytes=1)

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

    def _opened(self) -> Producer:
        """Batches close when the relay says so, so that what is sent at once is accepted at once or not at all where
        the engine appends whole batches, and the order of a key survives an outage."""
        if self._producer is None:
            policy = self.policy
            room = max(policy.bytes, 2 * self._engine.capabilities.max_message_bytes)
            self._producer = self._engine.producer(
                ProducerSpec(
                    durability=policy.durability or self._engine.capabilities.most_durable,
                    batch_records=2 * policy.batch,
                    batch_bytes=room,
                    buffer_bytes=4 * room,
                    linger_s=60.0,
                )
            )
        return self._producer

    def _end(self) -> None:
        """Leave in good order as far as that is possible; the lease does the rest."""
        producer, self._producer = self._producer, None
        try:
            self._write_down()
            self._store.outbox.leave(self.name)
        except Unavailable as outage:
            log.info("relay %s leaves without saying so: %s", self.name, outage)
        finally:
            self._backlog.close()
            if producer is not None:
                _close(producer)
            self._tell("stopped")

    def _tell(self, state: str, why: str = "") -> None:
        self._events.tell(RelayStateChanged(self.name, state, why))


def _close(producer: Producer) -> None:
    try:
        producer.close()
    except SettledError as error:
        log.info("what was in the relay's last batch is sent again: %s", error)


def _key(message: Message) -> Any:
    return message.topic, message.key
