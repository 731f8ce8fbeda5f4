"""A subscriber without a group, or the publisher that it listens to, in a process of its own (see test_tails).

A subscriber writes one line for each record it was given and each change of what it missed, with its position, and is
killed at any time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from settled import App


def subscribe(app: App, file: Path, behind: int) -> None:
    position, missed = last(file)
    with file.open("a") as out, app.tail(after=position, behind=behind) as tail:
        out.write(json.dumps({"id": None, "missed": tail.missed, "position": tail.position}) + "\n")
        out.flush()
        missed = tail.missed
        print("ready", flush=True)
        for record in tail:
            line = {"id": record.id, "missed": tail.missed - missed, "position": tail.position}
            missed = tail.missed
            out.write(json.dumps(line) + "\n")
            out.flush()


def last(file: Path) -> tuple[str | None, int]:
    """The position that was written down last; what was torn by a kill is cut off."""
    if not file.exists():
        return None, 0
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    file.write_text(whole)
    lines = whole.splitlines()
    return (json.loads(lines[-1])["position"], 0) if lines else (None, 0)


def publish(app: App, first: int, count: int) -> None:
    from settled.record import Message

    topic = app.contract.transport.topic
    for number in range(first, first + count):
        app.send(Message(topic=topic, id=f"e{number}", key=b"k%d" % (number % 7), value=b"v"))
        if number % 20 == 0:
            app.send(Message(topic=topic, id=f"pause-{number}", key=b"p", value=None)).result()


if __name__ == "__main__":
    what, url, topic, *rest = sys.argv[1:]
    with App(topic=topic, engine=url, store="sqlite:///unused.db", transport={"partitions": 3}) as app:
        if what == "subscribe":
            subscribe(app, Path(rest[0]), int(rest[1]))
        else:
            publish(app, int(rest[0]), int(rest[1]))
