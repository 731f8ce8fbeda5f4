"""A queue on the embedded log, worked step by step in the test's own thread."""

from __future__ import annotations

from pathlib import Path

from settled.engine import Fetched, ProducerSpec, TopicSpec
from settled.engines.sqlite import SqliteEngine
from settled.engines.sqlite.database import Connection
from settled.engines.sqlite.runs import Reader
from settled.engines.sqlite.slots import Slot
from settled.engines.sqlite.topics import Topic, require
from settled.record import Message, Record


class Bench:
    """A queue with two slots, each of which a member of its own has."""

    def __init__(self, folder: Path) -> None:
        self.engine = SqliteEngine(f"sqlite:///{folder}/log.db")
        self.engine.ensure_topic(TopicSpec(name="q", partitions=2, form="queue"))
        self.database = self.engine._database
        self.topic: Topic = require(self.database, "q", 1_000_000)
        self.slots = [self.slot(0), self.slot(1)]

    def slot(self, number: int, position: int = 0) -> Slot:
        return Slot(self.database, Reader(), self.topic, number, position)

    def publish(self, *messages: tuple[str, bytes | None], value: bytes = b"v") -> None:
        producer = self.engine.producer(ProducerSpec())
        for ident, key in messages:
            producer.send(Message(topic="q", id=ident, key=key, value=value))
        producer.close()

    def fetch(
        self, slot: int, records: int = 1000, *, owns: bool = True, size: int = 10**9, ordered: bool = True
    ) -> list[Record]:
        def mine(connection: Connection) -> bool:
            return owns

        found, _ = self.slots[slot].fetch(self.database, mine, ordered=ordered, records=records, size=size)
        if found is None:
            return []
        assert isinstance(found, Fetched)
        assert found.next_offset == found.records[-1].offset + 1
        return found.records

    def left(self) -> int:
        queue = self.engine.topics(["q"])[0].queue
        assert queue is not None
        return queue.ready + queue.claimed


def ids(records: list[Record]) -> list[str]:
    return [record.id for record in records]
