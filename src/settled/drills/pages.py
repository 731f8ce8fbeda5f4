"""Writes the generated pages: `python -m settled.drills.pages docs`. Today that is `windows.md`, from the register."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from settled.drills import kafka, rabbitmq
from settled.drills.named import NAMED
from settled.drills.on_kafka import ON_KAFKA
from settled.drills.on_rabbitmq import ON_RABBITMQ
from settled.windows import WINDOWS, Fate, Window

HEAD = """\
# Where a process may die

This page is generated from `settled.windows` (`make docs`); a test holds it equal to the code. Every instant below has
a name. At each one `settled drill --window NAME` kills real workers of your application, and says what came of it.

What is promised per delivery mode:

- **at-most-once**: no effect twice; records may be lost where this page says so.
- **at-least-once**: no record lost; handlers may run again. What they wrote through `tx` counts once for each record of
  the log, but a message that was published twice is two records.
- **effectively-once**: no record lost, and one effect for each event id and consumer, if the effect is a write through
  `tx`. What a handler does elsewhere (a call, a mail) can happen again.

"""


def main(folder: str) -> None:
    """Write all pages into the folder."""
    (Path(folder) / "windows.md").write_text(windows_page(), encoding="utf-8")


def windows_page() -> str:
    lines = [*_summary(), ""]
    for window in WINDOWS:
        lines += [*_section(window), ""]
    lines += ["## Drills that are more than one death", "", "`settled drill --drill NAME`:", ""]
    lines += [f"- `{name}`: {_first_line(drill.__doc__)}" for name, drill in NAMED.items()]
    lines += ["", *_on_kafka(), "", *_on_rabbitmq()]
    return HEAD + "\n".join(lines) + "\n"


def _on_kafka() -> Iterator[str]:
    yield "## On Kafka"
    yield ""
    yield "`settled drill APP --engine kafka://host:port` runs the same windows with the log on Kafka, but for these:"
    yield ""
    for name, why in kafka.ELSEWHERE.items():
        yield f"- `{name}`: {why}."
    yield ""
    yield f"`--engine {kafka.OWN}` starts three brokers for the drill (Java and Maven are needed). Drills that disturb"
    yield "brokers, or the way to them, run only there:"
    yield ""
    for name, drill in ON_KAFKA.items():
        yield f"- `{name}`: {_first_line(drill.__doc__)}"


def _on_rabbitmq() -> Iterator[str]:
    yield "## On RabbitMQ"
    yield ""
    yield "`settled drill APP --engine rabbitmq://user:password@host:port` runs the same windows there, but for these:"
    yield ""
    for name, why in rabbitmq.ELSEWHERE.items():
        yield f"- `{name}`: {why}."
    yield ""
    yield "With `transport.form: log` neither are those that only RabbitMQ has: they are of queues and subscriptions."
    yield ""
    yield "A queue cannot be read without claiming, so all that was sent is held against the effects; with"
    yield "`delivery.ordering: key` the effects of a key are held against the order in which they were sent. At the end"
    yield "nothing may be left in the queue, nor in the one beside it for what the broker gave up."
    yield ""
    yield f"`--engine {rabbitmq.OWN}` starts a node for the drill, or three (Debian's package `rabbitmq-server` is"
    yield "needed). Drills that harm nodes, or the way to them, run only there:"
    yield ""
    for name, drill in ON_RABBITMQ.items():
        yield f"- `{name}`: {_first_line(drill.__doc__)}"
    yield ""
    yield "`python -m settled.drills.campaign --engine rabbitmq --form queue` (or `pubsub`, `log`) runs all of it, a"
    yield "queue with several slots that compete and with one that keeps the order; `--kills N` says how often."


def _summary() -> Iterator[str]:
    yield "| window | journey | lost (effectively-once) | runs again (effectively-once) | who repairs it |"
    yield "| --- | --- | --- | --- | --- |"
    for window in WINDOWS:
        fate = window.effectively
        yield f"| [{window.name}](#{window.name}) | {window.journey} | {fate.lost} | {fate.again} | {window.repair} |"


def _section(window: Window) -> Iterator[str]:
    yield f"## {window.name}"
    yield ""
    yield f"Journey: {window.journey}{_only(window)}. Durable: {window.durable}. Not yet: {window.pending}."
    yield ""
    yield "| mode | lost | duplicate attempt | ambiguous |"
    yield "| --- | --- | --- | --- |"
    modes = (
        ("at-most-once", window.most),
        ("at-least-once", window.least),
        ("effectively-once", window.effectively),
    )
    for mode, fate in modes:
        yield f"| {mode} | {_cells(fate)} |"
    yield ""
    yield f"Work goes on: {window.delay}. Repaired by {window.repair}."


def _only(window: Window) -> str:
    return {"": "", "rabbitmq": ", on RabbitMQ only"}[window.engine]


def _cells(fate: Fate) -> str:
    return " | ".join((fate.lost, fate.again, fate.ambiguous))


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs")
