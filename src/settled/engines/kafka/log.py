"""librdkafka's log lines, as lines of the logger `settled.kafka`, without secrets.

While a broker is away the client says so several times a second: one line in QUIET_S seconds of each kind and broker is
told, the rest only at DEBUG. No line is above WARNING, and lost connections are INFO: what failed in the end is raised.
"""

from __future__ import annotations

import logging
import time

LOGGER = logging.getLogger("settled.kafka")
QUIET_S = 30.0
CONNECTIONS = frozenset({"FAIL", "ERROR"})  # kinds of lines: a connection that failed or was lost


class Log:
    """What a client takes as its `logger`. Any thread. Lines come when the client is polled."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._told: dict[tuple[str, str], float] = {}

    def __repr__(self) -> str:
        return "Log()"

    def cleaned(self, text: str) -> str:
        """The text with every secret replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def log(self, level: int, form: str, *values: object) -> None:
        """One line as the client gives it: a form, and its values: kind, client, thread (the broker) with the text."""
        level = min(level, logging.INFO if values and values[0] in CONNECTIONS else logging.WARNING)
        if level > logging.DEBUG and self._told_before(values):
            level = logging.DEBUG
        if LOGGER.isEnabledFor(level):
            LOGGER.log(level, "%s", self.cleaned(form % values if values else form))

    def _told_before(self, values: tuple[object, ...]) -> bool:
        kind = str(values[0]) if values else ""
        broker = str(values[-1]).partition("]")[0] if values else ""
        now = time.monotonic()
        if now - self._told.get((kind, broker), -QUIET_S) < QUIET_S:
            return True
        self._told[kind, broker] = now
        return False
