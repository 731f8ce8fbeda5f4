"""The embedded engine: a log in one SQLite file that several processes share. The URL names the file,
`sqlite:///relative.db` or `sqlite:////absolute.db`; beside it lie its WAL, its tip and the folder of wake-up FIFOs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from settled import clock, sqlite
from settled.engine import (
    Capabilities,
    ConsumerGroup,
    Durability,
    Examined,
    GroupInfo,
    MemberInfo,
    Partition,
    ProducerSpec,
    TopicInfo,
    TopicSpec,
)
from settled.engines.sqlite import compaction, forgetting, reading, retention, slots, tip, topics
from settled.engines.sqlite.append import Appender
from settled.engines.sqlite.consumer import SqliteConsumer
from settled.engines.sqlite.database import Connection
from settled.engines.sqlite.history import open_log
from settled.engines.sqlite.producer import SqliteProducer
from settled.engines.sqlite.tail import SqliteTail
from settled.engines.sqlite.wake import Waker, wake_folder
from settled.errors import ContractError, SettledError, Unsupported
from settled.record import Record, checked_name, checked_text

log = logging.getLogger("settled.engines.sqlite")

MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class SqliteEngine:
    """Any thread may call it. It belongs to the process that made it: after a fork, make another."""

    name = "sqlite"
    capabilities = Capabilities(
        durability=frozenset({"memory", "local"}),
        forms=frozenset({"queue", "log", "pubsub", "notification"}),
        scheduling=True,
        compaction=True,
        tails=True,
        producer_resume=True,
        witness=True,
        maintains=True,
        max_message_bytes=MAX_MESSAGE_BYTES,
    )

    def __init__(self, url: str, *, busy_s: float = sqlite.BUSY_S, look_s: float = 1.0) -> None:
        """`busy_s`: how long to wait for another process's lock before Unavailable. `look_s`: how often a waiting
        consumer looks at the log without having been woken. Raises HistoryLost, with nothing written."""
        self.url = url
        opened = open_log(url, busy_s=busy_s)
        self._database, self._tip, self._identity = opened.database, opened.tip, opened.identity
        self._look_s = look_s
        self._waker = Waker(wake_folder(self._database.path))
        self._lock = threading.Lock()
        self._consumers: set[SqliteConsumer] = set()
        self._producers: set[SqliteProducer] = set()
        self._tails: set[SqliteTail] = set()
        self._closed = False

    def ensure_topic(self, spec: TopicSpec) -> TopicInfo:
        return topics.ensure(self._database, spec, MAX_MESSAGE_BYTES)

    def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Add partitions to a topic; durable when it returns. Groups take them up from offset 0. Keys may map to
        other partitions from now on, so the order of a key's records across the change is not kept."""
        topics.grow(self._database, name, partitions)
        self._waker.wake("members")
        return self.topics([name])[0]

    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        return topics.describe(self._database, names)

    def groups(self, group: str | None = None) -> list[GroupInfo]:
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT id, name FROM log_group g WHERE (?1 IS NULL OR name = ?1) AND (EXISTS (SELECT 1 FROM "
                "log_subscription WHERE grp = g.id) OR EXISTS (SELECT 1 FROM log_member WHERE grp = g.id)) "
                "ORDER BY name",
                (group,),
            ).fetchall()
            return [_group_info(connection, *row) for row in rows]

    def offset_at(self, topic: str, partition: int, us: int) -> int:
        found = topics.require(self._database, topic, MAX_MESSAGE_BYTES)
        reading.require_partition(found, partition)
        if found.queue:
            raise Unsupported(
                f"{topic!r} is a queue: its offsets number claims, not times",
                field="topic",
                value=topic,
                hint="a queue keeps no history to go back to; use a log where records are read again",
            )
        return reading.offset_at(self._database, found, partition, us)

    def read(self, topic: str, partition: int, offset: int, *, records: int = 100) -> list[Record]:
        found = topics.require(self._database, topic, MAX_MESSAGE_BYTES)
        reading.require_partition(found, partition)
        if found.queue:
            return slots.read(self._database, found, partition, offset, records)
        return reading.read(self._database, found, partition, offset, records)

    def held(self, topic: str, partition: int, first: int, following: int) -> int:
        """As `engine.Counting` says."""
        found = topics.require(self._database, topic, MAX_MESSAGE_BYTES)
        reading.require_partition(found, partition)
        return reading.held(self._database, found, partition, first, following)

    def producer(self, spec: ProducerSpec) -> SqliteProducer:
        if spec.durability not in self.capabilities.durability:
            raise Unsupported(
                f"the embedded engine cannot keep durability {spec.durability!r}: it has one copy of the log",
                field="durability",
                value=spec.durability,
                hint="ask for `local` (synced to this machine's disk), or move to an engine that replicates",
            )
        if spec.identity is not None:
            checked_text("identity", spec.identity)
        appender = Appender(self._database, self._tip, self._identity, durable=spec.durability == "local")
        producer = SqliteProducer(
            spec,
            self._database,
            appender,
            topic=lambda name: topics.require(self._database, name, MAX_MESSAGE_BYTES),
            accepted=lambda: self._waker.wake("records"),
            closed=self._forget,
        )
        with self._lock:
            self._producers.add(producer)
        return producer

    def consumer(self, group: ConsumerGroup) -> SqliteConsumer:
        checked_name("group", group.group)
        if not group.topics or group.lease_s <= 0:
            raise ContractError(
                "a group needs at least one topic and a lease above 0", field="group", value=group.group
            )
        consumer = SqliteConsumer(
            group, self._database, self._waker, limit=MAX_MESSAGE_BYTES, look_s=self._look_s, closed=self._forget
        )
        with self._lock:
            self._consumers.add(consumer)
        return consumer

    def tail(self, topic: str, *, after: str | None = None, behind: int = 100_000) -> SqliteTail:
        found = topics.require(self._database, topic, MAX_MESSAGE_BYTES)
        if found.queue:
            raise ContractError(
                f"topic {topic!r} is a queue: its records are their owner's alone",
                field="topic",
                value=topic,
                hint="read a log, or claim from the queue as a member of its group",
            )
        tail = SqliteTail(
            found,
            self._database,
            after=after,
            behind=behind,
            limit=MAX_MESSAGE_BYTES,
            look_s=self._look_s,
            closed=self._forget,
        )
        with self._lock:
            self._tails.add(tail)
        return tail

    def forget_group(self, group: str, topics: Collection[str] | None = None, *, force: bool = False) -> dict[str, int]:
        return forgetting.forget(self._database, group, topics)

    def examine(self, spec: TopicSpec | None = None, durability: Durability = "memory") -> list[Examined]:
        """Opening it has compared the log with its tip: here is how far that reaches."""
        mark = tip.read(self._database.path)
        told = f"history whole, {mark.commits:,} appends" if mark else "no tip beside it"
        history = Examined(name="log history", state="ok" if mark else "note", told=told)
        return [history, *(compaction.examine(self._database, spec.name) if spec is not None else ())]

    def maintain(self, *, force: bool = False) -> dict[str, int]:
        removed = retention.maintain(self._database, force=force)
        for topic, count in compaction.compact(self._database, force=force).items():
            removed[topic] = removed.get(topic, 0) + count
        return removed

    def close(self) -> None:
        """Closes producers (what is buffered is sent) and consumers too; what they raise is logged."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            members: list[SqliteProducer | SqliteConsumer | SqliteTail]
            members = [*self._producers, *self._consumers, *self._tails]
        for member in members:
            try:
                member.close()
            except SettledError as error:
                log.error("closing %s: %s", type(member).__name__, error)
        self._waker.close()
        self._database.close()
        self._tip.close()

    def _forget(self, member: SqliteConsumer | SqliteProducer | SqliteTail) -> None:
        with self._lock:
            self._consumers.discard(member)
            self._producers.discard(member)
            self._tails.discard(member)


def _group_info(connection: Connection, group: int, name: str) -> GroupInfo:
    owned: dict[str, list[Partition]] = {}
    committed: dict[Partition, int] = {}
    epochs: dict[Partition, int] = {}
    for topic, number, owner, epoch, frontier in connection.execute(
        "SELECT t.name, o.number, o.owner, o.epoch, o.committed FROM log_owner o JOIN log_topic t ON t.id = o.topic "
        "WHERE o.grp = ? ORDER BY t.name, o.number",
        (group,),
    ):
        epochs[topic, number] = epoch
        if owner is not None:
            owned.setdefault(owner, []).append((topic, number))
        if frontier is not None:
            committed[topic, number] = frontier
    now, boot = clock.boot_us(), clock.boot_id()
    members = [
        MemberInfo(
            member=member,
            host=host,
            pid=pid,
            partitions=owned.get(incarnation, []),
            lease_left_s=max(0.0, (expires - now) / 1e6) if lived == boot else 0.0,
        )
        for incarnation, member, host, pid, lived, expires in connection.execute(
            "SELECT incarnation, name, host, pid, boot, expires_us FROM log_member WHERE grp = ? ORDER BY joined",
            (group,),
        )
    ]
    return GroupInfo(group=name, members=members, committed=committed, epochs=epochs)
