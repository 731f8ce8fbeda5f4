"""A reader without a group, or a publisher that it listens to, in a process of its own, to be killed (see passing.py).

A reader writes a line for each record that it is given: the id, what it missed since the line before, how often it was
interrupted so far, and its position.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from settled import App
from settled.record import Message


def read(app: App, file: Path, behind: int) -> None:
    with file.open("a+") as out, app.tail(after=last_position(file), behind=behind) as tail:
        missed = 0
        print("ready", flush=True)
        for record in tail:
            line = [record.id, tail.missed - missed, tail.interruptions, tail.position]
            missed = tail.missed
            out.write(json.dumps(line) + "\n")
            out.flush()


def last_position(file: Path) -> str | None:
    """What was written down last; what was torn by a kill is cut off."""
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    file.write_text(whole)
    lines = whole.splitlines()
    return json.loads(lines[-1])[3] if lines else None


def publish(app: App, name: str, size: int, count: int) -> None:
    """Numbered from 1, in bursts, until it is killed or `count` are accepted."""
    topic, pause = app.contract.transport.topic, threading.Event()
    for number in range(1, count + 1):
        app.send(Message(topic=topic, id=f"{name}-{number}", key=b"k%d" % (number % 7), value=b"v" * size))
        if number % 50 == 0:
            pause.wait(0.02)
    print("sent", flush=True)


if __name__ == "__main__":
    what, url, topic, form, *rest = sys.argv[1:]
    with App(topic=topic, engine=url, store="sqlite:///unused.db", transport={"form": form, "partitions": 3}) as app:
        if what == "read":
            read(app, Path(rest[0]), int(rest[1]))
        else:
            publish(app, rest[0], int(rest[1]), int(rest[2]))
