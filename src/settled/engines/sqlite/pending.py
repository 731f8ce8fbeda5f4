"""Batches of messages on their way, and what their senders hold: light, since there is one for each message. One event
serves a whole batch, and only if somebody waits.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from settled.engine import Receipt
from settled.engines.sqlite.topics import Topic
from settled.errors import SettledError
from settled.partition import partition_of
from settled.record import Message

REMEMBERED = 65_536  # keys per topic


class Pending(msgspec.Struct, gc=False):
    """A message on its way. A negative index: it was stored before."""

    _batch: Batch
    _group: Group
    _index: int
    _topic: str
    _id: str

    def done(self) -> bool:
        return self._batch.done

    def result(self, timeout: float | None = None) -> Receipt:
        """A message that was stored before has offset and partition -1 and `stored` false: where it stands is not
        kept."""
        if not self._batch.done and not self._batch.wait(timeout):
            raise TimeoutError(f"message {self._id!r} is not yet accepted after {timeout} s")
        if self._batch.error is not None:
            raise self._batch.error
        if self._index < 0:
            return Receipt(self._topic, -1, -1, self._id, stored=False)
        return Receipt(self._topic, self._group.partition, self._group.base + self._index, self._id)


class Route:
    """A topic as one producer uses it: where each key goes, remembered."""

    __slots__ = ("limit", "partitions", "places", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.limit = topic.max_message_bytes
        self.partitions = len(topic.parts)
        self.places: dict[bytes, int] = {}

    def place(self, key: bytes) -> int:
        """The partition of a key that is not remembered yet."""
        if self.partitions == 1:
            return 0
        if len(self.places) >= REMEMBERED:
            self.places.clear()
        found = self.places[key] = partition_of(key, self.partitions)
        return found


class Group:
    """The messages of a batch that go to one partition, as tuples of their fields."""

    __slots__ = ("base", "partition", "rows", "topic")

    def __init__(self, topic: Topic, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.rows: list[tuple[Any, ...]] = []
        self.base = -1


class Batch:
    __slots__ = (
        "_event",
        "count",
        "done",
        "error",
        "groups",
        "opened",
        "sequence",
        "size",
    )

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}  # by the partition's row id
        self.count = self.size = 0
        self.opened = 0.0
        self.sequence: int | None = None
        self.done = False
        self.error: SettledError | None = None
        self._event: threading.Event | None = None

    def group(self, topic: Topic, partition: int) -> Group:
        """The group of a partition that has none yet."""
        found = self.groups[topic.parts[partition]] = Group(topic, partition)
        return found

    def wait(self, timeout: float | None) -> bool:
        with _event_guard:
            if self.done:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout)

    def finish(self, error: SettledError | None) -> None:
        with _event_guard:
            self.error = error
            self.done = True
            for group in self.groups.values():
                group.rows = []
            if self._event is not None:
                self._event.set()


def stored_before(message: Message) -> Pending:
    """What `send` answers for a sequence that was stored before."""
    return Pending(_DONE, _NOWHERE, -1, message.topic, message.id)


_event_guard = threading.Lock()
_NOWHERE = Group(Topic(0, "", "", 0, (), b""), -1)
_DONE = Batch()
_DONE.finish(None)
