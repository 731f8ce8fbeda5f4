"""Engines on the tests' own RabbitMQ, closed when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from settled.engines.rabbitmq import RabbitEngine
from settled.testing import rabbitmq


@contextmanager
def rabbit_engines() -> Iterator[Callable[[], RabbitEngine]]:
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(RabbitEngine(rabbitmq.url())))
