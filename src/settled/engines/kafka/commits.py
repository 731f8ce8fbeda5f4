"""A member's commits: asked for by its owner, sent by its fetcher, which alone speaks to the client (that lets one
thread in at a time, and the fetcher nearly always is inside). Answers come by the client's commit callback, on the
fetcher's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from settled.engine import Partition
from settled.engines.kafka.handoff import HandOff
from settled.engines.kafka.lane import Lane
from settled.engines.kafka.marks import Mark
from settled.errors import SettledError, Unavailable

COMMIT_S = 5.0  # how long a commit that must be made is tried, also while the group rebalances
PAUSE_S = 0.01  # between two tries
_REBALANCING = frozenset({KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNSTABLE_OFFSET_COMMIT})


class Answer:
    """What the brokers said to a commit: nothing yet, an error, or none."""

    __slots__ = ("asked", "come", "error")

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.come = False
        self.error: KafkaError | None = None


class Commits:
    """`mark`, `tell` and `ask` may be called from any thread, the rest by the fetcher."""

    def __init__(self, hand: HandOff, translated: Callable[[KafkaError, str, str], SettledError]) -> None:
        self._hand, self._translated = hand, translated
        self._answers: dict[tuple[str, int, int, str], list[Answer]] = {}  # to commits that are waited for
        self._queue: list[TopicPartition] = []

    @property
    def awaited(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._answers)

    def mark(self, lane: Lane, offset: int, mark: Mark) -> None:
        """Commit and wait: the brokers accept it from a member only. Raises Fenced when this is none any more."""
        deadline = time.monotonic() + COMMIT_S
        while (error := self._wait(lane, offset, mark, deadline)) is not None:
            if error.code() not in _REBALANCING or time.monotonic() > deadline:
                raise self._translated(error, "committing a position", lane.place[0])
            with self._hand.lock:
                self._hand.stir.wait(PAUSE_S)
        lane.committed = (offset, mark)

    def tell(self, lanes: Iterable[Lane]) -> None:
        """Tell the brokers what each lane has committed; not waited for, and told again if it fails."""
        told = [_committing(lane.place, *lane.committed) for lane in lanes if lane.committed is not None]
        with self._hand.lock:
            self._queue += told

    def ask(self, lane: Lane, offset: int, mark: Mark) -> Answer:
        """Commit; the answer comes later."""
        answer = Answer()
        with self._hand.lock:
            self._answers.setdefault((*lane.place, offset, mark.text()), []).append(answer)
            self._queue.append(_committing(lane.place, offset, mark))
            self._hand.drained.notify_all()
        return answer

    def _wait(self, lane: Lane, offset: int, mark: Mark, deadline: float) -> KafkaError | None:
        answer = self.ask(lane, offset, mark)
        with self._hand.lock:
            while not answer.come:
                left = deadline - time.monotonic()
                if self._hand.fatal is not None:
                    raise self._hand.fatal
                if left <= 0:
                    self._answers.pop((*lane.place, offset, mark.text()), None)
                    raise Unavailable(
                        f"committing a position of {lane.place[0]}/{lane.place[1]}: no answer within {COMMIT_S:g} s",
                        hint="look whether the brokers run; it is tried again",
                    )
                self._hand.stir.wait(left)
        return answer.error

    def send(self, client: Client) -> None:
        """What waits, in order; a partition that comes twice goes in two requests."""
        with self._hand.lock:
            queue, self._queue = self._queue, []
        while queue:
            together: dict[Partition, TopicPartition] = {}
            while queue and (queue[0].topic, queue[0].partition) not in together:
                one = queue.pop(0)
                together[one.topic, one.partition] = one
            offsets = list(together.values())
            try:
                client.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self.answered(error.args[0], offsets)

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The client's commit callback."""
        with self._hand.lock:
            for tp in partitions:
                lane = self._hand.lanes.get((tp.topic, tp.partition))
                fault = error or tp.error
                answers = self._answers.pop((tp.topic, tp.partition, tp.offset, tp.metadata or ""), ())
                for answer in answers:
                    answer.come, answer.error = True, fault
                if lane is not None and fault is not None and not answers:
                    lane.unconfirmed = True
            self._hand.stir.notify_all()


def _committing(place: Partition, offset: int, mark: Mark) -> TopicPartition:
    return TopicPartition(place[0], place[1], offset, mark.text())
