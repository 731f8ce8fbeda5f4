"""One member of a group on one topic of form log, on the connection's thread: it makes itself known, takes partitions
whose lock is free, and gives back what belongs to others.

The lock of a partition (`locks`) is taken first; then the member says so on the board (`notices`), and from what it
reads back it knows the epoch and the mark of the owner before. How many partitions a member should have follows from
who is known; all compute it alike (`shares`).
"""

from __future__ import annotations

import os
import socket
import time
import uuid
import zlib
from collections.abc import Callable
from typing import Any

from pika.adapters.select_connection import SelectConnection

from settled import clock
from settled.engine import Assigned, Revoking
from settled.engines.rabbitmq.board import Mark, Note
from settled.engines.rabbitmq.facts import Facts, facts_in, stream_of
from settled.engines.rabbitmq.fetch import Fetch
from settled.engines.rabbitmq.handoff import HandOff
from settled.engines.rabbitmq.lane import Lane
from settled.engines.rabbitmq.locks import Locks
from settled.engines.rabbitmq.looking import Following, Looking
from settled.engines.rabbitmq.notices import Notices
from settled.engines.rabbitmq.stream_steps import Came, bounds
from settled.engines.rabbitmq.topology import facts_of
from settled.engines.shares import shares

REFUSALS = 6  # of a stream to be read, in turn
LOOK_S = 1.0  # until what the broker refused is tried again
SAY_S = 0.4  # between two notes of how far the owner is


