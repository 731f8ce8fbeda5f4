"""Who owns which partition: rows in the log file, changed only in transactions, judged by the kernel's clock.

There is no leader. Each member, when it joins and at each heartbeat, does one `round`: renews its lease, removes
members whose lease ran out (their partitions become free, unclean), takes free partitions while it has less than its
share, and marks what it has too much of as revoking. Nobody ever takes a partition from a living owner: the owner
gives it back. Each taking raises the partition's epoch.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from settled import clock
from settled.engine import Assigned, ConsumerGroup, Lost, Partition, Revoking
from settled.engines.shares import shares
from settled.engines.sqlite import pool, topics
from settled.engines.sqlite.database import Connection, Database
from settled.engines.sqlite.topics import Topic
from settled.errors import ContractError, Fenced

NOTE_US = 30_000_000  # how often a quiet group's sign of life is written down
AT_ONCE = 4  # partitions taken, or being given back, at a time


class Round(msgspec.Struct, frozen=True):
    """What a round brought. `tell`: other members have something to do; `again`: so has this one, soon.

    `until_us`: the lease's new end, 0 if it is known already. It counts once the news is heard: before, somebody whose
    lease ran out would fetch from what is another's."""

    news: list[Assigned | Revoking | Lost]
    tell: bool
    again: bool
    until_us: int = 0


