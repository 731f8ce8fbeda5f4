"""A relay, or a writer, in a process of its own, started by test_relay_killed with JSON arguments. With `window` it
kills itself there, at the `turn`-th time that it comes by.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from typing import Any

from settled import connect, windows
from settled.outbox import Relay, RelayPolicy
from settled.signals import on_signals


def dies_at(window: str, turn: int) -> None:
    left = turn

    def hook(reached: str) -> None:
        nonlocal left
        if reached == window:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    windows.install(hook)


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    if "window" in given:
        dies_at(given["window"], given["turn"])
    with closing(connect.store(given["store"])) as store, closing(connect.engine(given["engine"])) as engine:
        relay = Relay(store, engine, RelayPolicy(**given["policy"]))
        with on_signals(relay.stop):
            print("ready", flush=True)
            relay.run(drain=given.get("drain", False))


if __name__ == "__main__":
    main()
