"""Compaction of a long log while records are published: what publishing takes meanwhile, and what compacting needs.

The log holds records over 10,000 keys and one group that has settled all of them. A process publishes to it at a
steady rate, each publish waited for; another one compacts it, as workers' upkeep does. Peak memory is that process's.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.runs import peak_mb
from bench.workload import folder
from settled.engine import ProducerSpec, TopicSpec
from settled.engines.sqlite import SqliteEngine
from settled.record import Message, new_id

TOPIC, KEYS = "prices", 10_000
THREADS, RATE = 8, 200  # so many publish, so many records a second together
QUIET_S = 15.0  # how long is published before compaction begins, to compare with


def message(chance: random.Random) -> Message:
    value = b'{"price": %d, "note": "%s"}' % (chance.randrange(10**6), chance.randbytes(80).hex().encode())
    return Message(topic=TOPIC, key=b"sku-%d" % chance.randrange(KEYS), value=value, id=new_id())


def fill(url: str, count: int) -> None:
    engine, chance = SqliteEngine(url), random.Random(1)
    engine.ensure_topic(TopicSpec(name=TOPIC, compact=True))
    producer = engine.producer(ProducerSpec())
    for _ in range(count):
        producer.send(message(chance))
    engine.close()


def publisher(url: str) -> None:
    """Publishes until its input ends; prints [begun, milliseconds] of each publish as JSON, by the monotonic clock."""
    engine, took, ended = SqliteEngine(url), list[tuple[float, float]](), threading.Event()
    producer = engine.producer(ProducerSpec())

    def work(number: int) -> None:
        chance, due = random.Random(number), time.monotonic() + number / RATE
        while not ended.wait(max(0.0, due - time.monotonic())):
            begun = time.monotonic()
            producer.send(message(chance)).result(60)
            took.append((begun, (time.monotonic() - begun) * 1000))
            due += THREADS / RATE

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    engine.close()
    print(json.dumps(took))


def compactor(url: str) -> None:
    engine, before = SqliteEngine(url), peak_mb()
    began, used = time.monotonic(), time.process_time()
    removed = engine.maintain()[TOPIC]
    ended = time.monotonic()
    found = {
        "began": began,
        "ended": ended,
        "removed": removed,
        "cpu_s": round(time.process_time() - used, 2),
        "before_mb": round(before, 1),
        "peak_mb": round(peak_mb(), 1),
    }
    engine.close()
    print(json.dumps(found))


def measure(count: int) -> dict[str, Any]:
    """Milliseconds of a publish without and with compaction beside it, and what that took."""
    with folder() as place:
        url = f"sqlite:///{place}/log.db"
        fill(url, count)
        publishing = _start("publisher", url)
        time.sleep(QUIET_S)
        told = json.loads(_start("compactor", url).communicate()[0])
        took = json.loads(publishing.communicate("")[0])
        size = (Path(place) / "log.db").stat().st_size
    without = sorted(each for begun, each in took if told["began"] - QUIET_S + 3 < begun < told["began"])
    beside = sorted(each for begun, each in took if told["began"] <= begun < told["ended"])
    return {
        "seconds": round(told["ended"] - told["began"], 2),
        "removed": told["removed"],
        "cpu_s": told["cpu_s"],
        "peak_mb": told["peak_mb"],
        "grown_mb": round(told["peak_mb"] - told["before_mb"], 1),
        "file_mb": round(size / 1e6, 1),
        "publish_p99_ms": {"without": _at(without, 0.99), "beside": _at(beside, 0.99)},
        "publish_p50_ms": {"without": _at(without, 0.5), "beside": _at(beside, 0.5)},
        "publishes": {"without": len(without), "beside": len(beside)},
    }


def compare(say: Callable[[str], None], *, counts: tuple[int, ...] = (100_000, 1_000_000)) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for count in counts:
        found[str(count)] = measure(count)
        say(f"compaction of {count:,}: {found[str(count)]}")
    most, least = found[str(max(counts))], found[str(min(counts))]
    p99 = most["publish_p99_ms"]
    return {
        "by_records": found,
        "publish_p99_times": round(p99["beside"] / p99["without"], 2),
        "memory_times": round(most["peak_mb"] / least["peak_mb"], 2),
    }


def _start(role: str, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.compaction", role, url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _at(took: list[float], share: float) -> float:
    return round(took[int(len(took) * share)], 2)


if __name__ == "__main__":
    {"publisher": publisher, "compactor": compactor}[sys.argv[1]](*sys.argv[2:])
