"""What the owner is told of a partition that the group assigned: where it stands, and how it was left. On the fetcher's
thread, outside of the client's callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from settled.engine import Assigned
from settled.engines.kafka import marks
from settled.engines.kafka.faults import is_absent
from settled.engines.kafka.handoff import HandOff
from settled.engines.kafka.lane import Lane
from settled.engines.kafka.marks import Mark
from settled.errors import SettledError

CALL_S = 5.0  # how long the brokers are asked for committed positions


class Look(msgspec.Struct, frozen=True):
    """What a member must know of a topic and some of its partitions: begin and end by number."""

    identity: str
    partitions: int
    begins: dict[int, int]
    ends: dict[int, int]


class Announcer:
    """Used by the fetcher alone."""

    def __init__(
        self,
        client: Client,
        hand: HandOff,
        look: Callable[[str, Sequence[int]], Look],
        translated: Callable[[KafkaError, str, str], SettledError],
    ) -> None:
        self._client, self._hand, self._look, self._translated = client, hand, look, translated

    def announce(self, lanes: list[Lane]) -> None:
        """Look up where each partition stands, then tell the owner. Raises Unavailable: again later."""
        by_topic: dict[str, list[Lane]] = {}
        for lane in lanes:
            by_topic.setdefault(lane.place[0], []).append(lane)
        for topic, of_topic in by_topic.items():
            found = self._look(topic, [lane.place[1] for lane in of_topic])
            noted = self._noted(topic, found.partitions)
            known = [mark.original for _, mark in noted.values() if mark.original is not None]
            original = min(known, default=0 if noted else found.partitions)
            with self._hand.lock:
                for lane in of_topic:
                    self._announce_one(lane, found, noted.get(lane.place[1]), original)

    def _announce_one(self, lane: Lane, found: Look, noted: tuple[int, Mark] | None, original: int) -> None:
        """Locked."""
        if self._hand.lanes.get(lane.place) is not lane or not lane.due:
            return
        topic, partition = lane.place
        mark = noted[1] if noted is not None else Mark()
        lane.begin, lane.end = found.begins[partition], found.ends[partition]
        lane.committed = noted
        lane.epoch = max(lane.epoch, mark.epoch) + 1
        lane.mark = Mark(lane.epoch, False, original)
        lane.told = True
        self._hand.tell(
            Assigned(
                topic=topic,
                partition=partition,
                epoch=lane.epoch,
                clean=noted is None or mark.clean,
                identity=found.identity,
                begin=lane.begin,
                end=lane.end,
                original=partition < original,
            )
        )

    def _noted(self, topic: str, partitions: int) -> dict[int, tuple[int, Mark]]:
        """What the group has committed, with its notes."""
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        what = "reading committed positions"
        try:
            found = self._client.committed(asked, timeout=CALL_S)
        except KafkaException as error:
            raise self._translated(error.args[0], what, topic) from error
        for one in found:
            if one.error is not None and not is_absent(one.error):
                raise self._translated(one.error, what, topic)
        return {one.partition: (one.offset, marks.read(one.metadata)) for one in found if one.offset >= 0}
