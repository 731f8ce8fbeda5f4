"""What passes a reader without a group on RabbitMQ, with a witness: a queue of the test's own, bound to the same
exchange, which tells what the broker handed out. `PYTHONPATH=tests python tests/engines/rabbitmq/passing.py 50` kills
so often; a form may follow.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pika

from settled.engine import Form, TopicSpec
from settled.engines.rabbitmq import RabbitEngine, settings
from settled.engines.rabbitmq.topology import exchange_of
from settled.testing import rabbitmq
from waiting import until

PROCESS = Path(__file__).parent / "passing_process.py"
DEADLINE_S = 60.0
FORMS: tuple[Form, ...] = ("notification", "pubsub")


class Passing:
    """A topic, its readers and publishers in processes, and the witness. Use it in a `with`."""

    def __init__(self, url: str, form: Form, folder: Path, *, behind: int = 1_000_000) -> None:
        self.url, self.form, self.behind = url, form, behind
        self.file = folder / "given.jsonl"
        self.topic = rabbitmq.unique("passing")
        self.handed_out: dict[str, int] = defaultdict(int)  # publisher -> its last number, as the witness saw
        self._lines: list[list[Any]] = []
        self._heard: dict[str, int] = defaultdict(int)
        self._read = 0  # bytes of the file
        self._children: list[subprocess.Popen[str]] = []
        self._publishers = 0
        engine = RabbitEngine(url)
        engine.ensure_topic(TopicSpec(name=self.topic, form=form, partitions=3))
        engine.close()
        self._ending, self._listens = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._witness)
        self._thread.start()
        assert self._listens.wait(DEADLINE_S)

    def __enter__(self) -> Passing:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            kill(child)
        self._ending.set()
        self._thread.join(DEADLINE_S)

    def reader(self) -> subprocess.Popen[str]:
        """Back when it listens."""
        child = self._process("read", self.file, self.behind)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    def publisher(self, *, size: int = 20, count: int = 10_000_000) -> tuple[subprocess.Popen[str], str]:
        """With the name that its ids begin with."""
        self._publishers += 1
        name = f"p{self._publishers}"
        return self._process("publish", name, size, count), name

    def lines(self) -> list[list[Any]]:
        """What readers wrote down; of each publisher no record came twice, and none after a later one."""
        text = b""
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._lines.append(json.loads(line))
            name, number = numbered(self._lines[-1][0])
            assert number > self._heard[name], line
            self._heard[name] = number
        return self._lines

    def heard(self) -> dict[str, int]:
        """The last number of each publisher that a reader was given."""
        self.lines()
        return self._heard

    def accounted(self) -> int:
        """How many records were given, or told as missed."""
        lines = self.lines()
        return len(lines) + sum(missed for _, missed, _, _ in lines)

    def hears_more(self, count: int) -> None:
        """Wait until the reader was given so many more."""
        more = len(self.lines()) + count
        until(lambda: len(self.lines()) >= more, DEADLINE_S)

    def hands_out_more(self, name: str, count: int) -> None:
        more = self.handed_out[name] + count
        until(lambda: self.handed_out[name] >= more, DEADLINE_S)

    def hears_all(self, name: str) -> None:
        until(lambda: 0 < self.handed_out[name] == self.heard()[name], DEADLINE_S)

    def _process(self, what: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROCESS), what, self.url, self.topic, self.form, *map(str, arguments)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=self.file.parent)
        self._children.append(child)
        return child

    def _witness(self) -> None:
        with contextlib.closing(pika.BlockingConnection(settings.parse(self.url).parameters(0, "witness"))) as opened:
            channel = opened.channel()
            channel.queue_declare(f"{self.topic}:witness", exclusive=True)
            channel.queue_bind(f"{self.topic}:witness", exchange_of(self.topic, self.form))
            for _, properties, _ in channel.consume(f"{self.topic}:witness", auto_ack=True, inactivity_timeout=0.05):
                self._listens.set()
                if properties is not None:
                    name, number = numbered(properties.message_id)
                    assert number == self.handed_out[name] + 1
                    self.handed_out[name] = number
                elif self._ending.is_set():
                    return


def numbered(ident: str) -> tuple[str, int]:
    name, _, number = ident.partition("-")
    return name, int(number)


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=DEADLINE_S)


def campaign(url: str, form: Form, folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill readers, publishers, or both at once; a publisher that dies alone is heard to its end before anything else
    is done. Returns what was counted. Raises AssertionError where that does not add up."""
    chance = random.Random(seed)
    alone = set[str]()  # publishers that died while a reader lived
    with Passing(url, form, folder) as passing:
        reader = passing.reader()
        publisher, name = passing.publisher()
        passing.hands_out_more(name, 1)
        done = 0
        while done < kills:
            passing.hears_more(chance.randrange(1, 400))
            what = chance.choice(["reader", "reader", "publisher", "both"])
            if what != "publisher":
                kill(reader)
            if what == "reader":
                passing.hands_out_more(name, chance.randrange(1, 400))
            else:
                kill(publisher)
            if what == "publisher":
                passing.hears_all(name)
                alone.add(name)
            done += 2 if what == "both" else 1
            if what != "publisher":
                reader = passing.reader()
            if what != "reader":
                publisher, name = passing.publisher()
                passing.hands_out_more(name, 1)
        passing.hears_more(1)
        kill(publisher)
        passing.hears_all(name)
        kill(reader)
        heard, handed_out = passing.heard(), passing.handed_out
        assert passing.accounted() == sum(heard.values())
        for each in {*alone, name}:
            assert heard[each] == handed_out[each]
        lines, untold = passing.lines(), sum(handed_out.values()) - sum(heard.values())
        assert untold == 0 or any(interruptions for _, _, interruptions, _ in lines)
        return {
            "kills": done,
            "published": sum(handed_out.values()),
            "given": len(lines),
            "missed": passing.accounted() - len(lines),
            "of ended publishers, not told": untold,
        }


if __name__ == "__main__":
    for form in [form for form in FORMS if form in sys.argv] or FORMS:
        with tempfile.TemporaryDirectory() as folder:
            print(form, campaign(rabbitmq.url(), form, Path(folder), int(sys.argv[1]), os.getpid()))
