"""librdkafka's log lines, as lines of the logger `settled.kafka`, without secrets."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("settled.kafka")


class Log:
    """What a client takes as its `logger`. Any thread. Lines come when the client is polled."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = sorted(secrets, key=len, reverse=True)

    def __repr__(self) -> str:
        return "Log()"

    def cleaned(self, text: str) -> str:
        """The text with every secret replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def log(self, level: int, form: str, *values: object) -> None:
        """One line, as the client gives it: a form and what fills it."""
        if LOGGER.isEnabledFor(level):
            LOGGER.log(level, "%s", self.cleaned(form % values if values else form))
