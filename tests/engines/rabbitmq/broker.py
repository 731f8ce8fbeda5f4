"""The test node as another program sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pika
from pika.adapters.blocking_connection import BlockingChannel

from settled.testing import rabbitmq


def address() -> tuple[str, int]:
    """Host and port of the shared node."""
    host, _, port = urlsplit(rabbitmq.url()).netloc.rpartition("@")[2].split(",")[0].partition(":")
    return host, int(port)


def parameters() -> pika.ConnectionParameters:
    login, _, _ = urlsplit(rabbitmq.url()).netloc.rpartition("@")
    user, _, password = login.partition(":")
    host, port = address()
    return pika.ConnectionParameters(host, port, credentials=pika.PlainCredentials(user, password))


@contextmanager
def channel() -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(parameters())
    try:
        opened = connection.channel()
        opened.confirm_delivery()
        yield opened
    finally:
        connection.close()


def put(queue: str, body: bytes, **properties: Any) -> None:
    """A foreign message."""
    with channel() as opened:
        opened.basic_publish("", queue, body, pika.BasicProperties(**properties), mandatory=True)


def delete(queue: str) -> None:
    with channel() as opened:
        opened.queue_delete(queue)
