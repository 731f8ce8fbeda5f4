"""The process that keeps a test cluster: `python -m settled.testing.kafka_keeper FOLDER SECONDS`.

It starts the brokers, does what its users ask, and ends the brokers and itself when nobody has used it for so many
seconds. A user is who holds a connection to FOLDER/socket, so one that is killed is noticed too; the brokers die with
the keeper. Questions and answers are lines of JSON: {"do": "start" | "signal" | "state", "broker": N, "signal": N}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from settled.testing.kafka_jars import formatted, jars, java
from settled.testing.kafka_settings import BROKERS, HEAP, LOGGING, Ports, free_ports, properties

STOP_S = 10.0
FIRST_USER_S = 30.0
DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def main() -> None:
    folder, patience = Path(sys.argv[1]), float(sys.argv[2])
    keeper = Keeper(folder)
    try:
        keeper.begin()
        keeper.serve(patience)
    finally:
        keeper.end()


class Keeper:
    """One thread. Brokers are its children; their records and logs are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._brokers: dict[int, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._users: dict[socket.socket, bytes] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def begin(self) -> None:
        """Lay out the folder, start all brokers, then listen."""
        ports = free_ports()
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        (self._folder / "log4j2.yaml").write_text(LOGGING)
        for broker in BROKERS:
            self._lay_out(broker, ports, identity)
        for broker in BROKERS:
            self._start(broker)
        told = {str(each): [getattr(own, name) for name in Ports.__slots__] for each, own in ports.items()}
        (self._folder / "ports.json").write_text(json.dumps(told))
        self._listener.bind(str(self._folder / "socket"))
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self, patience: float) -> None:
        """Until nobody has used it for `patience` seconds, or it is told to end."""
        last = time.monotonic() + FIRST_USER_S
        while self._users or time.monotonic() < last + patience:
            for key, _ in self._selector.select(0.5):
                if key.fileobj is self._listener:
                    user, _ = self._listener.accept()
                    self._users[user] = b""
                    self._selector.register(user, selectors.EVENT_READ)
                else:
                    self._hear(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
            for broker in self._brokers.values():
                broker.poll()
            last = time.monotonic() if self._users else min(last, time.monotonic())

    def end(self) -> None:
        """Nobody can come any more; end the brokers, remove the folder."""
        with contextlib.suppress(OSError):
            (self._folder / "socket").unlink(missing_ok=True)
        self._listener.close()
        for broker in self._brokers.values():
            if broker.poll() is None:
                broker.kill()
        for broker in self._brokers.values():
            broker.wait(STOP_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _hear(self, user: socket.socket) -> None:
        try:
            data = user.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._forget(user)
            return
        *lines, self._users[user] = (self._users[user] + data).split(b"\n")
        try:
            for line in lines:
                user.sendall(json.dumps(self._do(json.loads(line))).encode() + b"\n")
        except OSError:
            self._forget(user)

    def _forget(self, user: socket.socket) -> None:
        self._selector.unregister(user)
        user.close()
        del self._users[user]

    def _do(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The process of each broker, 0 for one that does not run, after what was asked is done."""
        if asked["do"] == "start":
            self._start(asked["broker"])
        elif asked["do"] == "signal":
            self._brokers[asked["broker"]].send_signal(asked["signal"])
        return {str(each): 0 if broker.poll() is not None else broker.pid for each, broker in self._brokers.items()}

    def _lay_out(self, broker: int, ports: dict[int, Ports], identity: str) -> None:
        """The broker's properties and its formatted storage, with a name of its own."""
        storage = self._folder / f"broker-{broker}"
        shutil.copytree(formatted(properties(broker, ports, "{storage}")), storage)
        directory = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        lines = ("version=1", f"cluster.id={identity}", f"node.id={broker}", f"directory.id={directory}")
        (storage / "meta.properties").write_text("\n".join(lines) + "\n")
        (self._folder / f"broker-{broker}.properties").write_text(properties(broker, ports, str(storage)))

    def _start(self, broker: int) -> None:
        if broker in self._brokers and self._brokers[broker].poll() is None:
            return
        logging = f"-Dlog4j2.configurationFile={self._folder}/log4j2.yaml"
        command = [java(), *HEAP, logging, "-cp", f"{jars()}/*", "kafka.Kafka"]
        with (self._folder / f"broker-{broker}.log").open("ab") as log:
            self._brokers[broker] = subprocess.Popen(
                [*command, f"{self._folder}/broker-{broker}.properties"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                preexec_fn=_die_with_parent,
            )


def _die_with_parent() -> None:
    """In the child: the system kills it when the keeper dies (Linux; elsewhere only a killed keeper leaves brokers)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


if __name__ == "__main__":
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    main()
