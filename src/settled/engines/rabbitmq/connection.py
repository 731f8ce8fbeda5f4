"""A connection to the broker with the thread that owns it: it connects, beats, and connects again after a loss.

All of pika is called on that thread. Others leave work with `call`, which is done in order, on the connection that is
up then, or dropped by who left it (see `Work`).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from pika.adapters.select_connection import IOLoop, SelectConnection

from settled.engines.rabbitmq import faults
from settled.engines.rabbitmq.settings import Settings
from settled.errors import ContractError, SettledError, Unavailable, Unsupported

log = logging.getLogger("settled.engines.rabbitmq")

if logging.getLogger("pika").level == logging.NOTSET:  # it tells each refusal and step; ours are raised, or logged here
    logging.getLogger("pika").setLevel(logging.CRITICAL)

FIRST_S, MOST_S = 0.05, 2.0  # between two attempts to connect
TICK_S = 0.25
CLOSE_S = 5.0


class User(Protocol):
    """Who uses the connection. All are called on its thread, and return soon."""

    def up(self, connection: SelectConnection) -> None: ...

    def down(self, error: SettledError) -> None:
        """It is lost, or an attempt failed. Nothing of it is used any more."""

    def tick(self) -> None:
        """Every quarter of a second or so, with and without a connection."""


class Link:
    """Made and closed by one thread; `call` and `kick` are for any."""

    def __init__(self, settings: Settings, name: str, user: User, *, heartbeat_s: int = 20) -> None:
        self._settings, self._name, self._user, self._heartbeat_s = settings, name, user, heartbeat_s
        self._lock = threading.Lock()
        self._work: deque[Callable[[], None]] = deque()
        self._kicked = False
        self._loop: IOLoop | None = None
        self._connection: Any = None
        self._ending = threading.Event()
        self._lost: SettledError | None = None
        self._closing_since = 0.0
        self._thread = threading.Thread(target=self._run, name=f"settled-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(self, work: Callable[[], None]) -> None:
        """Any thread. Do it on the connection's thread, soon, after what was left before."""
        with self._lock:
            self._work.append(work)
            if self._kicked or self._loop is None:
                return
            self._kicked = True
            self._loop.add_callback_threadsafe(self._do_work)

    def close(self) -> None:
        """Do what was left, close the connection in good order, end the thread. Bounded in time."""
        self._ending.set()
        self.call(self._close_connection)
        self._thread.join()

    # The thread.

    def _run(self) -> None:
        turn, failures = 0, 0
        while not self._ending.is_set():
            was_up = self._connect(turn)
            turn += 1
            failures = 0 if was_up else failures + 1
            self._told_down()
            if failures and failures % len(self._settings.addresses) == 0:
                self._pause(min(MOST_S, FIRST_S * 2 ** min(failures, 10)))
        self._do_work()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + random.uniform(seconds / 2, seconds)
        while not self._ending.is_set() and (left := end - time.monotonic()) > 0:
            self._ending.wait(min(left, TICK_S))
            self._do_work()
            self._user.tick()

    def _connect(self, turn: int) -> bool:
        """One connection, from the attempt to its loss. Whether it came up."""
        loop = IOLoop()
        came_up = False
        self._lost = None

        def opened(connection: SelectConnection) -> None:
            nonlocal came_up
            faults.require_broker(connection.server_properties)
            came_up = True
            if self._closing_since:
                connection.close()
            else:
                self._user.up(connection)

        def lost(_: object, error: BaseException) -> None:
            self._lost = faults.translate(error, "the connection to RabbitMQ", self._settings)
            loop.stop()

        with self._lock:
            self._loop, self._kicked = loop, True
        loop.add_callback_threadsafe(self._do_work)
        self._tick(loop)
        try:
            parameters = self._settings.parameters(turn, self._name, heartbeat_s=self._heartbeat_s)
            self._connection = SelectConnection(
                parameters, opened, on_open_error_callback=lost, on_close_callback=lost, custom_ioloop=loop
            )
            loop.start()
        except faults.ERRORS as error:
            self._lost = faults.translate(error, "the connection to RabbitMQ", self._settings)
        except SettledError as error:
            self._lost = error
        except Exception as error:
            log.exception("the connection's thread failed; it connects again")
            self._lost = SettledError(f"the connection failed: {type(error).__name__}: {error}")
        finally:
            with self._lock:
                left, self._loop, self._connection = self._connection, None, None
            _let_go(left)
            loop.close()
        return came_up

    def _tick(self, loop: IOLoop) -> None:
        self._user.tick()
        if self._ending.is_set() and self._closing_since and time.monotonic() - self._closing_since > CLOSE_S:
            self._lost = Unavailable("the broker did not answer the end of the connection")
            loop.stop()
            return
        loop.call_later(TICK_S, lambda: self._tick(loop))

    def _told_down(self) -> None:
        error = self._lost or Unavailable("the connection to RabbitMQ ended")
        if not self._ending.is_set():
            level = logging.ERROR if isinstance(error, (ContractError, Unsupported)) else logging.INFO
            log.log(level, "%s", error)
        self._user.down(error)

    def _do_work(self) -> None:
        while True:
            with self._lock:
                if not self._work:
                    self._kicked = False
                    return
                work = self._work.popleft()
            work()

    def _close_connection(self) -> None:
        self._closing_since = time.monotonic()
        connection = self._connection
        if connection is not None and connection.is_open:
            connection.close()  # one that is being opened is closed when it is


def _let_go(connection: Any) -> None:
    """Close the socket of a connection that was left before its end; of one that ended nothing is there."""
    transport = getattr(connection, "_transport", None)
    if transport is not None and transport._sock is not None:
        transport._sock.close()
