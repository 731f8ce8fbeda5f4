"""RabbitMQ nodes of one's own, from Debian's package `rabbitmq-server`: started, killed, asked. `rabbitmq` has them for
tests, the drills for themselves.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from settled.errors import Unavailable
from settled.testing import keeper
from settled.testing.keeper import ANSWER_S, User
from settled.testing.rabbitmq_keeper import HOST, installed

READY_S = 120.0


class Nodes:
    """A user of the nodes that a keeper keeps in `folder`; close it. Any thread.

    ports   where each node listens for clients, by its number from 1
    names   what each is called among the nodes, from the first on
    """

    def __init__(self, folder: Path) -> None:
        """Raises OSError where there is no keeper."""
        self._user = User(folder)
        self._folder = folder
        told = json.loads((folder / "ports.json").read_text())
        self.ports: dict[int, int] = {int(number): port for number, port in told.items()}
        names = json.loads((folder / "tool.json").read_text())["nodes"]
        self.names: list[str] = [names[str(number)] for number in sorted(self.ports)]

    @property
    def url(self) -> str:
        return f"rabbitmq://guest:guest@{','.join(f'{HOST}:{port}' for port in self.ports.values())}/"

    def kill(self, node: int = 1) -> None:
        """SIGKILL; back when it is dead."""
        self._user.signal(node, signal.SIGKILL)

    def stop(self, node: int = 1) -> None:
        """SIGTERM; back when it has ended in good order. A queue made in the seconds before a kill of the only node may
        not come back."""
        self._user.signal(node, signal.SIGTERM)

    def remember(self) -> None:
        """Have each node write down which queues and streams it takes part in; a node does so some time after they are
        made, and one that is killed before takes no part any more when it is back (the streams' coordinator above all).
        """
        for node in self.ports:
            self.ctl("eval", "[ok = dets:sync(Table) || Table <- dets:all()].", node=node)

    def ctl(self, *words: str, node: int = 1) -> str:
        """Run rabbitmqctl on a node; what it prints."""
        tool = json.loads((self._folder / "tool.json").read_text())
        script = installed()
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
        self._user.start(node)

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
        self._user.close()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_S
        pause = threading.Event()
        while not condition():
            if not any(self._user.processes().values()) or time.monotonic() > deadline:
                raise Unavailable(f"the test nodes: not {what}; {self._user.printed()}", hint="look at what it printed")
            pause.wait(0.1)


@contextmanager
def started(count: int = 1) -> Iterator[Nodes]:
    """Nodes that may be killed, several as one cluster, for as long as the block runs. The package must be there."""
    with tempfile.TemporaryDirectory(prefix="settled-rabbitmq-", ignore_cleanup_errors=True) as parent:
        folder = Path(parent) / "nodes"
        process = keep(folder, 0.0, count)
        try:
            nodes = Nodes(folder)
            try:
                nodes.wait_ready()
                yield nodes
            finally:
                nodes.close()
        finally:
            process.terminate()
            process.wait(ANSWER_S)


def keep(folder: Path, patience: float, nodes: int) -> subprocess.Popen[bytes]:
    """Start a keeper for nodes in `folder`. Back when it listens."""
    return keeper.keep("settled.testing.rabbitmq_keeper", folder, patience, str(nodes), ready_s=READY_S)
