"""Ownership: which partitions this member works on, from the engine's assignment through the fence in the store to the
release. The owner thread alone uses it.
"""

from __future__ import annotations

import logging
import time

import msgspec

from settled import windows
from settled.delivery.assignment import Assignment
from settled.delivery.flow import InFlight
from settled.delivery.subscription import Subscription
from settled.engine import Assigned, Consumer, Fetched, Partition
from settled.errors import Fenced, Unavailable
from settled.events import Events, PartitionChanged
from settled.outcome import Attempts, Failure, FailureClass
from settled.store import Store

log = logging.getLogger("settled.delivery")

WORKER_LOST = Failure(
    FailureClass.WORKER_LOST,
    "worker lost",
    "the process died while this record ran alone",
    "",
    "worker-lost",
)


class Ownership:
    """The assignments of one member, by (topic, partition)."""

    def __init__(
        self,
        consumer: Consumer,
        store: Store,
        subscription: Subscription,
        in_flight: InFlight,
        events: Events,
        *,
        concurrency: int,
    ) -> None:
        self.assignments: dict[Partition, Assignment] = {}
        self.paused: dict[Partition, Assigned] = {}  # assigned and fenced, and a person wants nothing settled there
        self._wanted: dict[Partition, Assigned] = {}  # assigned, and the fence is not written yet
        self._consumer, self._store, self._subscription = consumer, store, subscription
        self._in_flight, self._events = in_flight, events
        self._suspects = 0 if subscription.mode == "at-most-once" else subscription.group_records * concurrency
        self._name = subscription.consumer.consumer

    def assigned(self, assigned: Assigned) -> None:
        """The engine gave a partition; `acquire` makes it this member's in the store too."""
        place = (assigned.topic, assigned.partition)
        self._drop(place)
        self.paused.pop(place, None)
        self._wanted[place] = assigned

    def acquire(self) -> None:
        """Write the fence of every partition that waits for it. Raises Unavailable (call again), HistoryLost."""
        for place, assigned in list(self._wanted.items()):
            try:
                found = self._acquire(assigned)
            except Fenced as error:
                log.info("%s/%s went to another member meanwhile: %s", *place, error)
                self._consumer.release(*place, clean=False)
            else:
                if found is None:
                    self.paused[place] = assigned
                else:
                    self.assignments[place] = found
            del self._wanted[place]

    def look_for_resumed(self) -> None:
        """Acquire again what was paused and is no more. Raises as `acquire` does."""
        if not self.paused:
            return
        still = self._pauses()
        for place in [place for place in self.paused if place not in still]:
            self._wanted[place] = self.paused.pop(place)
        self.acquire()

    def _pauses(self) -> set[Partition]:
        return {(pause.topic, pause.partition) for pause in self._store.pauses(self._name)}

    def _acquire(self, assigned: Assigned) -> Assignment | None:
        """None: it is paused. Looked at with the fence written: a pause that comes later raises it again."""
        topic, partition, epoch = assigned.topic, assigned.partition, assigned.epoch
        held = self._store.epoch(self._name, topic, partition)
        if held >= epoch:  # the engine forgot epochs (a power cut, another log): go above what the store remembers
            epoch = self._consumer.raise_epoch(topic, partition, held + 1)
        windows.reach("fence-unwritten")
        latest = self._subscription.start == "latest" and assigned.original
        begin = assigned.end if latest else assigned.begin
        position = self._store.acquire(self._name, topic, partition, epoch, assigned.identity, begin=begin)
        windows.reach("fence-written")
        assert position is not None
        if (topic, partition) in self._pauses():
            self._events.tell(PartitionChanged(self._name, topic, partition, epoch, "paused"))
            return None
        self._consumer.start(topic, partition, position.frontier, witness=position.witness)
        found = Assignment(
            topic, partition, epoch, position.frontier, position.witness, ordered=self._subscription.ordered
        )
        found.renumbered = assigned.renumbered
        self._recall(found, clean=assigned.clean)
        if not assigned.clean:
            found.suspects_left, found.suspects_end = self._suspects, assigned.end
        self._events.tell(PartitionChanged(self._name, topic, partition, epoch, "assigned"))
        return found

    def _recall(self, found: Assignment, *, clean: bool) -> None:
        """What the owners before left about records that had not ended."""
        known = {} if found.renumbered else dict(self._store.attempts(self._name, found.topic, found.partition))
        alone = [offset for offset, attempts in known.items() if attempts.suspect and attempts.alone]
        if alone and not clean:
            first = min(alone)  # they run in order, one after the other: the first that is left is the one that ran
            known[first] = _one_more(known[first], self._store.clock_us())
        for offset, attempts in known.items() if not clean else ():
            if attempts.suspect and not attempts.alone:
                known[offset] = _one_of_several(attempts)
        found.attempts = known
        if self._subscription.retry.then == "park":
            found.parked = self._store.parked(self._name, found.topic, found.partition)

    def recognise(self, found: Assignment, fetched: Fetched) -> None:
        """Some of these records were claimed before, under other numbers: what is on record about them goes on. A claim
        that ended with its process counts as a start that is on record does: one alone is charged, others are not."""
        again = fetched.again
        try:
            carried = self._store.carry(
                self._name, found.part().now, [record for record in fetched.records if record.offset in again]
            )
        except Fenced:  # nothing of it can be settled here
            return
        windows.reach("claims-recognised")
        known: dict[int, Attempts] = {}
        for offset, attempts in carried.items():
            known[offset] = attempts
            if attempts.suspect and again[offset]:
                alone = attempts.alone
                known[offset] = _one_more(attempts, self._store.clock_us()) if alone else _one_of_several(attempts)
        found.recognised(known, (offset for offset, died in again.items() if died))

    def revoke(self, place: Partition) -> None:
        """Another member needs it: `release_revoked` gives it up once nothing of it runs."""
        if place in self.assignments:
            self.assignments[place].revoking = True
        elif (wanted := self._wanted.pop(place, None) or self.paused.pop(place, None)) is not None:
            self._consumer.release(*place, clean=wanted.clean)

    def release_revoked(self) -> None:
        """Give back what is revoked and has nothing running or undecided."""
        for place, found in list(self.assignments.items()):
            if found.revoking and found.idle and found.stored == found.frontier.position:
                self.release(place, clean=True)

    def release(self, place: Partition, *, clean: bool) -> None:
        """Give a partition back to the engine, its frontier told first."""
        found = self.assignments[place]
        self._commit([found])
        self._drop(place)
        windows.reach("partition-unreleased")
        self._consumer.release(*place, clean=clean and found.cleared)
        self._events.tell(PartitionChanged(self._name, *place, found.epoch, "released"))

    def lose(self, place: Partition, why: str) -> None:
        """It is another's already. Its records in flight here can commit nothing: the fence sees to that."""
        self._wanted.pop(place, None)
        self.paused.pop(place, None)
        found = self.assignments.get(place)
        if found is not None:
            self._drop(place)
            self._events.tell(PartitionChanged(self._name, *place, found.epoch, "lost", why))

    def stop(self, place: Partition, error: Exception) -> None:
        """It can be read no further. What was read is worked on; nothing more of it is fetched."""
        found = self.assignments.get(place)
        if found is not None and found.stopped is None:
            found.stopped = error
            self._consumer.pause([place])
            log.error("%s/%s stopped: %s", *place, error)
            self._events.tell(PartitionChanged(self._name, *place, found.epoch, "stopped", str(error)))

    def fenced(self) -> None:
        """Some epoch moved on: let go of every partition whose epoch in the store is not ours any more."""
        for place, found in list(self.assignments.items()):
            if self._store.epoch(self._name, *place) != found.epoch:
                self.lose(place, "another member took over, or it was paused")
                self._consumer.release(*place, clean=False)

    def commit(self) -> None:
        """Tell the engine the frontiers that are durable in the store and that it does not know yet."""
        self._commit(list(self.assignments.values()))

    def _commit(self, assignments: list[Assignment]) -> None:
        moved = [found for found in assignments if found.committed != found.stored]
        if not moved:
            return
        windows.reach("frontier-uncommitted")
        try:
            self._consumer.commit({found.place: found.stored for found in moved})
        except Unavailable as error:  # a cache for people and retention; the next call tells it
            log.warning("the engine was not told the frontiers: %s", error)
            return
        for found in moved:
            found.committed = found.stored

    def _drop(self, place: Partition) -> None:
        self.assignments.pop(place, None)
        self._in_flight.drop(place)


def _one_more(known: Attempts, now_us: int) -> Attempts:
    """The attempts of a record that was running alone when its worker died."""
    return Attempts(
        count=known.count + 1,
        first_us=known.first_us or now_us,
        due_us=now_us,
        suspect=True,
        alone=True,
        last=WORKER_LOST,
        first=known.first or WORKER_LOST,
    )


def _one_of_several(known: Attempts) -> Attempts:
    """The attempts of a record that was in a recorded group when its worker died. It may have been running at two
    deaths; it is charged with neither unless a third finds it running alone."""
    count = 2 if known.last is None else known.count
    return msgspec.structs.replace(known, count=count, alone=True)


def due_in(attempts: Attempts, store_us: int) -> float:
    """On the monotonic clock of this process: when a record with these attempts is due."""
    return time.monotonic() + max(0.0, (attempts.due_us - store_us) / 1e6)
