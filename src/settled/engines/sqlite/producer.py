"""The producer: messages gather in an open batch; a full one is appended by the thread that filled it, one that has
waited long enough by the producer's own thread. Batches are appended one at a time, in the order in which they closed.

A commit whose answer was lost is looked up by the batch's number; a batch that was not stored is tried once more.
After a failed batch a named producer takes nothing until `flush` has reported it: a later sequence that were stored
would make the failed ones look like repeats.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable

from msgspec.structs import astuple

from settled import windows
from settled.engine import ProducerSpec
from settled.engines.sqlite import append
from settled.engines.sqlite.append import Appender, By, Part
from settled.engines.sqlite.batching import Bounds
from settled.engines.sqlite.database import Database
from settled.engines.sqlite.encoding import encode
from settled.engines.sqlite.pending import Batch, Pending, Route, stored_before
from settled.engines.sqlite.topics import Topic
from settled.errors import ContractError, Refused, SettledError, TooLarge, Unavailable
from settled.record import MAX_ID_BYTES, Message, checked

log = logging.getLogger("settled.engines.sqlite")

SAFE = 2**63


class SqliteProducer:
    """Any thread may call it."""

    def __init__(
        self,
        spec: ProducerSpec,
        database: Database,
        appender: Appender,
        topic: Callable[[str], Topic],
        accepted: Callable[[], None],
        closed: Callable[[SqliteProducer], None],
    ) -> None:
        """`topic` finds a topic by name; `accepted` is called after each append, `closed` at the end."""
        self.spec = spec
        self._database, self._appender, self._find = database, appender, topic
        self._accepted, self._on_close = accepted, closed
        self._bounds = Bounds(spec.batch_records, spec.batch_bytes, spec.linger_s)
        self._near_records = spec.batch_records - 1  # below these no bound can be met, so none is asked
        self._near_bytes = min(spec.batch_bytes, spec.buffer_bytes // 2)
        self._lock = threading.Lock()  # guards what follows; held for moments only
        self._acquire, self._release = self._lock.acquire, self._lock.release  # twice as fast as `with`
        self._stir = threading.Condition(self._lock)  # tells the thread
        self._writing = threading.Lock()  # held while batches are appended; taken before `_lock`, never after
        self._routes: dict[str, Route] = {}
        self._topics_seen = -1
        self._kinds: set[str | None] = {None}  # event types that were found good
        self._open = Batch()
        self._closed: deque[Batch] = deque()
        self._appending: Batch | None = None
        self._buffered = 0
        self._spread = 0
        self._failure: tuple[SettledError, int] | None = None
        self._thread: threading.Thread | None = None
        self._idle = False  # the thread waits for a first message
        self._hurry = False
        self._ended = False
        self._identity = spec.identity or f"unnamed-{uuid.uuid4()}"
        self._incarnation, self._stored = 0, None
        if spec.identity is not None:
            self._incarnation, self._stored = append.open_identity(database, spec.identity)
        self._sent = self._stored
        self._batches = 0
        _running.add(self)

    def send(self, message: Message, *, sequence: int | None = None) -> Pending:
        # The hot path: no calls that can be spared, and the lock is held for the buffer's own bookkeeping only.
        row = astuple(message)
        topic, key, value, headers, ident, kind, version, moment, correlation, causation = row
        route = self._routes.get(topic) or self._route(message)
        size = (0 if key is None else len(key)) + (0 if value is None else len(value)) + len(ident)
        if (
            headers
            or not (key is None or type(key) is bytes)
            or not (value is None or type(value) is bytes)
            or not (version is None or (type(version) is int and -SAFE < version < SAFE))
            or not (moment is None or (type(moment) is int and -SAFE < moment < SAFE))
            or correlation is not None
            or causation is not None
            or kind not in self._kinds
            or ident.__class__ is not str
            or not ident.isascii()
            or not 0 < len(ident) <= MAX_ID_BYTES
            or "\0" in ident
        ):
            size = self._checked_size(message)
        if size > route.limit:
            raise _too_large(message, size, route.topic)
        if key is None:
            partition = -1
        else:
            place = route.places.get(key)
            partition = route.place(key) if place is None else place
        ready = False
        self._acquire()
        try:
            if self._ended or sequence is not None or self._incarnation:
                answer = self._admit(message, sequence)
                if answer is not None:
                    return answer
            batch = self._open
            near = batch.size + size >= self._near_bytes or batch.count >= self._near_records
            if near and self._bounds.overflows(batch.size, size):
                ready = True
                batch = self._next_batch()
            if partition < 0:
                self._spread += 1
                partition = self._spread % route.partitions
            group = batch.groups.get(route.topic.parts[partition]) or batch.group(route.topic, partition)
            rows = group.rows
            pending = Pending(batch, group, len(rows), topic, ident)
            rows.append(row)
            batch.size += size
            self._buffered += size
            batch.count += 1
            if batch.count == 1:
                self._begin(batch)
            if sequence is not None:
                batch.sequence = sequence
            if near and (self._bounds.full(batch.count, batch.size) or self._buffered > self.spec.buffer_bytes):
                ready = True
                self._next_batch()
        finally:
            self._release()
        if ready:
            self._append_closed()
        return pending

    def flush(self, timeout: float | None = None) -> None:
        with self._lock:
            last = self._open if self._open.count else self._closed[-1] if self._closed else self._appending
            if timeout is not None and last is not None:
                self._hurry = True
                self._stir.notify_all()
            elif self._open.count:
                self._next_batch()
        if timeout is None:
            self._append_closed()
        elif last is not None and not last.wait(timeout):
            raise TimeoutError(f"not all messages were accepted within {timeout} s")
        stored = self._stored
        if self._failure is not None and self.spec.identity is not None:
            stored = append.last_sequence(self._database, self.spec.identity)  # what an unknown commit left
        with self._lock:
            failure, self._failure = self._failure, None
            if failure is not None:
                self._sent = self._stored = stored
        if failure is not None:
            error, count = failure
            raise type(error)(f"{count} messages are not confirmed: {error.message}", hint=error.hint) from error

    def resume_point(self) -> int | None:
        if self.spec.identity is None:
            raise ContractError(
                "a producer without a name has no resume point", field="identity", hint="give the producer an identity"
            )
        return append.last_sequence(self._database, self.spec.identity)

    def close(self) -> None:
        with self._lock:
            if self._ended:
                return
        try:
            self.flush()
        finally:
            with self._lock:
                self._ended = True
                self._stir.notify_all()
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join()
            _running.discard(self)
            self._leave()
            self._on_close(self)

    def _leave(self) -> None:
        """Undo what this producer left in the log; without success it is left for maintenance."""
        try:
            if self._batches and self.spec.durability == "memory":
                append.end_reservations(self._database)
            if self._batches and self.spec.identity is None:
                append.forget(self._database, self._identity)
        except SettledError as error:
            log.info("producer %s leaves its mark behind: %s", self._identity, error)

    def _route(self, message: Message) -> Route:
        checked(message)
        found = Route(self._find(message.topic))
        with self._lock:
            self._routes[message.topic] = found
        return found

    def _checked_size(self, message: Message) -> int:
        """The size of a message that is no ordinary one, after a full check."""
        checked(message)
        if len(self._kinds) < 1000:
            self._kinds.add(message.type)
        return message.size

    def _admit(self, message: Message, sequence: int | None) -> Pending | None:
        """With `_lock` held: what is refused, and the answer for what was stored before."""
        if self._ended:
            raise Refused("this producer is closed", hint="open another one")
        return self._sequenced(message, sequence)

    def _sequenced(self, message: Message, sequence: int | None) -> Pending | None:
        """With `_lock` held: refuses a sequence that cannot be right; the answer for one that was stored before."""
        if not self._incarnation:
            raise ContractError(
                "a sequence needs a named producer", field="sequence", value=sequence, hint="give ProducerSpec.identity"
            )
        if self._failure is not None:
            error, count = self._failure
            raise Unavailable(
                f"producer {self._identity!r} has {count} unconfirmed messages: {error.message}",
                hint="call flush(), which reports them, then send again from resume_point() on",
            )
        if sequence is None:
            return None
        if self._stored is not None and sequence <= self._stored:
            return stored_before(message)
        if self._sent is not None and sequence <= self._sent:
            raise ContractError(
                f"sequence {sequence} does not rise: {self._sent} was sent before it", field="sequence", value=sequence
            )
        self._sent = sequence
        return None

    def _begin(self, batch: Batch) -> None:
        """With `_lock` held: the first message of a batch starts its waiting time."""
        batch.opened = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._linger, name="settled-producer", daemon=True)
            self._thread.start()
        elif self._idle:
            self._stir.notify_all()

    def _next_batch(self) -> Batch:
        """With `_lock` held: close the open batch."""
        if self._open.count:
            self._closed.append(self._open)
        self._open = Batch()
        return self._open

    def _linger(self) -> None:
        while True:
            with self._lock:
                while not self._ended and not self._hurry:
                    self._idle = not self._open.count
                    left = None if self._idle else self._bounds.due(self._open.opened) - time.monotonic()
                    if left is not None and left <= 0:
                        break
                    self._stir.wait(left)
                self._idle = False
                if self._ended:
                    return
                self._hurry = False
                self._next_batch()
            self._append_closed()

    def _append_closed(self) -> None:
        """Append all closed batches, in order. Errors go to the batches' messages and to `flush`, not to the caller."""
        with self._writing:
            while True:
                with self._lock:
                    if not self._closed:
                        return
                    batch = self._closed.popleft()
                    self._appending = batch
                error: SettledError | None = None
                try:
                    self._append(batch)
                except SettledError as found:
                    error = found
                except BaseException as found:  # an interrupt, or a fault of ours: nobody may wait for ever
                    error = Unavailable(f"a batch could not be appended: {type(found).__name__}: {found}")
                    raise
                finally:
                    with self._lock:
                        self._appending = None
                        self._end(batch, error)

    def _end(self, batch: Batch, error: SettledError | None) -> None:
        """With `_lock` held: tell those who wait. A named producer's later batches share the failure."""
        ended = [batch]
        if error is None:
            if batch.sequence is not None:
                self._stored = batch.sequence
        else:
            if self._incarnation:
                self._next_batch()
                ended += self._closed
                self._closed.clear()
            first, count = self._failure or (error, 0)
            self._failure = (first, count + sum(one.count for one in ended))
        for one in ended:
            self._buffered -= one.size
            one.finish(error)

    def _append(self, batch: Batch) -> None:
        groups = list(batch.groups.values())
        parts = [Part(one.topic, one.partition, encode(one.rows, self.spec.compression)) for one in groups]
        self._batches += 1
        by = By(self._identity, self._incarnation, self._batches, batch.sequence)
        bases: list[int] = []
        windows.reach("batch-closed")
        try:
            topics = self._appender.append(parts, by, bases).topics
        except Unavailable:
            stored = append.was_stored(self._database, by)
            topics = -1 if stored else self._appender.append(parts, by, bases).topics
        for group, base in zip(groups, bases, strict=True):
            group.base = base
        if topics != self._topics_seen:
            with self._lock:
                self._routes.clear()
                self._topics_seen = topics
        self._accepted()


def _too_large(message: Message, size: int, topic: Topic) -> TooLarge:
    return TooLarge(
        f"message {message.id!r} has {size} bytes, above topic {topic.name!r}'s limit of {topic.max_message_bytes}",
        field="value",
        hint="store large content elsewhere and publish a reference, or raise the topic's max_message_bytes",
    )


_running: weakref.WeakSet[SqliteProducer] = weakref.WeakSet()
_unconfirmed_at_exit = False


def _close_at_exit() -> None:
    """A program that ends without closing still sends what is buffered; what is not accepted makes it fail."""
    global _unconfirmed_at_exit
    for producer in list(_running):
        try:
            producer.close()
        except SettledError as error:
            _unconfirmed_at_exit = True
            print(f"settled: {error}", file=sys.stderr)


def _fail_at_exit() -> None:
    if _unconfirmed_at_exit:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(69)


atexit.register(_fail_at_exit)  # registered first, so it runs last
atexit.register(_close_at_exit)
