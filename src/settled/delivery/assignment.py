"""Assignment: one partition while this member owns it, from the fence to the release. The owner thread alone uses it.

While suspects are left (see `suspects_left`) nothing else of the partition runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from settled.delivery.frontier import Frontier, Witness
from settled.delivery.group import Part
from settled.delivery.lanes import Lanes
from settled.delivery.redrives import Redrives
from settled.engine import Fetched, Partition
from settled.outcome import Attempts, Ending
from settled.record import Record
from settled.store import Progress

SUSPECTS_TOGETHER = 100  # suspects that run in one transaction, their start on record
SUSPECTS_ALONE = 50  # suspects that run one after the other, their start on record together


class Held(msgspec.Struct):
    """A failed record that waits for its next run, at `due` on the owner's monotonic clock, in seconds."""

    record: Record
    due: float
    running: bool = False


class Assignment:
    """The state of an owned partition.

    attempts        what is durable about records that failed or are suspected, by offset
    suspects_left   how many more of the next records that have not ended may have been running in a process that died
    suspects_end    the log's end when the partition was taken over from it: what came later was not in its hands
    doubted         offsets of records that were claimed before, and whose claim may have ended with its process
    renumbered      claims come again under other numbers: whose order tells nothing of what ran
    parked          keys of which a record is in quarantine and the contract says `park`
    endings, charges   decided and not yet durable; they go with the next group
    stopped         why no more of it is fetched
    """

    def __init__(self, topic: str, partition: int, epoch: int, start: int, witness: Witness | None, *, ordered: bool):
        self.topic, self.partition, self.epoch = topic, partition, epoch
        self.lanes = Lanes(ordered=ordered)
        self.frontier = Frontier(start, witness)
        self.stored = start
        self.committed = -1
        self.attempts: dict[int, Attempts] = {}
        self.held: dict[int, Held] = {}
        self.suspects_left = self.suspects_end = 0
        self.suspects: list[Record] = []
        self.doubted: set[int] = set()
        self.renumbered = False
        self.isolated: set[int] = set()  # offsets of suspects whose group failed and nobody could be blamed
        self.parked: set[bytes] = set()
        self.redrives = Redrives()
        self.endings: list[Ending] = []
        self.charges: list[tuple[Record, Attempts]] = []
        self.groups_running = 0
        self.suspects_running = False
        self.revoking = False
        self.stopped: Exception | None = None

    @property
    def place(self) -> Partition:
        return self.topic, self.partition

    @property
    def suspicious(self) -> bool:
        """Suspects run or wait to run: nothing else of it may run meanwhile."""
        return self.suspects_running or bool(self.suspects)

    @property
    def cleared(self) -> bool:
        """Nothing of it is suspected of having killed a worker any more."""
        return not self.suspicious and (not self.suspects_left or self.frontier.next_offset >= self.suspects_end)

    @property
    def idle(self) -> bool:
        """Nothing of it runs and all that was decided is durable."""
        return not self.groups_running and not self.endings and not self.charges

    def receive(self, fetched: Fetched) -> list[Record]:
        """Sort newly fetched records: suspects will run alone, the rest are ready. Returns those that are known to have
        failed before, for the caller to `hold`."""
        records = fetched.records
        failed: list[Record] = []
        self.frontier.received(_offsets(records), fetched.next_offset, fetched.witness)
        if self.suspects_left or self.attempts or self.doubted:
            records, failed = self._sorted_out(records)
        self.lanes.add(records)
        return failed

    def _sorted_out(self, records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
        rest: list[Record] = []
        failed: list[Record] = []
        for record in records:
            known = self.attempts.get(record.offset)
            if known is not None and not known.suspect:
                failed.append(record)
            elif known is not None or self.is_doubted(record):
                self.suspects.append(record)
            else:
                rest.append(record)
        return rest, failed

    def is_doubted(self, record: Record) -> bool:
        """It may have been running in a process that died."""
        return record.offset in self.doubted or (self.suspects_left > 0 and record.offset < self.suspects_end)

    def recognised(self, known: Mapping[int, Attempts], doubted: Iterable[int]) -> None:
        """Of records that come next: what is on record about them, and which of them may have killed a worker."""
        self.attempts.update(known)
        more = set(doubted)
        self.doubted |= more
        self.suspects_left += len(more)

    def runs_alone(self, record: Record) -> bool:
        """A suspect that failed before, that was in a recorded group when a worker died, or in one that failed with
        nobody to blame."""
        return record.offset in self.isolated or record.offset in self.attempts

    def take_suspects(self) -> list[Record]:
        """The next suspects, in order: all to be run alone, or none. One whose key is held by a failed record waits
        behind it."""
        self._rejoin()
        chunk: list[Record] = []
        alone = bool(self.suspects) and self.runs_alone(self.suspects[0])
        most = SUSPECTS_TOGETHER
        if alone:
            most = 1 if self.renumbered else SUSPECTS_ALONE
        while self.suspects and len(chunk) < most and self.runs_alone(self.suspects[0]) == alone:
            record = self.suspects.pop(0)
            if record.offset in self.held or not self.lanes.wait_behind(record):
                chunk.append(record)
        return chunk

    def suspects_ran(self, records: int) -> None:
        """So many suspects ran, and the worker lives. Once as many ran as it can have had running, the rest is free,
        except behind one that is on record."""
        self.suspects_left = max(0, self.suspects_left - records)
        if self.suspects_left or any(record.offset in self.attempts for record in self.suspects):
            return
        self._rejoin()
        self.lanes.put_first([record for record in self.suspects if not self.lanes.wait_behind(record)])
        self.suspects = []

    def _rejoin(self) -> None:
        """Suspects that waited behind a failed record and became ready come before later suspects of their key."""
        if self.suspects:
            before = self.lanes.withdraw_below(max(record.offset for record in self.suspects))
            if before:
                self.suspects = sorted([*before, *self.suspects], key=lambda record: record.offset)

    @property
    def unsaved(self) -> bool:
        """Something is decided, or the frontier moved, and the store does not know."""
        return bool(self.endings or self.charges) or self.stored != self.frontier.position

    def held_keys(self) -> set[bytes | None]:
        """The keys of failed records that wait for their next run, or for their quarantine to be durable."""
        return {held.record.key for held in self.held.values()} | {ending.record.key for ending in self.endings}

    def part(self, ending: Iterable[Record] = (), *, decided: bool = True) -> Part:
        """What the store is told when these records, and all endings that are `decided`, become durable."""
        now = self._progress(self.frontier.position, self.frontier.witness)
        offsets = [record.offset for record in ending]
        if decided:
            offsets += [each.record.offset for each in self.endings]
        if not offsets:
            return Part(now, now)
        offsets.sort()
        return Part(now, self._progress(*self.frontier.if_ended(offsets)))

    def _progress(self, frontier: int, witness: Witness | None) -> Progress:
        return Progress(
            topic=self.topic, partition=self.partition, epoch=self.epoch, frontier=frontier, witness=witness
        )

    def ended(self, records: Sequence[Record]) -> None:
        """These records' endings are durable: their keys are free and the frontier may move."""
        offsets = [record.offset for record in records]
        offsets.sort()
        self.frontier.ended(offsets)
        for record in records if self.attempts or self.held or self.doubted else ():
            self.attempts.pop(record.offset, None)
            self.held.pop(record.offset, None)
            self.doubted.discard(record.offset)
        self.lanes.ended(records)

    def hold(self, record: Record, attempts: Attempts, due: float) -> None:
        """The record failed and waits; its key waits with it."""
        self.attempts[record.offset] = attempts
        self.held[record.offset] = Held(record, due)
        self.lanes.hold(record.key)

    def give_back(self, records: Sequence[Record], *, busy: AbstractSet[bytes | None] = frozenset()) -> None:
        """These were handed out, did not end and have no fault of their own: they are next again, those of a `busy`
        key (or of a failed record's) once it is free."""
        fresh = []
        for record in records:
            held = self.held.get(record.offset)
            if held is not None:
                held.running = False
            else:
                fresh.append(record)
        self.lanes.give_back(fresh, held=self.held_keys() | busy)

    def give_back_suspects(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.offset in self.held:
                self.held[record.offset].running = False
        self.suspects[:0] = [record for record in records if record.offset not in self.held]


def _offsets(records: Sequence[Record]) -> Sequence[int]:
    """The offsets of fetched records, which rise."""
    if records and records[-1].offset - records[0].offset + 1 == len(records):  # without a hole, as nearly always
        return range(records[0].offset, records[-1].offset + 1)
    return [record.offset for record in records]
