"""A world: one log, one effect store, the application on them, and the history of all that happens there."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from settled import sqlite
from settled.contract import specs
from settled.drills import apps, ending, history, rabbitmq, roles
from settled.drills.checker import LOG, NONE, SENT
from settled.drills.crew import Crew, Process
from settled.drills.database import schema_of, without_own_options
from settled.drills.history import Event, Writer
from settled.drills.order import Death
from settled.drills.supply import Supply
from settled.errors import SettledError, Unavailable
from settled.operations.progress import is_drained
from settled.outbox.adding import add
from settled.outcome import Outcome
from settled.record import Message, Record
from settled.testing.kafka_cluster import Cluster
from settled.testing.rabbitmq_nodes import Nodes

SETTLE_S = 12.0
PUBLISH_S, PUBLISH_TRIES = 60.0, 4
QUICK: dict[str, Any] = {  # what a drill states differently from the user's contract
    "delivery": {"lease": "300ms", "grace": "2s", "group_size": {"records": 8}},
    "producer": {"batch": {"time": "1ms"}},
    "poison": {
        "backoff": {"first": "10ms", "most": "50ms"},
        "attempts": {"worker-lost": 1_000_000},  # a drill's kills are nobody's fault
        "eviction": {"burst": 1_000_000},
    },
}


class WorkerFailed(SettledError):
    """A worker ended by itself: the application does not run."""


class World:
    """Made and used by one thread; close it."""

    def __init__(
        self,
        crew: Crew,
        folder: Path,
        *,
        app: str = "",
        engine: str = "",
        store: str = "",
        changes: Mapping[str, Any] = QUICK,
        prefix: str = "d-",
        records: Path | None = None,
        settle_s: float = SETTLE_S,
        cluster: Cluster | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        """`settle_s`: how long beyond the lease the last records may take once nothing dies any more. `cluster`: the
        brokers behind a Kafka engine, `nodes`: those behind RabbitMQ, where the drill may harm them."""
        self.settle_s, self.cluster, self.nodes = settle_s, cluster, nodes
        self.publish_url = ""  # where producers find the log while it is not where the others find it
        self.crew, self.folder, self.prefix = crew, folder, prefix
        folder.mkdir(parents=True, exist_ok=True)
        self.engine_url = engine or f"sqlite:///{folder.resolve()}/log.db"
        self.store_url = store or f"sqlite:///{folder.resolve()}/effects.db"
        self._app_name, self._changes = app, dict(changes)
        self.app = roles.with_side_table(apps.looked_at(app, self.engine_url, self.store_url, self._changes))
        self.contract = self.app.contract
        self.topic = self.contract.transport.topic
        self.consumer = specs.consumer_spec(self.contract).consumer
        self.supply = Supply(self.topic, prefix, records)
        self.writer = Writer(folder, "drill")
        self.processes: list[Process] = []
        self.sent: dict[str, Message] = {}
        self.resent = 0  # messages that one producer gave up and another one sent
        self._checked: dict[int, int] = {}  # partition -> below which offset all was seen to have ended
        self._ended: set[str] = set()  # ids of what was sent and has an ending, as far as looked at
        self.readable = not rabbitmq.is_rabbitmq(self.engine_url) or self.contract.transport.form == "log"
        sent = SENT if self.contract.delivery.ordering == "key" else NONE
        self.order = LOG if self.readable else sent  # which order is promised to the records of a key
        try:
            self.engine, self.store = self.app.engine, self.app.store
            self._session = self.store.session(specs.consumer_spec(self.contract))
            if not self.readable and self.contract.transport.form == "pubsub":
                self.engine.consumer(specs.consumer_group(self.contract)).close()  # from now on it misses nothing
        except BaseException:
            self.close()
            raise

    @property
    def lease_s(self) -> float:
        return self.contract.delivery.lease

    @property
    def lives_s(self) -> float:
        """About how long a worker lives that is killed at any time."""
        return self.lease_s if self.readable else 0.7

    @property
    def takeover_s(self) -> float:
        """How long until others may work on what a member that is silent has in hand, at most."""
        return self.lease_s * 3 if self.readable else self.lease_s + rabbitmq.BEATS_S

    # Processes.

    def start(self, role: str = "work", **fields: Any) -> Process:
        usual: dict[str, Any] = {
            "app": self._app_name,
            "engine": self.engine_url,
            "store": self.store_url,
            "folder": str(self.folder),
            "changes": self._changes,
        }
        process = self.crew.start(role=role, **(usual | fields))
        self.processes.append(process)
        return process

    def publish(self, messages: Sequence[Message], deaths: Iterable[Death] = ()) -> int:
        """Publish through a producer process, which dies as told and is started again for what has no receipt, until
        all is accepted. Returns how often it died."""
        for message in messages:
            self.sent[message.id] = message
        plan, left, died, failed = iter(deaths), list(messages), 0, 0
        while left:
            file = self._file_of(left)
            process = self.start("publish", messages=file, death=next(plan, None), **self._published_to())
            if not self.crew.wait_ended(process, PUBLISH_S):
                self.crew.end(process)
            died += process.killed
            accepted = self._accepted(process.pid)
            left = [message for message in left if message.id not in accepted]
            self.resent += len(left)
            failed = 0 if accepted or process.killed else failed + 1
            if left and failed >= PUBLISH_TRIES:
                raise Unavailable(f"publishing ends with code {process.code}", hint=f"see {self.folder}/output.log")
        return died

    def _published_to(self) -> dict[str, str]:
        return {"engine": self.publish_url} if self.publish_url else {}

    def _file_of(self, messages: Sequence[Message]) -> str:
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".messages", delete=False) as file:
            file.write(b"\n".join(msgspec.json.encode(message) for message in messages))
        return file.name

    def stream(self, messages: Sequence[Message], rate: float) -> Process:
        """Begin to publish so many messages a second; `finish` waits for the end."""
        for message in messages:
            self.sent[message.id] = message
        return self.start("publish", messages=self._file_of(messages), rate=rate, **self._published_to())

    def finish(self, stream: Process) -> None:
        """Until the stream has sent all and holds a receipt for each; what has none makes the history's end unsound."""
        ended = self.crew.wait_ended(stream, PUBLISH_S)
        if not ended or stream.code != 0:
            self.crew.end(stream)
            self.tell_drained(False, f"a producer ended with code {stream.code} and without all its receipts")

    def accepted_by(self, stream: Process) -> int:
        """How many of its messages have a receipt by now."""
        return len(self._accepted(stream.pid))

    def put_in_outbox(self, messages: Sequence[Message]) -> None:
        """Put messages into the outbox, in one transaction of the effect database: from its commit on they count as
        published."""
        for message in messages:
            self.tell_outboxed("invoke", message)
        if self.store_url.startswith("sqlite:"):
            connection = sqlite.open_connection(sqlite.path_of(self.store_url)[0])
            connection.execute("BEGIN IMMEDIATE")
            for message in messages:
                add(connection, message)
            connection.execute("COMMIT")
            connection.close()
        else:
            import psycopg

            with psycopg.connect(without_own_options(self.store_url)) as postgres:
                for message in messages:
                    add(postgres, message, schema=schema_of(self.store_url))
        for message in messages:
            self.tell_outboxed("ok", message)

    def tell_outboxed(self, step: str, message: Message) -> None:
        """Write down that a message is about to be added to the outbox (invoke), or that it is committed (ok)."""
        self.sent[message.id] = message
        key, digest = history.shown_key(message.key), history.digest_of(message)
        self.writer.write(Event(what="publish", step=step, id=message.id, key=key, digest=digest))

    def empty_outbox(self) -> None:
        """A last relay publishes what is left, and nothing dies any more. It may take as long as the worker goes on: in
        SQLite both write to one file."""
        last = self.start("relay", drained=True)
        seen, since = self.frontiers(), time.monotonic()
        while not self.crew.wait_ended(last, 0.5):
            found, now = self.frontiers(), time.monotonic()
            if found != seen:
                seen, since = found, now
            elif now - since > self.lease_s + self.settle_s:
                self.tell_drained(False, "the outbox was not empty in time after the last fault")
                self.stop([last])
                return

    def _accepted(self, pid: int) -> set[str]:
        found: set[str] = set()
        for path in self.folder.glob(f"publish-{pid}-*.jsonl"):
            found |= {event.id for event in history.read_file(path) if event.what == "publish" and event.step == "ok"}
        return found

    def owns(self, process: Process) -> bool:
        """Whether a worker has been assigned a partition since it started."""
        paths = self.folder.glob(f"work-{process.pid}-*.jsonl")
        return any(event.what == "owner" for path in paths for event in history.read_file(path))

    def stop(self, processes: Sequence[Process], seconds: float = 10.0) -> None:
        """End them in good order; what does not end is killed and counts as a fault of the drill's history."""
        for process in processes:
            self.crew.terminate(process)
        for process in processes:
            if not self.crew.wait_ended(process, seconds):
                self.writer.write(Event(what="drained", step="fail", note=f"{process.pid} did not end on SIGTERM"))
                self.crew.end(process)

    def require_sound(self) -> None:
        """Raise if a worker ended by an error of its own: then the application does not run, and nothing was tried."""
        for process in self.processes:
            if process.order.role != "publish" and process.code > 0:
                raise WorkerFailed(f"a worker ended with code {process.code}", hint=f"see {self.folder / 'output.log'}")

    # Looking.

    def settled(self) -> bool:
        """Whether all that the topic holds is settled; where it cannot be read, whether all that was sent is."""
        if self.readable:
            return is_drained(self.engine, self.store, self.contract)()
        return self.ended() == len(self.sent)

    def ended(self) -> int:
        """How many of the messages that were sent have an ending."""
        left = [message for id, message in self.sent.items() if id not in self._ended]
        self._ended |= ending.ended(self, left).keys()
        return len(self._ended)

    def ready(self) -> int:
        """How many messages wait in a topic that cannot be read; 0 of others."""
        if self.readable:
            return 0
        return rabbitmq.held(self.engine_url, rabbitmq.queue_of(self.contract))[0]

    def settled_if_reachable(self) -> bool:
        """As `settled`; false while the store is away."""
        try:
            return self.settled()
        except Unavailable:
            return False

    def tell_drained(self, done: bool, note: str = "") -> None:
        """Write down whether all ended in time."""
        note = "" if done else note or "not all was settled in time after the last fault"
        self.writer.write(Event(what="drained", step="ok" if done else "fail", note=note))

    def frontiers(self) -> list[int]:
        """Where the consumer stands in each partition."""
        return [position.frontier for _, position in self.store.positions(self.consumer)]

    def snapshot(self) -> None:
        """Write down the frontiers, and whether all below them has ended."""
        topic, group = self.topic, self.contract.delivery.group
        for info in self.engine.groups(group):
            for (name, partition), offset in info.committed.items():
                if name == topic:
                    self.writer.write(Event(what="committed", partition=partition, offset=offset))
        for _, position in self.store.positions(self.consumer):
            if position.topic == topic:
                self.writer.write(
                    Event(
                        what="frontier",
                        partition=position.partition,
                        offset=position.frontier,
                        epoch=position.epoch,
                        missing=self._missing(position.partition, position.frontier),
                    )
                )

    def _missing(self, partition: int, frontier: int) -> list[int]:
        if self.contract.delivery.mode != "effectively-once" or not self.readable:
            return []
        begin = self._checked.get(partition, 0)
        below = [record for record in self.read(partition, begin) if record.offset < frontier]
        outcomes = self.outcomes(below)
        self._checked[partition] = max(begin, frontier)
        return [record.offset for record, outcome in zip(below, outcomes, strict=True) if outcome is None]

    def outcomes(self, records: Sequence[Record]) -> Sequence[Outcome | None]:
        """How each ended; asked a second time where the store was away since the last look."""
        if not records:
            return []
        try:
            return self._session.settled(records)
        except Unavailable:
            self._session.rollback()
            return self._session.settled(records)

    def read(self, partition: int, offset: int) -> Iterable[Record]:
        while records := self.engine.read(self.topic, partition, offset, records=1000):
            yield from records
            offset = records[-1].offset + 1

    def stored(self) -> list[str]:
        """The ids of the drill's records, as often as they stand in the log."""
        partitions = range(self.contract.transport.partitions)
        found = (record.id for partition in partitions for record in self.read(partition, 0))
        return [id for id in found if id.startswith(self.prefix)]

    def collect(self) -> list[Event]:
        """Write down the end: log, effects, endings and quarantine, of this drill's records only. Returns the whole
        history."""
        return ending.collect(self)

    def close(self) -> None:
        """End what still runs, and release log and store."""
        for process in self.processes:
            if process.alive:
                self.crew.end(process)
        with contextlib.suppress(AttributeError):
            self._session.close()
        self.writer.close()
        self.app.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
