"""The producer: messages gather in an open batch. A full one is packed by the thread that filled it and appended by the
producer's own thread meanwhile, together with others that are ready; one that has waited long enough is packed there
too. Batches are appended in the order in which they closed. A sender that runs too far ahead appends, too.

A commit whose answer was lost is looked up by the batch's number; a batch that was not stored is tried once more.
After a failed batch a named producer takes nothing until `flush` has reported it: a later sequence that were stored
would make the failed ones look like repeats.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable

from msgspec.structs import astuple

from settled import at_exit, windows
from settled.engine import ProducerSpec
from settled.engines.sqlite import append
from settled.engines.sqlite.append import Appender, By, Part
from settled.engines.sqlite.batching import Bounds
from settled.engines.sqlite.database import Database
from settled.engines.sqlite.pending import Batch, Group, Pending, Route, last_sequence, stored_before, take_ready
from settled.engines.sqlite.topics import Topic
from settled.errors import ContractError, Refused, SettledError, Unavailable
from settled.record import MAX_ID_BYTES, Message, checked
from settled.scheduling import asked

SAFE = 2**63
TOGETHER = 100  # so many parts at most go into one transaction


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
        self._appending: list[Batch] = []
        self._buffered = 0  # bytes of closed batches that are not accepted yet
        self._failure: tuple[SettledError, int] | None = None
        self._thread: threading.Thread | None = None
        self._idle = False  # the thread waits for a first message
        self._ended = False
        self._identity = spec.identity or f"unnamed-{uuid.uuid4()}"
        self._incarnation, self._stored = 0, None
        self._simple = spec.identity is None  # while nothing is asked before a message is taken
        if spec.identity is not None:
            self._incarnation, self._stored = append.open_identity(database, spec.identity)
        self._sent = self._stored
        self._batches = 0
        at_exit.add(self)

    def send(self, message: Message, *, sequence: int | None = None) -> Pending:
        # The hot path: no calls that can be spared, and the lock is held for the buffer's own bookkeeping only.
        row = astuple(message)
        topic, key, value, headers, ident, kind, version, moment, correlation, causation = row
        route = self._routes.get(topic) or self._route(message)
        if (
            ident.__class__ is str
            and (value is None or type(value) is bytes)
            and (key is None or type(key) is bytes)
            and not headers
            and correlation is None
            and causation is None
            and kind in self._kinds
            and (version is None or (type(version) is int and -SAFE < version < SAFE))
            and (moment is None or (type(moment) is int and -SAFE < moment < SAFE))
            and ident.isascii()
            and "\0" not in ident
            and 0 < (length := len(ident)) <= MAX_ID_BYTES
        ):
            size = length + (len(value) if value else 0) + (len(key) if key else 0)
        else:
            size = self._checked_size(message, route)
        if size > route.limit:
            raise route.too_large(message, size)
        place = route.sole or (key is not None and (route.places.get(key) or route.place(key)))
        ready: Batch | None = None
        self._acquire()
        try:
            if sequence is not None or not self._simple:
                answer = self._admit(message, sequence)
                if answer is not None:
                    return answer
            batch = self._open
            near = batch.size + size >= self._near_bytes or batch.count >= self._near_records
            if near and self._bounds.overflows(batch.size, size):
                ready, batch = batch, self._next_batch()
            if not place:
                place = route.spread()
            group = batch.groups.get(place)
            if group is None:
                group = self._begin(batch, route.topic, place)
            rows = group.rows
            pending = Pending(batch, group, len(rows), topic, ident)
            rows.append(row)
            batch.size += size
            batch.count += 1
            if sequence is not None:
                batch.sequence = sequence
            if near and (
                self._bounds.full(batch.count, batch.size) or self._buffered + batch.size > self.spec.buffer_bytes
            ):
                ready = batch
                self._next_batch()
        finally:
            self._release()
        if ready is not None:
            self._hand_over(ready)
        return pending

    def flush(self, timeout: float | None = None) -> None:
        with self._lock:
            self._next_batch()
            waiting = [*self._appending, *self._closed]
            self._stir.notify()
        if timeout is None:
            self._append_closed()
        elif waiting and not waiting[-1].wait(timeout):
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
            self._ended, self._simple = True, False
            self._stir.notify()
            thread = self._thread
        try:
            self.flush()
        finally:
            if thread is not None and thread is not threading.current_thread():
                thread.join()
            at_exit.remove(self)
            if self._batches:
                append.leave(self._database, self._identity, self.spec)
            self._on_close(self)

    def _route(self, message: Message) -> Route:
        checked(message)
        found = Route(self._find(message.topic))
        with self._lock:
            self._routes[message.topic] = found
        return found

    def _checked_size(self, message: Message, route: Route) -> int:
        """The size of a message that is no ordinary one, after a full check."""
        checked(message)
        if route.topic.queue:
            asked(message.headers)
        if len(self._kinds) < 1000:
            self._kinds.add(message.type)
        return message.size

    def _admit(self, message: Message, sequence: int | None) -> Pending | None:
        """With `_lock` held: refuses what cannot be taken; the answer for a message that was stored before."""
        if self._ended:
            raise Refused("this producer is closed", hint="open another one")
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

    def _begin(self, batch: Batch, topic: Topic, place: int) -> Group:
        """With `_lock` held: a partition's first message in this batch. The batch's first starts its waiting time."""
        if not batch.groups:
            batch.opened = time.monotonic()
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="settled-producer", daemon=True)
                thread.start()  # first: an interrupt in between must leave no thread to be waited for that never ran
                self._thread = thread
            elif self._idle:
                self._stir.notify()
        return batch.group(topic, place)

    def _next_batch(self) -> Batch:
        """With `_lock` held: close the open batch."""
        if self._open.count:
            self._closed.append(self._open)
            self._buffered += self._open.size
        self._open = Batch()
        return self._open

    def _hand_over(self, batch: Batch) -> None:
        """Pack a batch that this thread has closed and leave it to the producer's own. That one gone, or far behind:
        append here."""
        here = True
        try:
            batch.pack(self.spec.compression)
            with self._lock:
                here = self._thread is None or self._buffered > self.spec.buffer_bytes
                self._stir.notify()
        finally:
            if here:
                self._append_closed()

    def _work(self) -> None:
        """The producer's own thread. One that ends by a fault is replaced when the next batch begins."""
        try:
            self._linger()
        finally:
            with self._lock:
                self._thread = None

    def _linger(self) -> None:
        while True:
            with self._lock:
                while not self._ended and not self._closed:
                    self._idle = not self._open.count
                    left = None if self._idle else self._bounds.due(self._open.opened) - time.monotonic()
                    if left is not None and left <= 0:
                        self._next_batch()
                        break
                    self._stir.wait(left)
                self._idle = False
                if self._ended:
                    return
            self._append_closed()

    def _append_closed(self) -> None:
        """Append all closed batches, in order. Errors go to the batches' messages and to `flush`, not to the caller."""
        with self._writing:
            while True:
                with self._lock:
                    batches = self._appending = take_ready(self._closed, TOGETHER)
                if not batches:
                    return
                error: SettledError | None = None
                try:
                    self._append(batches)
                except SettledError as found:
                    error = found
                except BaseException as found:  # an interrupt, or a fault of ours: nobody may wait for ever
                    error = Unavailable(f"a batch could not be appended: {type(found).__name__}: {found}")
                    raise
                finally:
                    with self._lock:
                        self._appending = []
                        self._end(batches, error)

    def _end(self, batches: list[Batch], error: SettledError | None) -> None:
        """With `_lock` held: tell those who wait. A named producer's later batches share the failure."""
        if error is None:
            self._stored = last_sequence(batches, self._stored)
        else:
            if self._incarnation:
                self._next_batch()
                batches = [*batches, *self._closed]
                self._closed.clear()
            first, count = self._failure or (error, 0)
            self._failure = (first, count + sum(one.count for one in batches))
        for one in batches:
            self._buffered -= one.size
            one.finish(error)

    def _append(self, batches: list[Batch]) -> None:
        parts: list[Part] = []
        for batch in batches:
            parts += batch.pack(self.spec.compression)
            windows.reach("batch-closed")
        self._batches += 1
        by = By(self._identity, self._incarnation, self._batches, last_sequence(batches, None))
        bases: list[int] = []
        try:
            topics = self._appender.append(parts, by, bases).topics
        except Unavailable:
            stored = append.was_stored(self._database, by)
            topics = -1 if stored else self._appender.append(parts, by, bases).topics
        groups = (group for batch in batches for group in batch.groups.values())
        for group, base in zip(groups, bases, strict=True):
            group.base = base
        if topics != self._topics_seen:
            with self._lock:
                self._routes.clear()
                self._topics_seen = topics
        self._accepted()
