"""Batches of messages on their way, and what their senders hold: light, since there is one for each message. One event
serves a whole batch, and only if somebody waits.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import msgspec

from settled.engine import Compression, Receipt
from settled.engines.sqlite.append import Part
from settled.engines.sqlite.encoding import encode
from settled.engines.sqlite.pool import runs_of
from settled.engines.sqlite.topics import Topic
from settled.errors import SettledError, TooLarge
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
        kept. One in a queue has no place before it is claimed."""
        if not self._batch.done and not self._batch.wait(timeout):
            raise TimeoutError(f"message {self._id!r} is not yet accepted after {timeout} s")
        if self._batch.error is not None:
            raise self._batch.error
        if self._index < 0:
            return Receipt(self._topic, -1, -1, self._id, stored=False)
        if self._group.topic.queue:
            return Receipt(self._topic, -1, -1, self._id)
        return Receipt(self._topic, self._group.partition, self._group.base + self._index, self._id)


class Route:
    """A topic as one producer uses it: where each key goes, remembered. A place is the row id of a partition."""

    __slots__ = ("_turn", "limit", "places", "sole", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.limit = topic.max_message_bytes
        self.places: dict[bytes, int] = {}
        self.sole = topic.parts[0] if len(topic.parts) == 1 or topic.queue else 0  # a queue's partitions hold claims
        self._turn = 0

    def place(self, key: bytes) -> int:
        """The place of a key that is not remembered yet."""
        if len(self.places) >= REMEMBERED:
            self.places.clear()
        parts = self.topic.parts
        found = self.places[key] = parts[partition_of(key, len(parts))]
        return found

    def too_large(self, message: Message, size: int) -> TooLarge:
        return TooLarge(
            f"message {message.id!r} has {size} bytes, above topic {self.topic.name!r}'s limit of {self.limit}",
            field="value",
            hint="store large content elsewhere and publish a reference, or raise the topic's max_message_bytes",
        )

    def spread(self) -> int:
        """The next place for a message without a key: each partition in its turn."""
        self._turn += 1
        return self.topic.parts[self._turn % len(self.topic.parts)]


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
        "_packing",
        "count",
        "done",
        "error",
        "groups",
        "opened",
        "parts",
        "sequence",
        "size",
    )

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}  # by place
        self.count = self.size = 0
        self.opened = 0.0
        self.sequence: int | None = None
        self.done = False
        self.error: SettledError | None = None
        self.parts: list[Part] | None = None  # in the order of `groups`, once packed
        self._packing = threading.Lock()
        self._event: threading.Event | None = None

    def group(self, topic: Topic, place: int) -> Group:
        """The group of a place that has none yet."""
        found = self.groups[place] = Group(topic, topic.parts.index(place))
        return found

    def pack(self, compression: Compression) -> list[Part]:
        """The closed batch as it is stored; made once, by the thread that comes first."""
        with self._packing:
            if self.parts is None:
                groups = self.groups.values()
                self.parts = [
                    Part(
                        one.topic,
                        one.partition,
                        encode(one.rows, compression),
                        runs_of(one.rows) if one.topic.queue else (),
                    )
                    for one in groups
                ]
                for one in groups:
                    one.rows = []
            return self.parts

    def wait(self, timeout: float | None) -> bool:
        with _event_guard:
            if self.done:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout)

    def finish(self, error: SettledError | None) -> None:
        with self._packing:  # a thread may pack it still, although it failed with one before it
            self.parts = []
            for group in self.groups.values():
                group.rows = []
        with _event_guard:
            self.error = error
            self.done = True
            if self._event is not None:
                self._event.set()


def stored_before(message: Message) -> Pending:
    """What `send` answers for a sequence that was stored before."""
    return Pending(_DONE, _NOWHERE, -1, message.topic, message.id)


def take_ready(closed: deque[Batch], most: int) -> list[Batch]:
    """Remove the first closed batch, and those behind it that are packed already: together at most `most` parts."""
    taken: list[Batch] = []
    parts = 0
    while closed:
        parts += len(closed[0].groups)
        if taken and (closed[0].parts is None or parts > most):
            break
        taken.append(closed.popleft())
    return taken


def last_sequence(batches: list[Batch], default: int | None) -> int | None:
    return next((one.sequence for one in reversed(batches) if one.sequence is not None), default)


_event_guard = threading.Lock()
_NOWHERE = Group(Topic(0, "", "", 0, (), b""), -1)
_DONE = Batch()
_DONE.finish(None)
