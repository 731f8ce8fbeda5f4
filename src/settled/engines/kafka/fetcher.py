"""The fetcher: the one thread that polls librdkafka for a member, so that rebalances are served and the membership
lives however long the owner is busy. It announces partitions, fetches into the hand-off, and gives partitions back once
the owner did.

librdkafka expects that a revoked partition is unassigned when its callback returns. Here the callback returns at once
and the unassignment follows when the owner has released it; until then the group waits, and other partitions flow on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from settled.engine import ConsumerGroup, Partition
from settled.engines.kafka.announcing import Announcer, Look
from settled.engines.kafka.commits import Answer, Commits
from settled.engines.kafka.faults import is_absent
from settled.engines.kafka.handoff import HandOff
from settled.engines.kafka.lane import Chunk, Lane
from settled.engines.kafka.records import records_of
from settled.errors import Fenced, HistoryLost, SettledError, Unavailable

log = logging.getLogger("settled.engines.kafka")

TOGETHER = 1_000  # messages taken from librdkafka at a time
REST_S, SOON_S = 0.1, 0.01  # how long a poll waits; while something is about to be done
FULL_S = 1.0  # so long the owner may leave the hand-off full before fetching is suspended
AGAIN_S = 0.5  # between two tries of what failed
NOWHERE = TopicPartition("settled-not-assigned", 0)


class Fetcher:
    """Made and closed by the owner."""

    def __init__(
        self,
        group: ConsumerGroup,
        properties: dict[str, Any],
        hand: HandOff,
        commits: Commits,
        translated: Callable[[KafkaError, str, str], SettledError],
        look: Callable[[str, Sequence[int]], Look],
    ) -> None:
        self._group, self._hand, self._look, self._translated = group, hand, look, translated
        self._commits = commits
        told = {"error_cb": self._on_error, "on_commit": commits.answered}
        self._client = Client({**properties, **told})
        self._going: list[TopicPartition] | None = None  # revoked, and not yet unassigned
        self._announcer = Announcer(self._client, hand, look, self._translated)
        self._doubt: Answer | None = None
        self._suspended = False
        self._full_since: float | None = None
        self._again = 0.0
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="settled-fetcher", daemon=True)

    def start(self) -> None:
        self._client.subscribe(
            list(self._group.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread.start()

    def close(self) -> None:
        """Leave the group at once."""
        with self._hand.lock:
            self._ending = True
            self._hand.drained.notify_all()
        self._thread.join()
        self._commits.send(self._client)
        if self._going is not None:
            self._unassign(self._going)
        self._client.close()

    # The thread.

    def _run(self) -> None:
        hand = self._hand
        try:
            while not self._ending:
                if self._confirmed():
                    hand.beat = time.monotonic()
                self._tend()
                self._fetch()
        except SettledError as error:
            self._end(error)
        except KafkaException as error:
            self._end(self._translated(error.args[0], "consuming", ""))
        except BaseException as error:
            log.exception("the fetcher of group %s failed", self._group.group)
            self._end(SettledError(f"the fetcher failed: {type(error).__name__}: {error}"))

    def _end(self, error: SettledError) -> None:
        with self._hand.lock:
            self._hand.fatal = error
            self._hand.stir.notify_all()

    def _confirmed(self) -> bool:
        """Whether this still is a member, asked of the brokers after a time in which this thread stood still."""
        hand = self._hand
        if not hand.stale():
            self._doubt = None
            return True
        doubt, now = self._doubt, time.monotonic()
        if doubt is not None and doubt.come and doubt.error is None and now - doubt.asked < self._group.lease_s / 2:
            return True
        if doubt is not None and not doubt.come and now < self._again:
            return False
        with hand.lock:
            lane = next((lane for lane in hand.lanes.values() if lane.position is not None and lane.committed), None)
        if lane is None or lane.committed is None:
            return True
        self._doubt = self._commits.ask(lane, *lane.committed)
        self._again = time.monotonic() + AGAIN_S
        return False

    def _tend(self) -> None:
        """Do what is due for the lanes, outside of librdkafka's callbacks."""
        hand = self._hand
        with hand.lock:
            due = [lane for lane in hand.lanes.values() if lane.due]
            opening = [lane for lane in hand.lanes.values() if lane.wanted and not lane.open]
            closing = [lane for lane in hand.lanes.values() if lane.open and not lane.wanted]
            back = self._going is not None and all(
                lane.returned for tp in self._going if (lane := hand.lanes.get((tp.topic, tp.partition))) is not None
            )
            unsure = [lane for lane in hand.lanes.values() if lane.unconfirmed]
        self._commits.send(self._client)
        if back and self._going is not None:
            self._unassign(self._going)
        for lane in closing:
            self._shut(lane)
        for lane in opening:
            self._open(lane)
        now = time.monotonic()
        if now >= self._again:
            try:
                self._retry(due, unsure)
            except Unavailable as error:
                log.info("group %s: %s", self._group.group, error)
                self._again = now + AGAIN_S

    def _retry(self, due: list[Lane], unsure: list[Lane]) -> None:
        if self._hand.fault is not None:
            self._probe()
        if due:
            self._announcer.announce(due)
        if unsure:
            for lane in unsure:
                lane.unconfirmed = False
            self._again = time.monotonic() + AGAIN_S
            self._commits.tell(unsure)

    def _probe(self) -> None:
        """Ask whether the brokers are back."""
        try:
            self._client.list_topics(self._group.topics[0], timeout=1.0)
        except KafkaException as error:
            raise self._translated(error.args[0], "looking for the brokers", "") from error
        with self._hand.lock:
            self._hand.fault = None

    def _open(self, lane: Lane) -> None:
        """Fetch a lane from where it expects to go on."""
        topic, partition = lane.place
        offset = lane.expected
        try:
            self._client.seek(TopicPartition(topic, partition, offset))
            self._client.resume([TopicPartition(topic, partition)])
        except KafkaException:  # not ready yet, just revoked, or its position was lost: it cannot be sought any more
            if self._going is not None or not self._assign_again(lane.place, offset):
                return
        with self._hand.lock:
            if lane.wanted and lane.expected == offset:
                lane.open = True

    def _assign_again(self, place: Partition, offset: int) -> bool:
        """Begin anew in the client; the group does not notice. False when it is not this member's any more."""
        try:
            self._client.incremental_unassign([TopicPartition(*place)])
            self._client.incremental_assign([TopicPartition(*place, offset)])
            self._client.resume([TopicPartition(*place)])
        except KafkaException as error:
            log.debug("beginning %s/%s anew: %s", *place, error)
            return False
        return True

    def _shut(self, lane: Lane) -> None:
        self._pause([lane.place])
        with self._hand.lock:
            lane.open = False
            lane.shut()

    def _pause(self, places: Iterable[Partition]) -> None:
        try:
            self._client.pause([TopicPartition(*place) for place in places])
        except KafkaException as error:
            log.debug("pausing %s: %s", places, error)

    def _unassign(self, partitions: list[TopicPartition]) -> None:
        """The owner gave them back: the group may give them to others."""
        with self._hand.lock:
            for tp in partitions:
                self._hand.lanes.pop((tp.topic, tp.partition), None)
            self._going = None
        try:
            self._client.incremental_unassign(partitions)
        except KafkaException as error:  # lost meanwhile
            log.info("giving back %s partitions: %s", len(partitions), error)

    # Fetching.

    def _fetch(self) -> None:
        hand = self._hand
        with hand.lock:
            full = hand.full()
            if full and not self._suspended:
                self._full_since = self._full_since or time.monotonic()
                if time.monotonic() - self._full_since < FULL_S and not self._ending:
                    hand.drained.wait(REST_S)
                    full = hand.full()
                    if full:
                        return
            flowing = [lane.place for lane in hand.lanes.values() if lane.open]
            busy = self._commits.awaited or any(not lane.open and not lane.paused for lane in hand.lanes.values())
        if not full:
            self._full_since = None
        if full and not self._suspended:
            self._suspended = True
            self._pause(flowing)
        elif self._suspended and not full:
            self._suspended = False
            self._resume(flowing)
        first = self._client.poll(SOON_S if busy else REST_S)
        if first is not None:
            self._take([first, *(() if full else self._client.consume(TOGETHER, timeout=0))])

    def _resume(self, places: list[Partition]) -> None:
        try:
            self._client.resume([TopicPartition(*place) for place in places])
        except KafkaException as error:
            log.debug("resuming %s: %s", places, error)

    def _take(self, messages: list[Any]) -> None:
        """Sort what came into the lanes: runs of records of one partition, ends of partitions, errors."""
        several = len(self._group.topics) > 1
        run: list[Any] = []
        partition, topic = -1, self._group.topics[0]
        for message in messages:
            if message.error() is not None:
                self._take_run((topic, partition), run)
                run = []
                self._take_error(message)
                continue
            if message.partition() != partition or (several and message.topic() != topic):
                self._take_run((topic, partition), run)
                run, partition, topic = [], message.partition(), message.topic()
            run.append(message)
        self._take_run((topic, partition), run)

    def _take_run(self, place: Partition, run: list[Any]) -> None:
        if not run:
            return
        records, sizes = records_of(run, *place)
        with self._hand.lock:
            lane = self._hand.lanes.get(place)
            if lane is None or not lane.open or not lane.wanted:
                return
            late = 0
            while late < len(records) and records[late].offset < lane.expected:
                late += 1
            if late < len(records):
                lane.add(Chunk(records[late:], sizes[late:], records[-1].offset + 1))
                self._hand.stir.notify_all()

    def _take_error(self, message: Any) -> None:
        error = message.error()
        assert error is not None
        topic, partition = message.topic(), message.partition()
        with self._hand.lock:
            lane = None if topic is None or partition is None else self._hand.lanes.get((topic, partition))
            if error.code() == KafkaError._PARTITION_EOF:
                offset = message.offset()
                if lane is not None and lane.open and offset is not None:
                    lane.reach(offset)
                    self._hand.stir.notify_all()
                return
        if lane is not None and topic is not None:
            found = self._translated(error, f"reading {topic}/{partition}", topic)
            if isinstance(found, HistoryLost) and lane.position is None:
                return  # of the offset that it was assigned with, before it is started
            if isinstance(found, HistoryLost):
                self._find_position(lane, found, truncated=error.code() == KafkaError._LOG_TRUNCATION)
                return
        self._on_error(error)

    def _find_position(self, lane: Lane, found: SettledError, *, truncated: bool) -> None:
        """The brokers do not hold what was asked for: removed by retention, or a log that went back."""
        topic, partition = lane.place
        try:
            look = self._look(topic, [partition])
        except Unavailable:
            with self._hand.lock:
                lane.open = False  # tried, and looked at, again
            return
        with self._hand.lock:
            begin, end = look.begins[partition], look.ends[partition]
            lane.begin, lane.end = begin, end
            lane.open = False
            if truncated or lane.expected > end:
                self._hand.stop(lane, found)
            elif lane.expected < begin:
                lane.add(Chunk([], [], begin, gap_from=lane.expected))
                self._hand.stir.notify_all()

    # librdkafka's callbacks, on this thread (on the owner's while it closes).

    def _on_assign(self, client: Client, partitions: list[TopicPartition]) -> None:
        places = [(tp.topic, tp.partition) for tp in partitions]
        # A number, for which no broker is asked: a late answer to "the end" would undo the seek that follows.
        client.incremental_assign([TopicPartition(*place, 0) for place in places])
        self._pause(places)
        self._hand.assigned(places)

    def _on_revoke(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._hand.revoke([(tp.topic, tp.partition) for tp in partitions])
        if self._ending:
            self._unassign(partitions)
            return
        self._going = partitions
        try:
            client.incremental_unassign([NOWHERE])  # refused: says that the unassignment comes later
        except KafkaException:
            return

    def _on_lost(self, client: Client, partitions: list[TopicPartition]) -> None:
        self._hand.lose([(tp.topic, tp.partition) for tp in partitions])
        self._going = None
        client.incremental_unassign(partitions)

    def _on_error(self, error: KafkaError) -> None:
        found = self._translated(error, f"consuming as group {self._group.group!r}", "")
        code = error.code()
        with self._hand.lock:
            if error.fatal() or not (isinstance(found, (Unavailable, Fenced)) or is_absent(error)):
                self._hand.fatal = found
            elif code == KafkaError._ALL_BROKERS_DOWN or is_absent(error):
                self._hand.fault = Unavailable(found.message, hint=found.hint)
            else:
                log.debug("group %s: %s", self._group.group, error)
            self._hand.stir.notify_all()
