"""What the engine suites share: short ways to publish, a member driven by the test, and one in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from settled.engine import (
    Assigned,
    Consumer,
    ConsumerGroup,
    Durability,
    Engine,
    Fetched,
    Lost,
    Partition,
    ProducerSpec,
    Receipt,
    Revoking,
    Stopped,
    TopicInfo,
    TopicSpec,
)
from settled.errors import Fenced, Unavailable
from settled.record import Message, Record

TOPIC, GROUP = "orders", "inventory"
DEADLINE_S = 30.0
EngineFactory = Callable[[], Engine]


class Names:
    """The topic and the group that a test works with. The engine suites give each test its own, so that a cluster may
    hold what other tests left."""

    def __init__(self) -> None:
        self.plain()

    def plain(self) -> None:
        self.topic, self.group = TOPIC, GROUP
        self.durability: Durability = "local"  # of what is published without another word on it
        self.tells_offsets = True  # receipts do

    def fresh(self) -> None:
        unique = uuid.uuid4().hex[:10]
        self.topic, self.group = f"{TOPIC}-{unique}", f"{GROUP}-{unique}"

    def offset(self, expected: int) -> int:
        """What a receipt says of a record at this offset."""
        return expected if self.tells_offsets else -1


names = Names()


def message(number: int, **fields: Any) -> Message:
    """A message whose id, key and value come from its number."""
    fields = {"topic": names.topic, "id": f"e{number}", "key": b"k%d" % number, "value": b"v%d" % number, **fields}
    return Message(**fields)


def make_topic(engine: Engine, partitions: int = 1, **fields: Any) -> None:
    engine.ensure_topic(TopicSpec(**{"name": names.topic, "partitions": partitions, **fields}))


def topic_of(engine: Engine) -> TopicInfo:
    """The test's topic as the engine describes it."""
    return engine.topics([names.topic])[0]


def producing(**fields: Any) -> ProducerSpec:
    """How the test's producer works; durable as the suite's engine can."""
    return ProducerSpec(**{"durability": names.durability, **fields})


def places(told: Iterable[Receipt | Record]) -> list[tuple[int, int, str]]:
    """Partition, offset and id of each, in order; offsets 0 where receipts do not tell them."""
    return sorted((one.partition, one.offset if names.tells_offsets else 0, one.id) for one in told)


def publish(engine: Engine, messages: Iterable[Message], **spec: Any) -> list[Receipt]:
    """Publish and wait until all are accepted."""
    producer = engine.producer(producing(**spec))
    pending = [producer.send(one) for one in messages]
    producer.close()
    return [one.result(timeout=DEADLINE_S) for one in pending]


def eventually(condition: Callable[[], bool], what: str, *, seconds: float = DEADLINE_S) -> None:
    """Ask until it is so; `what` says what was awaited."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        pause.wait(0.005)


class Member:
    """A member of a group in the test's own thread; it starts what it is given and gives back what is revoked."""

    def __init__(
        self, engine: Engine, *, lease_s: float = 10.0, group: str = "", start: int = 0, **fields: Any
    ) -> None:
        self.consumer: Consumer = engine.consumer(
            ConsumerGroup(**{"group": group or names.group, "topics": (names.topic,), "lease_s": lease_s, **fields})
        )
        self.owned: dict[Partition, Assigned] = {}
        self.records: list[Record] = []
        self.fetched: list[Fetched] = []
        self.stopped: list[Stopped] = []
        self.lost: list[Partition] = []
        self.asked: list[Partition] = []
        self.give_back = True
        self._start = start

    def poll(self, timeout: float = 0.05, *, records: int = 1000, bytes: int = 10_000_000) -> None:
        for news in self.consumer.poll(timeout, records=records, bytes=bytes):
            self._take(news)

    def until(self, condition: Callable[[], bool], what: str, **bounds: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
            self.poll(**bounds)

    def owns(self, count: int) -> None:
        self.until(lambda: len(self.owned) == count, f"{self.consumer.member} owns {count}")

    def receives(self, count: int, **bounds: int) -> list[Record]:
        self.until(lambda: len(self.records) >= count, f"{count} records", **bounds)
        return self.records

    def _take(self, news: Any) -> None:
        match news:
            case Assigned():
                self.owned[news.topic, news.partition] = news
                if self._start >= 0:
                    self._begin(news.topic, news.partition)
            case Revoking():
                self.asked.append((news.topic, news.partition))
                if self.give_back:
                    self.owned.pop((news.topic, news.partition), None)
                    self.consumer.release(news.topic, news.partition)
            case Lost():
                self.owned.pop((news.topic, news.partition), None)
                self.lost.append((news.topic, news.partition))
            case Fetched():
                self.fetched.append(news)
                self.records += news.records
            case Stopped():
                self.stopped.append(news)

    def _begin(self, topic: str, partition: int) -> None:
        """Start it, as a worker does: one that went to another member meanwhile, or was not noted, is given back."""
        try:
            self.consumer.start(topic, partition, self._start)
        except (Fenced, Unavailable):
            self.owned.pop((topic, partition), None)
            self.consumer.release(topic, partition, clean=False)


def share_out(members: Sequence[Member], condition: Callable[[], bool], what: str, **bounds: int) -> None:
    """Poll the members in turn; at no time may two of them own the same partition."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        for member in members:
            member.poll(0.01, **bounds)
            owned = [partition for one in members for partition in one.owned]
            assert len(owned) == len(set(owned)), f"two owners: {sorted(owned)}"


_MEMBER = """
import importlib, json, sys
from settled.engine import Assigned, ConsumerGroup, Fetched, Lost, Revoking
from settled.errors import Fenced, Unavailable
module, name, url, topic, group, member, lease = sys.argv[1:]
engine = getattr(importlib.import_module(module), name)(url)
consumer = engine.consumer(ConsumerGroup(group=group, topics=(topic,), lease_s=float(lease), member=member or None))
def say(**fields):
    print(json.dumps(fields), flush=True)
say(kind="joined")
while True:
    for news in consumer.poll(1.0, records=100, bytes=1_000_000):
        kind = type(news).__name__
        if isinstance(news, Assigned):
            try:
                consumer.start(news.topic, news.partition, 0)
            except (Fenced, Unavailable):
                consumer.release(news.topic, news.partition, clean=False)
                continue
            say(kind=kind, partition=news.partition, epoch=news.epoch, clean=news.clean)
        elif isinstance(news, Fetched):
            say(kind=kind, partition=news.partition, ids=[record.id for record in news.records])
        else:
            if isinstance(news, Revoking):
                consumer.release(news.topic, news.partition)
            say(kind=kind, partition=news.partition)
"""


class MemberProcess:
    """A member in a process of its own, to be killed and stopped. Use it in a `with`."""

    def __init__(self, engine: Engine, *, lease_s: float, name: str = "", group: str = "") -> None:
        place = type(engine).__module__, type(engine).__name__, engine.url
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MEMBER, *place, names.topic, group or names.group, name, str(lease_s)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait(timeout=DEADLINE_S)
        self._reader.join(timeout=DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it; a stop is waited for, since it takes its time to reach all threads."""
        if self._process.poll() is None:
            self._process.send_signal(number)
            if number == signal.SIGSTOP:
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def says(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until it has said so much of this kind; returns that."""
        eventually(lambda: len(self.of(kind)) >= count, f"{count} x {kind} from {self._process.args!r}")
        return self.of(kind)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in list(self.said) if one["kind"] == kind]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(json.loads(line))
