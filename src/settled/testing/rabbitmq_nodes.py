"""RabbitMQ nodes of one's own, from Debian's package `rabbitmq-server`: started, killed, asked. `rabbitmq` has them for
tests, the drills for themselves.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from settled.errors import Unavailable
from settled.testing.rabbitmq_keeper import HOST, server

READY_S = 120.0
ANSWER_S = 30.0


class Nodes:
    """A user of the nodes that a keeper keeps in `folder`; close it. Any thread.

    ports   where each node listens for clients, by its number from 1
    names   what each is called among the nodes, from the first on
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._keeper.settimeout(ANSWER_S)
        try:
            self._keeper.connect(str(folder / "socket"))
            told = json.loads((folder / "ports.json").read_text())
        except BaseException:
            self._keeper.close()
            raise
        self.ports: dict[int, int] = {int(number): port for number, port in told.items()}
        names = json.loads((folder / "tool.json").read_text())["nodes"]
        self.names: list[str] = [names[str(number)] for number in sorted(self.ports)]

    @property
    def url(self) -> str:
        return f"rabbitmq://guest:guest@{','.join(f'{HOST}:{port}' for port in self.ports.values())}/"

    def kill(self, node: int = 1) -> None:
        """SIGKILL; back when it is dead."""
        self._ask(do="signal", node=node, signal=signal.SIGKILL)

    def stop(self, node: int = 1) -> None:
        """SIGTERM; back when it has ended in good order. A queue made in the seconds before a kill of the only node may
        not come back."""
        self._ask(do="signal", node=node, signal=signal.SIGTERM)

    def remember(self) -> None:
        """Have each node write down which queues and streams it takes part in; a node does so some time after they are
        made, and one that is killed before takes no part any more when it is back (the streams' coordinator above all).
        """
        for node in self.ports:
            self.ctl("eval", "[ok = dets:sync(Table) || Table <- dets:all()].", node=node)

    def ctl(self, *words: str, node: int = 1) -> str:
        """Run rabbitmqctl on a node; what it prints."""
        tool = json.loads((self._folder / "tool.json").read_text())
        script = server()
        assert script is not None
        found = subprocess.run(
            [str(script.with_name("rabbitmqctl")), "-n", tool["nodes"][str(node)], *words],
            check=True,
            timeout=READY_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **tool["environment"], "RABBITMQ_CONF_ENV_FILE": str(self._folder / "none")},
        )
        return found.stdout

    def start(self, node: int = 1) -> None:
        self._ask(do="start", node=node)

    def wait_ready(self) -> None:
        """Start what does not run, one after the other: each joins the first. Until all answer."""
        for node in self.ports:
            self.start(node)
            self._until(functools.partial(self.speaks, node), f"node {node} answers")

    def speaks(self, node: int) -> bool:
        import pika
        from pika.exceptions import AMQPError

        try:
            connection = pika.BlockingConnection(
                pika.ConnectionParameters(HOST, self.ports[node], socket_timeout=2, blocked_connection_timeout=5)
            )
        except (AMQPError, OSError):
            return False
        connection.close()
        return True

    def close(self) -> None:
        self._keeper.close()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_S
        pause = threading.Event()
        while not condition():
            if not any(self._ask(do="state").values()) or time.monotonic() > deadline:
                raise Unavailable(f"the test nodes: not {what}; {self._printed()}", hint="look at what it printed")
            pause.wait(0.1)

    def _printed(self) -> str:
        logs = sorted(self._folder.glob("node-*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)

    def _ask(self, **asked: Any) -> dict[int, int]:
        with self._lock:
            self._keeper.sendall(json.dumps(asked).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                more = self._keeper.recv(4096)
                if not more:
                    raise ConnectionError("the keeper has gone")
                answer += more
        return {int(node): int(process) for node, process in json.loads(answer).items()}


@contextmanager
def started(count: int = 1) -> Iterator[Nodes]:
    """Nodes that may be killed, several as one cluster, for as long as the block runs. The package must be there."""
    with tempfile.TemporaryDirectory(prefix="settled-rabbitmq-", ignore_cleanup_errors=True) as parent:
        folder = Path(parent) / "nodes"
        keeper = keep(folder, 0.0, count)
        try:
            nodes = Nodes(folder)
            try:
                nodes.wait_ready()
                yield nodes
            finally:
                nodes.close()
        finally:
            keeper.terminate()
            keeper.wait(ANSWER_S)


def keep(folder: Path, patience: float, nodes: int) -> subprocess.Popen[bytes]:
    """Start a keeper for nodes in `folder`. Back when it listens."""
    folder.mkdir(parents=True)
    log = folder.with_suffix(".log")
    with log.open("wb") as file:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "settled.testing.rabbitmq_keeper", str(folder), str(patience), str(nodes)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    _KEEPERS.append(keeper)
    end = time.monotonic() + READY_S
    pause = threading.Event()
    while not (folder / "socket").exists():
        if keeper.poll() is not None or time.monotonic() > end:
            raise Unavailable(f"the test nodes did not start: {log.read_text()[-2000:]}", hint="see the message")
        pause.wait(0.05)
    return keeper


_KEEPERS: list[subprocess.Popen[bytes]] = []  # a keeper outlives who started it; it is not waited for
