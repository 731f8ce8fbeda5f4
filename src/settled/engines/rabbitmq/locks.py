"""The locks of a topic's partitions in one group: exclusive queues of the member's connection. The broker refuses a
second one while it lives, and closes the channel with the refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pika.channel import Channel

from settled.engines.rabbitmq import faults

AGAIN_S, MOST_S = 0.05, 1.0  # between two tries for a lock that is held
REFUSED_S = 1.0  # until what the broker refused for another reason is tried again


class Locks:
    """On the connection's thread.

    taken     is called with the partition whose lock was got
    stir      is called when it is time to try again
    refused   is told what the broker said, other than that a lock is held
    """

    def __init__(
        self,
        topic: str,
        group: str,
        taken: Callable[[int], None],
        stir: Callable[[], None],
        refused: Callable[[BaseException, str], None],
    ) -> None:
        self._topic, self._group = topic, group
        self._taken, self._stir, self._refused = taken, stir, refused
        self.up(None)

    def up(self, connection: Any) -> None:
        """None: there is no connection."""
        self._connection = connection
        self._channel: Channel | None = None
        self._asked: int | None = None  # the partition that is being tried
        self._tries: dict[int, tuple[float, float]] = {}  # when one is tried again, and how long after that

    @property
    def busy(self) -> bool:
        return self._asked is not None

    def free(self, number: int) -> bool:
        """Whether it may be tried now."""
        return self._asked is None and self._tries.get(number, (0.0, 0.0))[0] <= time.monotonic()

    def try_for(self, number: int) -> None:
        self._asked = number
        channel, connection = self._channel, self._connection
        if channel is not None and channel.is_open:
            self._declare(channel, number)
            return

        def opened(channel: Channel) -> None:
            self._channel = channel
            channel.add_on_close_callback(self._closed)
            self._declare(channel, number)

        connection.channel(on_open_callback=opened)

    def _declare(self, channel: Channel, number: int) -> None:
        def locked(_: Any) -> None:
            self._asked = None
            self._tries.pop(number, None)
            self._taken(number)

        channel.queue_declare(lock_of(self._topic, self._group, number), exclusive=True, callback=locked)

    def _closed(self, channel: Channel, error: Exception) -> None:
        connection, number = self._connection, self._asked
        if self._channel is not channel or connection is None or not connection.is_open:
            return
        self._channel, self._asked = None, None
        if number is None:
            return
        held = faults.code_of(error) == faults.LOCKED
        if not held:
            self._refused(error, f"taking {self._topic}/{number}")
        wait = min(MOST_S, 2 * self._tries.get(number, (0.0, AGAIN_S / 2))[1]) if held else REFUSED_S
        self._tries[number] = time.monotonic() + wait, wait
        connection.ioloop.call_later(wait + 0.001, self._stir)
        self._stir()

    def give_up(self, number: int, then: Callable[[], None]) -> None:
        """`then` is called when it is free. Others have it first."""
        connection = self._connection

        def opened(channel: Channel) -> None:
            channel.queue_delete(lock_of(self._topic, self._group, number), callback=lambda _: unlocked(channel))

        def unlocked(channel: Channel) -> None:
            channel.close()
            self._tries[number] = time.monotonic() + 2 * AGAIN_S, AGAIN_S
            connection.ioloop.call_later(3 * AGAIN_S, self._stir)
            then()

        if connection is not None and connection.is_open:
            connection.channel(on_open_callback=opened)


def lock_of(topic: str, group: str, number: int) -> str:
    return f"{topic}:{group}:part:{number}"
