"""Which windows of the register no process of ours comes by, engine by engine, and why."""

from __future__ import annotations

from collections.abc import Mapping

from settled.drills import kafka, rabbitmq
from settled.windows import WINDOWS

KAFKA, RABBITMQ, EMBEDDED = "kafka", "rabbitmq", "sqlite"


def engine_of(url: str) -> str:
    """The engine behind an address, by the name that the register of windows has for it."""
    if kafka.is_kafka(url):
        return KAFKA
    return RABBITMQ if rabbitmq.is_rabbitmq(url) else EMBEDDED


def elsewhere(engine: str, form: str = "") -> Mapping[str, str]:
    """Window -> why it is not reached on this engine, with this form of topic."""
    others = {window.name: f"only {window.engine} has it" for window in WINDOWS if window.engine not in ("", engine)}
    if form == "log":
        others |= {window.name: f"only a queue on {window.engine} has it" for window in WINDOWS if window.engine}
    return others | {KAFKA: kafka.ELSEWHERE, RABBITMQ: rabbitmq.ELSEWHERE}.get(engine, {})
