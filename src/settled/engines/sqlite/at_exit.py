"""A program that ends without closing its producers still sends what they hold; what is not accepted makes it fail."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import Protocol

from settled.errors import SettledError


class Closing(Protocol):
    """What is closed at the end of the program."""

    def close(self) -> None: ...


_running: weakref.WeakSet[Closing] = weakref.WeakSet()
_unconfirmed = False


def add(producer: Closing) -> None:
    _running.add(producer)


def remove(producer: Closing) -> None:
    _running.discard(producer)


def _close() -> None:
    global _unconfirmed
    for producer in list(_running):
        try:
            producer.close()
        except SettledError as error:
            _unconfirmed = True
            print(f"settled: {error}", file=sys.stderr)


def _fail() -> None:
    if _unconfirmed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(69)


atexit.register(_fail)  # registered first, so it runs last
atexit.register(_close)
