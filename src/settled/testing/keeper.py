"""The process that keeps servers for tests, and its users. `kafka_keeper` and `rabbitmq_keeper` are such processes.

A keeper starts the servers, does what its users ask, and ends the servers and itself when nobody has used it for so
many seconds. A user is who holds a connection to FOLDER/socket, so one that is killed is noticed too; the servers die
with the keeper. Questions and answers are lines of JSON: {"do": "start" | "signal" | "state", "server": N, "signal": S}
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
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from settled.errors import Unavailable

ANSWER_S = 30.0
PATIENCE_S = 5.0  # how long a keeper of shared servers waits for a next user
DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


class Keeper:
    """One thread. Servers are its children, by their numbers; their records and logs are in `folder`.

    stop_s    by when a server has ended that was killed
    first_s   how long it waits for its first user, beside its patience
    """

    stop_s = 10.0
    first_s = 30.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._users: dict[socket.socket, bytes] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def prepare(self) -> None:
        """Lay out the folder and start servers."""
        raise NotImplementedError

    def command(self, server: int) -> dict[str, Any]:
        """How it is started: `args` and what else Popen takes."""
        raise NotImplementedError

    def log(self, server: int) -> Path:
        """Where it prints to."""
        raise NotImplementedError

    def started(self, server: int) -> bool:
        return server in self._servers and self._servers[server].poll() is None

    def start(self, server: int) -> None:
        if self.started(server):
            return
        told = self.command(server)
        with self.log(server).open("ab") as log:
            self._servers[server] = subprocess.Popen(
                **told, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
            )

    def signal(self, server: int, number: int) -> None:
        self._servers[server].send_signal(number)

    def run(self, patience: float) -> None:
        """Until nobody has used it for `patience` seconds, or it is told to end."""
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(0))
        try:
            self.prepare()
            self._listener.bind(str(self._folder / "socket"))
            self._listener.listen(64)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._serve(patience)
        finally:
            self.end()

    def _serve(self, patience: float) -> None:
        last = time.monotonic() + self.first_s
        while self._users or time.monotonic() < last + patience:
            for key, _ in self._selector.select(0.5):
                if key.fileobj is self._listener:
                    user, _ = self._listener.accept()
                    self._users[user] = b""
                    self._selector.register(user, selectors.EVENT_READ)
                else:
                    self._hear(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
            for server in self._servers.values():
                server.poll()
            last = time.monotonic() if self._users else min(last, time.monotonic())

    def end(self) -> None:
        """Nobody can come any more; end the servers, remove the folder."""
        with contextlib.suppress(OSError):
            (self._folder / "socket").unlink(missing_ok=True)
        self._listener.close()
        for server in self._servers.values():
            if server.poll() is None:
                server.kill()
        for server in self._servers.values():
            server.wait(self.stop_s)
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

    def _do(self, asked: Mapping[str, Any]) -> dict[str, int]:
        """The process of each server, 0 for one that does not run, after what was asked is done."""
        if asked["do"] == "start":
            self.start(asked["server"])
        elif asked["do"] == "signal":
            self.signal(asked["server"], asked["signal"])
        return {str(each): server.pid if server.poll() is None else 0 for each, server in self._servers.items()}


def die_with_parent() -> None:
    """In the child: the system kills it when the keeper dies (Linux; elsewhere only a killed keeper leaves servers)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


class User:
    """Of the servers that a keeper keeps in `folder`; close it. Any thread. Raises OSError where there is no keeper."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._keeper.settimeout(ANSWER_S)
        try:
            self._keeper.connect(str(folder / "socket"))
            self.processes()  # an answer: it will not end while this one is connected
        except BaseException:
            self._keeper.close()
            raise

    def processes(self) -> dict[int, int]:
        """The process of each server; 0 where it does not run."""
        return self._ask(do="state")

    def start(self, server: int) -> None:
        """Where it does not run."""
        self._ask(do="start", server=server)

    def signal(self, server: int, number: signal.Signals) -> None:
        self._ask(do="signal", server=server, signal=int(number))

    def printed(self) -> str:
        """What each server printed last."""
        logs = sorted(self.folder.glob("*-*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)

    def close(self) -> None:
        """No longer use them. The keeper ends servers that nobody uses."""
        self._keeper.close()

    def _ask(self, **asked: Any) -> dict[int, int]:
        with self._lock:
            self._keeper.sendall(json.dumps(asked).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                more = self._keeper.recv(4096)
                if not more:
                    raise ConnectionError("the keeper has gone")
                answer += more
        return {int(server): int(process) for server, process in json.loads(answer).items()}


def keep(module: str, folder: Path, patience: float, *words: str, ready_s: float) -> subprocess.Popen[bytes]:
    """Start the keeper that `module` is, for servers in `folder`. Back when it listens. Raises Unavailable."""
    folder.mkdir(parents=True)
    log = folder.with_suffix(".log")
    with log.open("wb") as file:
        keeper = subprocess.Popen(
            [sys.executable, "-m", module, str(folder), str(patience), *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    _KEEPERS.append(keeper)
    end = time.monotonic() + ready_s
    pause = threading.Event()
    while not (folder / "socket").exists():
        if keeper.poll() is not None or time.monotonic() > end:
            raise Unavailable(f"the test servers did not start: {log.read_text()[-2000:]}", hint="see the message")
        pause.wait(0.05)
    return keeper


_KEEPERS: list[subprocess.Popen[bytes]] = []  # a keeper outlives who started it; it is not waited for
