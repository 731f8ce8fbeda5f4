"""What the processes of a drill do: work (the user's application, watched), publish, relay, apply retention.

Watching changes nothing of the application's own: before each handler runs a line is written to the history, after it
a row to the side table `drill_effect`, through the handler's `tx` and so in its transaction.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from settled import windows
from settled.app import App, stops_on_signals
from settled.delivery import upkeep
from settled.delivery import worker as delivery_worker
from settled.delivery.binding import Binding
from settled.drills import apps, history, receiver
from settled.drills.history import Event, Writer
from settled.drills.order import Death, Order
from settled.errors import Reject, SettledError, Unavailable
from settled.events import Event as Signal
from settled.events import PartitionChanged, Settled
from settled.operations.progress import is_drained
from settled.outbox.policy import RelayPolicy
from settled.record import Message, Record
from settled.signals import on_signals
from settled.store import Store, Tx

REJECT = "settled-drill-reject"  # a header: the drill rejects this record, until its value is a file that exists
HOUSEKEEPING_S = 0.1  # redrives and the engine's copy of the frontier are seen to ten times as often as usual
CHUNK = 5  # messages sent before their receipts are waited for
STREAM_S = 0.01  # a stream sends what is due so often

RELAY = RelayPolicy(lease_s=0.3, poll_s=0.05, batch=5, rows=10)

SIDE_TABLE = {
    "sqlite": (
        "CREATE TABLE IF NOT EXISTS drill_effect (n INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT, record_key TEXT,"
        " place INTEGER, place_offset INTEGER, epoch INTEGER, digest INTEGER, pid INTEGER)",
        "INSERT INTO drill_effect (event_id, record_key, place, place_offset, epoch, digest, pid)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
    ),
    "postgresql": (
        "CREATE TABLE IF NOT EXISTS drill_effect (n BIGSERIAL PRIMARY KEY, event_id TEXT, record_key TEXT,"
        " place BIGINT, place_offset BIGINT, epoch BIGINT, digest BIGINT, pid BIGINT)",
        "INSERT INTO drill_effect (event_id, record_key, place, place_offset, epoch, digest, pid)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s)",
    ),
}


class Deathly:
    """The hook: counts how often the window is reached and dies there by its own hand, so that the instant is exact."""

    def __init__(self, death: Death, writer: Writer) -> None:
        self._death, self._writer = death, writer
        self._reached = 0

    def __call__(self, window: str) -> None:
        if window != self._death.window:
            return
        self._reached += 1
        if self._reached == self._death.nth:
            self._writer.write(Event(what="death", window=window, note=self._death.action))
            os.kill(os.getpid(), signal.SIGSTOP if self._death.action == "stop" else signal.SIGKILL)


class WatchedBinding(Binding):
    """Calls the user's function as usual, and says so."""

    def __init__(
        self, function: Callable[..., Any], *, batch: bool, watch: Watch, pause_s: float, traced: bool
    ) -> None:
        super().__init__(function, batch=batch)
        self._watch, self._pause_s, self._traced = watch, pause_s, traced

    def call(self, tx: Tx, records: Sequence[Record]) -> None:
        if self.batch:
            self._call(tx, records)
        else:
            for record in records:
                self._call(tx, (record,))

    def _one(self) -> Callable[[Tx, Record], object]:
        return lambda tx, record: self._call(tx, (record,))

    def _call(self, tx: Tx, records: Sequence[Record]) -> None:
        watch = self._watch
        for record in records:
            watch.writer.write(history.of_record("deliver", record, epoch=watch.epoch(record)))
            rejected = record.header(REJECT)
            if rejected is not None and not os.path.exists(rejected):
                raise Reject("the drill rejects this record")
        if self._pause_s:
            time.sleep(self._pause_s)
        if self._traced:
            sys.settrace(self._trace)
        try:
            super().call(tx, records)
        finally:
            sys.settrace(None)
        rows = [
            (
                record.id,
                history.shown_key(record.key),
                record.partition,
                record.offset,
                watch.epoch(record),
                history.digest_of(record),
                os.getpid(),
            )
            for record in records
        ]
        for row in rows:
            tx.execute(watch.insert, row)
        if self._traced:
            windows.reach("handler")

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Between any two lines of the user's function a process may die."""
        if frame.f_code.co_filename != self.function.__code__.co_filename:
            return None
        if event == "line":
            windows.reach("handler")
        return self._trace


class Watch:
    """What one working process writes down."""

    def __init__(self, app: App, writer: Writer, store: Store) -> None:
        self.writer = writer
        self.insert = SIDE_TABLE[store.name][1]
        self._epochs: dict[tuple[str, int], int] = {}
        app.events.listen(self._hear)

    def epoch(self, record: Record) -> int:
        return self._epochs.get((record.topic, record.partition), -1)

    def _hear(self, signal: Signal) -> None:
        if isinstance(signal, PartitionChanged):
            if signal.change == "assigned":
                self._epochs[signal.topic, signal.partition] = signal.epoch
            self.writer.write(
                Event(what="owner", partition=signal.partition, epoch=signal.epoch, outcome=signal.change)
            )
        elif isinstance(signal, Settled):
            counts = {outcome.name.lower(): count for outcome, count in signal.counts.items()}
            self.writer.write(Event(what="settled", counts=counts))


