"""What a relay has sent to the engine: one batch after the other, each closed as it is sent.

Where nothing is accepted behind a failure (`Capabilities.gapless`) the next batch may be sent before the receipts of
the one before are there; elsewhere an outage in the middle could let a later row of a key pass an earlier one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from settled.engine import Engine, Pending, Producer, ProducerSpec
from settled.errors import SettledError, Unavailable
from settled.outbox.policy import RelayPolicy
from settled.record import Message
from settled.store import OutboxRow

Key = tuple[str, bytes]


class Batch(NamedTuple):
    """Rows, and what will tell how each of them ended."""

    rows: list[OutboxRow]
    receipts: list[Pending]


class Landed(NamedTuple):
    """Rows that the engine accepted, with their receipts. Of an outage: it left the others as they were, and whether
    they are stored is not known."""

    rows: list[OutboxRow]
    receipts: list[Pending]
    outage: Unavailable | None = None


class Sending:
    """One thread owns it. The producer is opened with the first batch."""

    def __init__(
        self, engine: Engine, policy: RelayPolicy, refused: Callable[[OutboxRow, SettledError], object]
    ) -> None:
        """`refused` is called for each row that the engine will not take."""
        self._engine, self._policy, self._refused = engine, policy, refused
        self._producer: Producer | None = None
        self._under_way: deque[Batch] = deque()
        self._outage: Unavailable | None = None  # met while sending
        self._failed = False  # something that is under way did

    @property
    def may_stay(self) -> int:
        """How many batches may be under way while another one is sent."""
        return int(self._engine.capabilities.gapless)

    def under_way(self) -> list[OutboxRow]:
        return [row for batch in self._under_way for row in batch.rows]

    def send(self, rows: Sequence[OutboxRow], blocked: set[Key]) -> int:
        """Send a batch. Rows of `blocked` keys are left; a refused row's key joins them. Returns how many were dealt
        with."""
        producer = self._opened()
        send, topics = producer.send, self._policy.topics
        batch, refused = Batch([], []), 0
        for row in rows:
            message = row.message
            if blocked and key_of(message) in blocked:
                continue
            if topics and message.topic in topics:
                message = msgspec.structs.replace(message, topic=topics[message.topic])
            try:
                batch.receipts.append(send(message))
            except Unavailable as error:
                self._outage = error
                break
            except SettledError as error:
                self._refuse(row, error, blocked)
                refused += 1
            else:
                batch.rows.append(row)
        if batch.rows:
            self._under_way.append(batch)
            self._failed |= self._flush(0.0) is False  # closes it
        return len(batch.rows) + refused

    def land(self, leave: int, alive: Callable[[], object], blocked: set[Key]) -> Landed:
        """Wait until no more than `leave` batches are under way. `alive` is called all the time meanwhile; what it
        raises ends the wait, and all that is under way is forgotten."""
        landed = Landed([], [])
        try:
            if self._outage is not None:
                self._wait(None, alive)
                self._failed = True
            while len(self._under_way) > leave and not self._failed:
                if not self._wait(self._under_way[0] if leave else None, alive):
                    self._failed = True
                    break
                for _ in range(1 if leave else len(self._under_way)):
                    batch = self._under_way.popleft()
                    landed.rows.extend(batch.rows)
                    landed.receipts.extend(batch.receipts)
            return self._judged(landed, blocked) if self._failed else landed
        except BaseException:
            self._forget()
            raise

    def close(self) -> SettledError | None:
        """Returns what the last batch met: it is sent again by whoever comes."""
        producer, self._producer = self._producer, None
        try:
            if producer is not None:
                producer.close()
        except SettledError as error:
            return error
        return None

    def _wait(self, batch: Batch | None, alive: Callable[[], object]) -> bool:
        """Wait for a batch and all before it; for none, for all that is under way. False: something failed."""
        while True:
            known = self._flush(self._policy.lease_s / 4) if batch is None else self._known(batch)
            if known is not None:
                return known
            alive()

    def _known(self, batch: Batch) -> bool | None:
        """Its last receipt speaks for all: nothing is accepted behind a failure."""
        try:
            batch.receipts[-1].result(self._policy.lease_s / 4)
        except TimeoutError:
            return None
        except SettledError:
            return False
        return True

    def _flush(self, seconds: float) -> bool | None:
        """Whether all were accepted; none: it is not known after so long."""
        try:
            self._opened().flush(timeout=seconds)
        except TimeoutError:
            return None
        except SettledError:
            return False
        return True

    def _judged(self, landed: Landed, blocked: set[Key]) -> Landed:
        """Each receipt by itself, of all that was under way."""
        outage = self._outage
        self._flush(0.0)  # the producer takes messages again
        for batch in self._under_way:
            for row, receipt in zip(batch.rows, batch.receipts, strict=True):
                try:
                    receipt.result(self._policy.lease_s)
                except TimeoutError:
                    outage = outage or Unavailable("the engine gave no answer", hint="it is asked again")
                except Unavailable as error:
                    outage = outage or error
                except SettledError as error:
                    self._refuse(row, error, blocked)
                else:
                    landed.rows.append(row)
                    landed.receipts.append(receipt)
        self._forget()
        return landed._replace(outage=outage)

    def _forget(self) -> None:
        self._under_way.clear()
        self._outage, self._failed = None, False

    def _refuse(self, row: OutboxRow, error: SettledError, blocked: set[Key]) -> None:
        if row.message.key is not None:
            blocked.add(key_of(row.message))
        self._refused(row, error)

    def _opened(self) -> Producer:
        """Batches close when the relay says so, so that what is sent at once is accepted at once or not at all where
        the engine appends whole batches, and the order of a key survives an outage."""
        if self._producer is None:
            policy, able = self._policy, self._engine.capabilities
            room = max(policy.bytes, 2 * able.max_message_bytes)
            self._producer = self._engine.producer(
                ProducerSpec(
                    durability="committed" if "committed" in able.durability else "local",
                    batch_records=2 * policy.batch,
                    batch_bytes=room,
                    buffer_bytes=4 * room,
                    linger_s=60.0,
                    gapless=able.gapless,
                )
            )
        return self._producer


def key_of(message: Message) -> Any:
    return message.topic, message.key