class Membership:
    """`trouble` is told what the broker refused, with a few words on what was tried."""

    def __init__(
        self,
        topic: str,
        facts: Facts,
        group: str,
        name: str,
        lease_s: float,
        hand: HandOff[Lane],
        most: int,
        trouble: Callable[[BaseException, str], None],
        *,
        elsewhere: bool,
    ) -> None:
        """`elsewhere`: there are other nodes to go to."""
        self._topic, self._group, self._name, self._lease_s = topic, group, name, lease_s
        self._facts, self._hand, self._most, self._trouble = facts, hand, most, trouble
        self._elsewhere = elsewhere
        self._id = uuid.uuid4().hex
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._notices = Notices(topic, group, self._id, self._tell, self._read_back, self._tend, self._interrupted)
        self._locks = Locks(topic, group, self._taken, self._tend, self._refused)
        self._connection: Any = None
        self._joined: int | None = None
        self._leaving = False
        self._dirty = self._doubt = False
        self._ticked = time.monotonic()
        self._reset()

    def _reset(self) -> None:
        self._lanes: dict[int, Lane] = {}  # whose lock is this member's
        self._fetches: dict[int, Fetch] = {}
        self._back: dict[int, Mark] = {}

    def up(self, connection: SelectConnection) -> None:
        self._reset()
        self._doubt = False
        self._connection = connection
        self._locks.up(connection)
        self._notices.up(connection)
        self._follow()

    def down(self) -> None:
        self._connection = None
        self._locks.up(None)
        self._notices.down()
        for lane in self._lanes.values():
            self._hand.lost(lane)
        self._reset()

    def tick(self, now: float) -> None:
        if self._stood_still(now):
            self._notices.excuse(now)
            self._doubt = True  # whether the connection lives is known when a note of now is read back
            self._notices.say(self._assured)
        self._ticked = now
        if self._connection is None or not self._notices.ready or self._leaving:
            return
        since = now - self._notices.said_at
        if since > self._lease_s / 3 or (self._dirty and since > SAY_S):
            self._dirty = False
            self._notices.say(self._assured if self._doubt else None)
        for fetch in list(self._fetches.values()):
            fetch.tick(now)
        self._notices.silent(now)
        self._tend()

    def _stood_still(self, now: float) -> bool:
        """This thread did, for so long that others may have its partitions, whatever came in before."""
        return now - self._ticked > self._lease_s / 2

    def _assured(self) -> None:
        self._doubt = False

    # What the owner asks for.

    def open(self, lane: Lane) -> None:
        if (
            self._connection is not None
            and self._lanes.get(lane.number) is lane
            and not (lane.leaving or lane.revoking)
        ):
            self._fetches[lane.number].open(self._connection)

    def taken(self) -> None:
        for fetch in list(self._fetches.values()):
            fetch.taken()

    def moved(self) -> None:
        """A frontier moved: it is said with the next note."""
        self._dirty = True

    def say(self, then: Callable[[], None]) -> None:
        """Say all that is true now; `then`: the board has it."""
        if self._connection is not None:
            self._notices.say(then)

    def look(self, lane: Lane, then: Callable[[], None]) -> None:
        """Where the partition begins and ends now; `then` is called whether or not it is known."""
        if not self._look(lane, then, then):
            then()

    def _look(self, lane: Lane, then: Callable[[], None], otherwise: Callable[[], None]) -> bool:
        """Whether the broker could be asked."""
        connection = self._connection
        if connection is None or not connection.is_open or self._lanes.get(lane.number) is not lane:
            return False
        came = Came()

        def seen(found: tuple[int, int]) -> None:
            with self._hand.lock:
                lane.begin, lane.end = found
                lane.looks += 1
            then()

        def failed(error: Exception) -> None:
            self._refused(error, f"looking at {self._topic}/{lane.number}")
            otherwise()

        Looking(connection, stream_of(self._topic, lane.number), came, bounds(came), seen, failed)
        return True

    def give_back(self, lane: Lane, *, clean: bool) -> None:
        """Its mark first, then its lock: who has the lock next has read the mark."""
        number = lane.number
        if self._connection is None or self._lanes.get(number) is not lane or lane.leaving:
            return
        lane.leaving = True
        fetch = self._fetches.pop(number, None)
        if fetch is not None:
            fetch.close()
        self._back[number] = Mark(lane.epoch, lane.frontier, clean)
        self._notices.say(lambda: self._locks.give_up(number, lambda: self._given_up(number)))

    def leave(self) -> None:
        """Say that it goes; the connection is closed next, and its locks with it."""
        self._leaving = True
        if self._connection is not None:
            self._notices.say()

    # The board.

    def _tell(self, number: int) -> Note:
        for lane in self._lanes.values():
            if lane.noted < 0:
                lane.noted = number
        owned = {
            each: Mark(lane.epoch, lane.frontier, False)
            for each, lane in self._lanes.items()
            if not (lane.leaving or self._leaving)
        }
        back = {**self._left(), **self._back} if self._leaving else dict(self._back)
        return Note(
            member=self._id,
            name=self._name,
            host=self._host,
            pid=self._pid,
            number=number,
            born=self._notices.board.born or self._facts.partitions,
            at_us=clock.wall_us(),
            lease_s=self._lease_s,
            joined=self._joined,
            owned=owned,
            back=back,
            gone=self._leaving,
        )

    def _left(self) -> dict[int, Mark]:
        """What it has when it goes. Nothing was done with what the owner was not told of."""
        with self._hand.lock:
            told = set(self._hand.told)
        return {
            number: Mark(lane.epoch, lane.frontier, lane.clean and lane.place not in told)
            for number, lane in self._lanes.items()
        }

    def _read_back(self, note: Note) -> None:
        """What the board said of the partitions that were taken with this note: the marks of the owners before."""
        board = self._notices.board
        self._joined = board.joined.get(self._id)
        again = False
        for number, lane in list(self._lanes.items()):
            if not 0 < lane.noted <= note.number or lane.leaving:
                continue
            mark = board.marks.get(number)
            if mark is not None and mark.epoch >= lane.epoch:
                lane.epoch, lane.noted, again = mark.epoch + 1, -1, True
                continue
            lane.noted = 0
            lane.clean = mark is None or mark.clean
            lane.frontier = None if mark is None else mark.frontier
            self._find(lane)
        if again:
            self._notices.say()

    def _find(self, lane: Lane) -> None:
        """Announce it with its bounds, as soon as the broker tells them."""
        connection = self._connection

        def again() -> None:
            if connection.is_open:
                connection.ioloop.call_later(LOOK_S, lambda: self._find(lane))

        self._look(lane, lambda: self._announce(lane), again)

    def _announce(self, lane: Lane) -> None:
        if self._lanes.get(lane.number) is not lane or lane.leaving:
            return
        stream = stream_of(self._topic, lane.number)
        self._fetches[lane.number] = Fetch(lane, stream, self._hand, self._most, self._refused)
        with self._hand.lock:
            self._hand.fault = None
        self._hand.gained(
            lane,
            Assigned(
                topic=self._topic,
                partition=lane.number,
                epoch=lane.epoch,
                clean=lane.clean,
                identity=self._facts.identity,
                begin=lane.begin,
                end=lane.end,
                original=lane.number < (self._notices.board.born or 0),
            ),
        )

    def _follow(self) -> None:
        """The topic's facts: partitions may come."""
        bodies: list[bytes] = []
        connection = self._connection

        def heard(body: bytes, _: int) -> None:
            bodies.append(body)
            known = facts_in(bodies)
            if known is not None and known.facts.identity == self._facts.identity:
                self._facts = known.facts
                self._tend()

        def lost(error: Exception) -> None:
            self._refused(error, f"following topic {self._topic!r}")
            connection.ioloop.call_later(LOOK_S, again)

        def again() -> None:
            if self._connection is connection:
                self._follow()

        Following(connection, facts_of(self._topic), "first", heard, lost)

    def _interrupted(self, error: Exception) -> None:
        """Without the board nothing is certain: begin anew."""
        self._refused(error, f"reading the board of group {self._group!r}")
        connection = self._connection
        if connection is not None and connection.is_open:
            connection.ioloop.call_later(LOOK_S, lambda: connection.close() if connection.is_open else None)

    def _refused(self, error: BaseException, what: str, times: int = 0) -> None:
        self._trouble(error, what)
        connection = self._connection
        if self._elsewhere and times >= REFUSALS and connection is not None and connection.is_open:
            connection.close()  # another node may have a copy of the stream

    # Taking and giving back.

    def _tend(self) -> None:
        """Do what is due: called whenever something was heard."""
        if self._connection is None or not self._notices.ready or self._leaving or not self._connection.is_open:
            return
        if self._doubt or self._stood_still(time.monotonic()):
            return
        share = self._share()
        for lane in self._surplus(share):
            self._revoke(lane)
        if len(self._lanes) < share and not self._locks.busy:
            self._try()

    def _share(self) -> int:
        members = self._notices.board.members()
        if self._id not in members:
            return 0
        turn = zlib.crc32(self._topic.encode()) % len(members)  # not the same member gets more of all topics
        everyone = [(member, frozenset({0})) for member in members[turn:] + members[:turn]]
        return shares({0: self._facts.partitions}, everyone)[self._id, 0]

    def _surplus(self, share: int) -> list[Lane]:
        kept = [lane for lane in self._lanes.values() if not (lane.revoking or lane.leaving)]
        announced = [lane for lane in kept if lane.number in self._fetches]
        return sorted(announced, key=lambda lane: -lane.number)[: max(0, len(kept) - share)]

    def _revoke(self, lane: Lane) -> None:
        hand = self._hand
        with hand.lock:
            lane.revoking = True
            heard = lane.place in hand.told
            if heard:
                lane.empty()
                hand.news.append(Revoking(topic=lane.topic, partition=lane.number))
                hand.stir.notify_all()
        if heard:
            self._fetches[lane.number].close()
        else:
            hand.lost(lane)
            self.give_back(lane, clean=lane.clean)

    def _try(self) -> None:
        """Try the lock of a partition that nobody says is its own; what was got by now is said when there is none."""
        board = self._notices.board
        members = board.members()
        first = members.index(self._id) * self._facts.partitions // len(members) if self._id in members else 0
        for turn in range(self._facts.partitions):
            number = (first + turn) % self._facts.partitions
            ours = board.owner(number) in (None, self._id)
            if ours and number not in self._lanes and self._locks.free(number):
                self._locks.try_for(number)
                return
        if any(lane.noted < 0 for lane in self._lanes.values()):
            self._notices.say()

    def _taken(self, number: int) -> None:
        self._lanes[number] = Lane(self._topic, number, self._notices.board.epoch(number) + 1)
        if len(self._lanes) >= self._share():
            self._notices.say()
        else:
            self._tend()

    def _given_up(self, number: int) -> None:
        self._back.pop(number, None)
        self._lanes.pop(number, None)
        self._tend()
