"""What the queue suite works with: a member in the test's own thread, and one in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

from settled.engine import Engine
from settled.record import Record
from settled.testing.engine_tools import Member, MemberProcess, eventually, make_topic, names


def make_queue(engine: Engine, slots: int = 4, **fields: Any) -> None:
    make_topic(engine, slots, form="queue", **fields)


class QueueMember(Member):
    """Takes what it is given and settles nothing by itself. It competes unless it is told to keep the order."""

    def __init__(self, engine: Engine, *, ordered: bool = False, **fields: Any) -> None:
        super().__init__(engine, ordered=ordered, **fields)

    @property
    def ids(self) -> list[str]:
        return [record.id for record in self.records]

    def settle(self, records: list[Record] | None = None) -> None:
        """Tell the frontiers that follow when these records, the first ones of their slots, are settled; all of them
        unless it is said."""
        frontiers: dict[tuple[str, int], int] = {}
        for record in self.records if records is None else records:
            frontiers[record.place] = max(frontiers.get(record.place, 0), record.offset + 1)
        self.consumer.commit(frontiers)

    def leave(self, *, settled: bool = False) -> None:
        if settled:
            self.settle()
        self.consumer.close()


def ready(engine: Engine) -> int:
    """How many records of the test's queue nobody has claimed."""
    found = engine.topics([names.topic])[0].queue
    assert found is not None
    return found.ready


def settled_whole(engine: Engine, **fields: Any) -> bool:
    """Whether a new member finds nothing in the queue."""
    member = QueueMember(engine, **fields)
    member.until(lambda: bool(member.owned), "it owns a slot")
    for _ in range(5):
        member.poll(0.1)
    member.consumer.close()
    return not member.records


_MEMBER = """
import importlib, json, queue, sys, threading
from settled.engine import Assigned, ConsumerGroup, Fetched, Lost, Revoking
from settled.errors import Fenced, Unavailable
module, name, url, topic, group, lease = sys.argv[1:]
engine = getattr(importlib.import_module(module), name)(url)
consumer = engine.consumer(ConsumerGroup(group=group, topics=(topic,), lease_s=float(lease), ordered=False))
told = queue.Queue()
def listen():
    for line in sys.stdin:
        told.put(line.strip())
        consumer.wakeup()
threading.Thread(target=listen, daemon=True).start()
def say(**fields):
    print(json.dumps(fields), flush=True)
say(kind="joined")
frontiers = {}
while True:
    try:
        found = consumer.poll(1.0, records=100, bytes=1_000_000)
    except Unavailable:
        found = []
    while not told.empty():
        told.get()
        consumer.commit(frontiers)
        say(kind="settled")
    for news in found:
        kind = type(news).__name__
        if isinstance(news, Assigned):
            try:
                consumer.start(news.topic, news.partition, 0)
            except (Fenced, Unavailable):
                consumer.release(news.topic, news.partition, clean=False)
                continue
            say(kind=kind, partition=news.partition)
        elif isinstance(news, Fetched):
            for record in news.records:
                frontiers[record.place] = record.offset + 1
            say(kind=kind, partition=news.partition, ids=[record.id for record in news.records])
        else:
            if isinstance(news, Revoking):
                consumer.release(news.topic, news.partition)
            say(kind=kind, partition=news.partition)
"""


class QueueProcess(MemberProcess):
    """A competing member in a process of its own, that settles all it has when it is told to."""

    def __init__(self, engine: Engine, *, lease_s: float) -> None:
        place = type(engine).__module__, type(engine).__name__, engine.url
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MEMBER, *place, names.topic, names.group, str(lease_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, value, trace)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def claims(self, count: int) -> list[str]:
        """Wait until it has claimed so many records; their ids."""
        eventually(lambda: len(self._claimed()) >= count, f"{count} claims")
        return self._claimed()

    def settle(self) -> None:
        """Let it tell the frontiers of all it ever claimed."""
        assert self._process.stdin is not None
        before = len(self.of("settled"))
        self._process.stdin.write("settle\n")
        self._process.stdin.flush()
        eventually(lambda: len(self.of("settled")) > before, "it told its frontiers")

    def _claimed(self) -> list[str]:
        return [each for one in self.of("Fetched") for each in one["ids"]]
