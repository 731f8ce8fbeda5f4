"""Batches of messages on their way, and what their senders hold: light, since there is one for each message. One event
serves a whole batch, and only if somebody waits.
"""

from __future__ import annotations

import threading

from settled.engine import Receipt
from settled.engines.sqlite.topics import Topic
from settled.errors import SettledError
from settled.record import Message


class Pending:
    """A message on its way."""

    __slots__ = ("_batch", "_group", "_index", "_message")

    def __init__(self, batch: Batch, group: Group, index: int, message: Message) -> None:
        self._batch, self._group, self._index, self._message = batch, group, index, message

    def done(self) -> bool:
        return self._batch.done

    def result(self, timeout: float | None = None) -> Receipt:
        """A message that was stored before has offset and partition -1 and `stored` false: where it stands is not
        kept."""
        if not self._batch.done and not self._batch.wait(timeout):
            raise TimeoutError(f"message {self._message.id!r} is not yet accepted after {timeout} s")
        if self._batch.error is not None:
            raise self._batch.error
        message = self._message
        if self._index < 0:
            return Receipt(message.topic, -1, -1, message.id, stored=False)
        return Receipt(message.topic, self._group.partition, self._group.base + self._index, message.id)


class Group:
    """The messages of a batch that go to one partition."""

    __slots__ = ("base", "messages", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.messages: list[Message] = []
        self.base = -1


class Batch:
    __slots__ = (
        "_by_place",
        "_event",
        "_guard",
        "count",
        "done",
        "error",
        "groups",
        "opened",
        "places",
        "sequence",
        "size",
    )

    def __init__(self) -> None:
        self._by_place: dict[tuple[int, int], Group] = {}
        self.places: list[tuple[Topic, int]] = []
        self.groups: list[Group] = []
        self.count = self.size = 0
        self.opened = 0.0
        self.sequence: int | None = None
        self.done = False
        self.error: SettledError | None = None
        self._event: threading.Event | None = None

    def add(self, topic: Topic, partition: int, message: Message, size: int, sequence: int | None) -> Pending:
        group = self._by_place.get((topic.id, partition))
        if group is None:
            group = self._by_place[topic.id, partition] = Group(partition)
            self.groups.append(group)
            self.places.append((topic, partition))
        pending = Pending(self, group, len(group.messages), message)
        group.messages.append(message)
        self.count += 1
        self.size += size
        if sequence is not None:
            self.sequence = sequence
        return pending

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
            self._by_place.clear()
            for group in self.groups:
                group.messages = []
            if self._event is not None:
                self._event.set()


def stored_before(message: Message) -> Pending:
    """What `send` answers for a sequence that was stored before."""
    return Pending(_DONE, _NOWHERE, -1, message)


_event_guard = threading.Lock()
_NOWHERE = Group(-1)
_DONE = Batch()
_DONE.finish(None)