def opened(order: Order) -> App:
    """In a process of its own: the application with the drill's addresses and the side table."""
    return with_side_table(apps.moved(order.app, order.engine, order.store, order.changes))


def with_side_table(app: App) -> App:
    create = SIDE_TABLE["sqlite" if app.store_url.startswith("sqlite:") else "postgresql"][0]
    app.setup(lambda tx: tx.execute(create))
    return app


def work(order: Order) -> None:
    """Run the application until SIGTERM, until all is settled (`drained`), or until the window is reached."""
    delivery_worker.HOUSEKEEPING_S = upkeep.PRUNE_S = HOUSEKEEPING_S
    if order.clock_s:
        _jump(order.clock_s)
    writer = Writer(Path(order.folder), "work")
    receiver.opens(Path(order.folder))
    if order.death is not None:
        windows.install(Deathly(order.death, writer))
    traced = order.death is not None and order.death.window == "handler"
    app = opened(order)
    with app:
        watch = Watch(app, writer, app.store)
        worker = app.worker(
            bind=lambda function, batch: WatchedBinding(
                function, batch=batch, watch=watch, pause_s=order.pause_s, traced=traced
            )
        )
        with stops_on_signals(worker):
            worker.run(drained=is_drained(app.engine, app.store, app.contract) if order.drained else None)


def _jump(seconds: float) -> None:
    """Put this process's own wall clock forward or back."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


def publish(order: Order) -> None:
    """Send the messages of the file, in order, and write down what became of each."""
    writer = Writer(Path(order.folder), "publish")
    if order.death is not None:
        windows.install(Deathly(order.death, writer))
    lines = Path(order.messages).read_bytes().splitlines()
    messages = [msgspec.json.decode(line, type=Message) for line in lines]
    app = opened(order)
    with app:
        producer = app.producer()
        try:
            if order.rate:
                _stream(messages, order.rate, producer, writer)
            else:
                for start in range(0, len(messages), CHUNK):
                    _send(messages[start : start + CHUNK], producer, writer)
        finally:
            producer.close()


def _send(messages: Sequence[Message], producer: Any, writer: Writer) -> None:
    pending = [_begun(message, producer, writer) for message in messages]
    with contextlib.suppress(SettledError):  # each message says for itself what became of it
        producer.flush()
    for message, each in zip(messages, pending, strict=True):
        _ended(message, each, writer)


def _stream(messages: Sequence[Message], rate: float, producer: Any, writer: Writer) -> None:
    """So many messages a second, whatever becomes of those before; receipts are written down as they come."""
    began = time.monotonic()
    under_way: deque[tuple[Message, Any]] = deque()
    sent = 0
    while sent < len(messages):
        due = min(len(messages), int((time.monotonic() - began) * rate))
        for message in messages[sent:due]:
            under_way.append((message, _begun(message, producer, writer)))
        sent = max(sent, due)
        while under_way and under_way[0][1].done():
            _ended(*under_way.popleft(), writer)
        time.sleep(STREAM_S)
    with contextlib.suppress(SettledError):
        producer.flush()
    for message, each in under_way:
        _ended(message, each, writer)


def _begun(message: Message, producer: Any, writer: Writer) -> Any:
    event = _publish_event("invoke", message)
    event.digest = history.digest_of(message)
    writer.write(event)
    return producer.send(message)


def _ended(message: Message, pending: Any, writer: Writer) -> None:
    """Write down what became of it. Raises what it met."""
    try:
        receipt = pending.result()
    except Unavailable:
        writer.write(_publish_event("info", message))
        raise
    except SettledError:
        writer.write(_publish_event("fail", message))
        raise
    done = _publish_event("ok", message)
    done.partition, done.offset = receipt.partition, receipt.offset
    done.digest = history.digest_of(message)
    writer.write(done)


def _publish_event(step: str, message: Message) -> Event:
    return Event(what="publish", step=step, id=message.id, key=history.shown_key(message.key))


def relay(order: Order) -> None:
    """Publish what is in the outbox, until the window is reached or SIGTERM; with `drained`, until nothing is left."""
    writer = Writer(Path(order.folder), "relay")
    if order.death is not None:
        windows.install(Deathly(order.death, writer))
    app = opened(order)
    with app:
        relay = app.relay(RELAY)
        with on_signals(relay.stop):
            relay.run(drain=order.drained)


def retain(order: Order) -> None:
    """Apply retention again and again, until the window is reached or SIGTERM."""
    writer = Writer(Path(order.folder), "retain")
    if order.death is not None:
        windows.install(Deathly(order.death, writer))
    app = opened(order)
    with app:
        ended: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
        while not ended:
            app.engine.maintain()
            time.sleep(0.01)