class Membership:
    """One member. The heartbeat thread and the consumer's owner call it; a lock lets one at a time in."""

    def __init__(self, database: Database, spec: ConsumerGroup, limit: int) -> None:
        self.spec = spec
        self.name = spec.member or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._database, self._limit = database, limit
        self._lock = threading.Lock()
        self._boot = clock.boot_id()
        self._incarnation = ""
        self._held: dict[Partition, bool] = {}  # what news spoke of as this member's; whether it was clean when taken
        self._revoking: set[Partition] = set()
        self._left = False
        self._seen: list[Any] = []  # the group's state after the last full round; empty: do another
        self._noted_us = 0
        self.topics: dict[str, Topic] = {}
        self.lease_until_us = 0

    def join(self) -> Round:
        """Raises ContractError for an unknown topic."""
        now = clock.boot_us()
        with self._changing() as connection:
            self._read_topics(connection)
            rows = connection.execute(
                "INSERT INTO log_group (name, active_us) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET "
                "active_us = ?2 RETURNING id",
                (self.spec.group, clock.wall_us()),
            ).fetchall()
            self._group: int = rows[0][0]
            self._require_queues(connection)
            self._enter(connection)
            result = self._turn(connection, [])
        return msgspec.structs.replace(result, tell=True, until_us=now + self._lease_us)

    def _require_queues(self, connection: Connection) -> None:
        """A queue has one group at a time: its slots are that group's. What others held whose leases ran out they hold
        no more."""
        for topic in self.topics.values():
            if not topic.queue:
                continue
            rows = connection.execute(
                "SELECT g.name FROM log_subscription s JOIN log_group g ON g.id = s.grp JOIN log_member m ON m.grp ="
                " g.id WHERE s.topic = ? AND g.id <> ? AND m.boot = ? AND m.expires_us > ? LIMIT 1",
                (topic.id, self._group, self._boot, clock.boot_us()),
            ).fetchall()
            if rows:
                raise ContractError(
                    f"queue {topic.name!r} is group {rows[0][0]!r}'s, whose members are at work",
                    field="group",
                    value=self.spec.group,
                    hint="a record of a queue has one owner: join that group, or use a queue or a log for each group",
                )
            connection.execute(
                "UPDATE log_owner SET owner = NULL, clean = 0, revoking = 0 WHERE topic = ? AND grp <> ? AND owner"
                " IS NOT NULL",
                (topic.id, self._group),
            )

    def owns(self, connection: Connection, topic: int, number: int) -> bool:
        """In the caller's transaction: whether the partition is this member's."""
        return bool(
            connection.execute(
                "SELECT 1 FROM log_owner WHERE grp = ? AND topic = ? AND number = ? AND owner = ?",
                (self._group, topic, number, self._incarnation),
            ).fetchall()
        )

    def round(self) -> Round:
        """Renew the lease and do what there is to do. Found expired, the member has lost everything and joins anew.

        Raises HistoryLost when the file was replaced under this process."""
        self._database.check_same_file()
        with self._lock:
            if self._left or self._renewed_quietly():
                return Round([], False, False)
        return self._full_round()

    def _renewed_quietly(self) -> bool:
        """Renew by one statement where nobody came, went, expired or moved since the last full round: the log's write
        lock is then held for microseconds, also when the process has little CPU, or is stopped, at that moment."""
        now = clock.boot_us()
        with self._database.reading() as connection:
            if self._state(connection) != self._seen or self._dead(connection, now):
                return False
        with self._database.raw(durable=False) as connection:
            connection.execute(
                "UPDATE log_member SET expires_us = ? WHERE incarnation = ? AND expires_us > ?",
                (now + self._lease_us, self._incarnation, now),
            )
            renewed = bool(connection.changes())
            if renewed and now - self._noted_us > NOTE_US:
                connection.execute("UPDATE log_group SET active_us = ? WHERE id = ?", (clock.wall_us(), self._group))
                self._noted_us = now
        if renewed:
            self.lease_until_us = now + self._lease_us
        return renewed

    def _state(self, connection: Connection) -> list[Any]:
        """All that a full round would look at."""
        return [
            connection.execute(sql, (self._group,)).fetchall()
            for sql in (
                "SELECT incarnation, topics FROM log_member WHERE grp = ? ORDER BY joined",
                "SELECT topic, number, owner, revoking FROM log_owner WHERE grp = ?",
                "SELECT t.id, t.partitions FROM log_subscription s JOIN log_topic t ON t.id = s.topic WHERE s.grp = ?",
            )
        ]

    def _full_round(self) -> Round:
        with self._changing() as connection:
            self._read_topics(connection)
            news: list[Assigned | Revoking | Lost] = []
            now = clock.boot_us()
            connection.execute(
                "UPDATE log_member SET expires_us = ? WHERE incarnation = ? AND expires_us > ?",
                (now + self._lease_us, self._incarnation, now),
            )
            expired = not connection.changes()
            if expired:
                news += [Lost(topic=topic, partition=number) for topic, number in self._held]
                self._held.clear()
                self._revoking.clear()
                _expel(connection, self._incarnation)
                self._require_queues(connection)  # another group may have come meanwhile
                self._enter(connection)
            result = self._turn(connection, news)
            state = [] if result.again else self._state(connection)
        self._seen = state
        return msgspec.structs.replace(result, tell=result.tell or expired, until_us=now + self._lease_us)

    def release(self, partition: Partition, *, clean: bool) -> bool:
        """Give it back; false if it was no longer this member's."""
        with self._changing() as connection:
            self._held.pop(partition, None)
            self._revoking.discard(partition)
            return self._free(connection, partition, clean)

    def raise_epoch(self, partition: Partition, at_least: int) -> int:
        with self._changing() as connection:
            rows = connection.execute(
                "UPDATE log_owner SET epoch = max(epoch + 1, ?) WHERE grp = ? AND topic = ? AND number = ? AND "
                "owner = ? RETURNING epoch",
                (at_least, self._group, self.topics[partition[0]].id, partition[1], self._incarnation),
            ).fetchall()
        if not rows:
            raise Fenced(f"{partition[0]}/{partition[1]} is no longer this member's", hint="stop working on it")
        return int(rows[0][0])

    def commit(self, frontiers: dict[Partition, int]) -> None:
        """Only for partitions that are this member's; others are left alone."""
        with self._changing() as connection:
            for (topic, number), frontier in frontiers.items():
                connection.execute(
                    "UPDATE log_owner SET committed = ? WHERE grp = ? AND topic = ? AND number = ? AND owner = ?",
                    (frontier, self._group, self.topics[topic].id, number, self._incarnation),
                )

    def leave(self, untouched: set[Partition]) -> None:
        """Give all back, as unclean except what its owner never heard of (`untouched`), and leave."""
        with self._changing() as connection:
            self._left = True
            for partition, clean in self._held.items():
                self._free(connection, partition, clean and partition in untouched)
            self._held.clear()
            _expel(connection, self._incarnation)

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """One transaction; what is remembered here changes with it or not at all. A commit whose answer was lost
        leaves rows that the next round finds and takes up (`strays`)."""
        with self._lock:
            before = self._incarnation, dict(self._held), set(self._revoking), self._left
            try:
                with self._database.writing(durable=False) as connection:
                    yield connection
            except BaseException:
                self._incarnation, self._held, self._revoking, self._left = before
                raise

    @property
    def _lease_us(self) -> int:
        return round(self.spec.lease_s * 1_000_000)

    def _read_topics(self, connection: Connection) -> None:
        for name in self.spec.topics:
            found = topics.find(connection, name, self._limit)
            if found is None:
                raise ContractError(f"there is no topic {name!r}", field="topics", value=name, hint="create it first")
            self.topics[name] = found

    def _enter(self, connection: Connection) -> None:
        """As a new member; the group subscribes, unless it has: it may have been forgotten meanwhile."""
        for topic in self.topics.values():
            connection.execute(
                "INSERT INTO log_subscription VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (self._group, topic.id, len(topic.parts)),
            )
        self._incarnation = str(uuid.uuid4())
        expires = clock.boot_us() + self._lease_us
        connection.execute(
            "INSERT INTO log_member (incarnation, grp, name, host, pid, boot, expires_us, topics) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._incarnation,
                self._group,
                self.name,
                socket.gethostname(),
                os.getpid(),
                self._boot,
                expires,
                json.dumps([topic.id for topic in self.topics.values()]),
            ),
        )

    def _turn(self, connection: Connection, news: list[Assigned | Revoking | Lost]) -> Round:
        freed = self._expire(connection)
        connection.execute("UPDATE log_group SET active_us = ? WHERE id = ?", (clock.wall_us(), self._group))
        due = self._shares(connection)
        again = False
        for name, topic in self.topics.items():
            rows = connection.execute(
                "SELECT number, owner, clean FROM log_owner WHERE grp = ? AND topic = ?", (self._group, topic.id)
            ).fetchall()
            owners = {number: (owner, bool(clean)) for number, owner, clean in rows}
            mine = sorted(number for number, (owner, _) in owners.items() if owner == self._incarnation)
            strays = [number for number in mine if (name, number) not in self._held]
            kept = [number for number in mine if (name, number) not in self._revoking and number not in strays]
            for number in strays:
                news.append(self._claim(connection, topic, number, False))
            share = due[self._incarnation, topic.id]
            free = [number for number in range(len(topic.parts)) if owners.get(number, (None, True))[0] is None]
            wanted = free[: max(0, share - len(kept) - len(strays))]
            for number in wanted[:AT_ONCE]:
                news.append(self._claim(connection, topic, number, owners.get(number, (None, True))[1]))
            again = again or len(wanted) > AT_ONCE
            news += self._give_up(connection, topic, kept[share:])
        return Round(news, tell=freed, again=again)

    def _expire(self, connection: Connection) -> bool:
        """Remove the other members of this group whose lease ran out, or that lived in another boot. This one has just
        renewed its lease: stalled since, it finds that out in its next round."""
        dead = [each for each in self._dead(connection, clock.boot_us()) if each != self._incarnation]
        for incarnation in dead:
            _expel(connection, incarnation)
        return bool(dead)

    def _dead(self, connection: Connection, now: int) -> list[str]:
        rows = connection.execute(
            "SELECT incarnation FROM log_member WHERE grp = ? AND (expires_us <= ? OR boot <> ?)",
            (self._group, now, self._boot),
        ).fetchall()
        return [incarnation for (incarnation,) in rows]

    def _shares(self, connection: Connection) -> dict[tuple[str, int], int]:
        rows = connection.execute(
            "SELECT incarnation, topics FROM log_member WHERE grp = ? ORDER BY joined", (self._group,)
        ).fetchall()
        members = [(incarnation, frozenset(json.loads(wanted))) for incarnation, wanted in rows]
        counts = dict(
            connection.execute(
                "SELECT id, partitions FROM log_topic WHERE id IN (SELECT topic FROM log_subscription WHERE grp = ?)",
                (self._group,),
            ).fetchall()
        )
        return shares(counts, members)

    def _claim(self, connection: Connection, topic: Topic, number: int, clean: bool) -> Assigned:
        epoch = connection.execute(
            "INSERT INTO log_owner VALUES (?1, ?2, ?3, ?4, 1, 0, 0, NULL) ON CONFLICT DO UPDATE SET owner = ?4, "
            "epoch = epoch + 1, clean = 0, revoking = 0 RETURNING epoch",
            (self._group, topic.id, number, self._incarnation),
        ).fetchall()[0][0]
        begin, end, original = connection.execute(
            "SELECT begin, next, (SELECT original FROM log_subscription WHERE grp = ? AND topic = ?) "
            "FROM log_partition WHERE id = ?",
            (self._group, topic.id, topic.parts[number]),
        ).fetchall()[0]
        if topic.queue:
            begin, end = pool.bounds(connection, topic.id, number)
        self._held[topic.name, number] = clean
        return Assigned(
            topic=topic.name,
            partition=number,
            epoch=epoch,
            clean=clean,
            identity=topic.identity,
            begin=begin,
            end=end,
            original=number < original,
        )

    def _give_up(self, connection: Connection, topic: Topic, excess: list[int]) -> list[Revoking]:
        room = max(0, AT_ONCE - len(self._revoking))
        going = excess[len(excess) - room :] if room < len(excess) else excess
        for number in going:
            connection.execute(
                "UPDATE log_owner SET revoking = 1 WHERE grp = ? AND topic = ? AND number = ?",
                (self._group, topic.id, number),
            )
            self._revoking.add((topic.name, number))
        return [Revoking(topic=topic.name, partition=number) for number in going]

    def _free(self, connection: Connection, partition: Partition, clean: bool) -> bool:
        connection.execute(
            "UPDATE log_owner SET owner = NULL, clean = ?, revoking = 0 WHERE grp = ? AND topic = ? AND number = ? "
            "AND owner = ?",
            (clean, self._group, self.topics[partition[0]].id, partition[1], self._incarnation),
        )
        return bool(connection.changes())


def _expel(connection: Connection, incarnation: str) -> None:
    connection.execute("UPDATE log_owner SET owner = NULL, clean = 0, revoking = 0 WHERE owner = ?", (incarnation,))
    connection.execute("DELETE FROM log_member WHERE incarnation = ?", (incarnation,))
