"""Batches of messages on their way, and what their senders hold: light, since there is one for each message. One event
serves a whole batch, and only if somebody waits.
"""

from __future__ import annotations

import threading

import msgspec

from settled.engine import Receipt
from settled.engines.sqlite.topics import Topic
from settled.errors import SettledError
from settled.record import Message


class Pending(msgspec.Struct, gc=False):
    """A message on its way. A negative index: it was stored before."""

    _batch: Batch
    _group: Group
    _index: int
    _message: Message

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

    __slots__ = ("base", "messages", "partition", "topic")

    def __init__(self, topic: Topic, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.messages: list[Message] = []
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

    def add(self, topic: Topic, partition: int, message: Message, size: int) -> Pending:
        part = topic.parts[partition]
        group = self.groups.get(part)
        if group is None:
            group = self.groups[part] = Group(topic, partition)
        messages = group.messages
        index = len(messages)
        messages.append(message)
        self.count += 1
        self.size += size
        return Pending(self, group, index, message)

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
                group.messages = []
            if self._event is not None:
                self._event.set()


def stored_before(message: Message) -> Pending:
    """What `send` answers for a sequence that was stored before."""
    return Pending(_DONE, _NOWHERE, -1, message)


_event_guard = threading.Lock()
_NOWHERE = Group(Topic(0, "", "", 0, ()), -1)
_DONE = Batch()
_DONE.finish(None)
