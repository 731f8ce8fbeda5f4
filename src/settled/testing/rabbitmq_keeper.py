"""The process that keeps RabbitMQ nodes for tests: `python -m settled.testing.rabbitmq_keeper FOLDER SECONDS NODES`.

It starts the nodes (several form a cluster), does what its users ask, and ends the nodes and itself when nobody has
used it for so many seconds. A user is who holds a connection to FOLDER/socket, so one that is killed is noticed too;
nodes and their port mapper die with the keeper. Questions and answers are lines of JSON:
{"do": "start" | "signal" | "state", "node": N, "signal": N}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
STOP_S = 25.0
FIRST_USER_S = 60.0
DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG
SCRIPTS = Path("/usr/lib/rabbitmq/lib")  # where Debian's package has them

CONFIG = """\
cluster_name = settled-tests
loopback_users = none
log.console.level = warning
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 1MB
collect_statistics_interval = 60000
"""
ERLANG = (
    "-kernel inet_dist_use_interface {127,0,0,1} -kernel net_ticktime 8 +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
)


def main() -> None:
    folder, patience, nodes = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    keeper = Keeper(folder, nodes)
    try:
        keeper.begin()
        keeper.serve(patience)
    finally:
        keeper.end()


def server() -> Path | None:
    """The script that starts a node, none where the package is not installed."""
    found = sorted(SCRIPTS.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return found[-1] if found and shutil.which("epmd") else None


class Keeper:
    """One thread. Nodes are its children; their records and logs are in `folder`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder
        self._numbers = range(1, nodes + 1)
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._users: dict[socket.socket, bytes] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._mapper: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Lay out the folder, start all nodes, then listen."""
        free = _free_ports(1 + 2 * len(self._numbers))
        self._mapper_port = free.pop()
        self._ports = {number: (free.pop(), free.pop()) for number in self._numbers}
        self._names = {number: f"settled-{number}-{uuid.uuid4().hex[:6]}@localhost" for number in self._numbers}
        home = self._folder / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(uuid.uuid4().hex)
        cookie.chmod(0o400)
        self._start_mapper()
        self._start(1)  # the others join it: its user starts them, one after the other
        ports = {str(number): port for number, (port, _) in self._ports.items()}
        (self._folder / "ports.json").write_text(json.dumps(ports))
        tool = {"nodes": self._names, "environment": {"ERL_EPMD_PORT": str(self._mapper_port), "HOME": str(home)}}
        (self._folder / "tool.json").write_text(json.dumps(tool))
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
            for node in self._nodes.values():
                node.poll()
            last = time.monotonic() if self._users else min(last, time.monotonic())

    def end(self) -> None:
        """Nobody can come any more; end the nodes, remove the folder."""
        with contextlib.suppress(OSError):
            (self._folder / "socket").unlink(missing_ok=True)
        self._listener.close()
        children = [*self._nodes.values(), *([self._mapper] if self._mapper is not None else [])]
        for child in children:
            if child.poll() is None:
                child.kill()
        for child in children:
            child.wait(STOP_S)
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
        """The process of each node, 0 for one that does not run, when what was asked is done; an end is waited for."""
        if asked["do"] == "start":
            self._start(asked["node"])
        elif asked["do"] == "signal":
            node = self._nodes[asked["node"]]
            node.send_signal(asked["signal"])
            if asked["signal"] in (signal.SIGKILL, signal.SIGTERM):
                node.wait(STOP_S)
        return {str(each): 0 if node.poll() is not None else node.pid for each, node in self._nodes.items()}

    def _start_mapper(self) -> None:
        """Erlang's port mapper, on a port of its own: no node starts one that would outlive it."""
        self._mapper = subprocess.Popen(
            ["epmd", "-port", str(self._mapper_port), "-address", HOST],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )

    def _start(self, number: int) -> None:
        if number in self._nodes and self._nodes[number].poll() is None:
            return
        script = server()
        assert script is not None
        home = self._folder / f"node-{number}"
        home.mkdir(exist_ok=True)
        (home / "plugins").write_text("[].\n")
        (home / "rabbit.conf").write_text(CONFIG + self._cluster())
        with (self._folder / f"node-{number}.log").open("ab") as log:
            self._nodes[number] = subprocess.Popen(
                [str(script), "-noinput"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=home,
                env=self._environment(number, home),
                preexec_fn=_die_with_parent,
            )

    def _environment(self, number: int, home: Path) -> dict[str, str]:
        port, distribution = self._ports[number]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return {
            **kept,
            "HOME": str(self._folder / "home"),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the node, instead of waiting for it
            "RABBITMQ_NODENAME": self._names[number],
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(home / "rabbit"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG,
        }

    def _cluster(self) -> str:
        if len(self._names) == 1:
            return ""
        lines = ["cluster_formation.peer_discovery_backend = classic_config"]
        lines += [f"cluster_formation.classic_config.nodes.{n} = {name}" for n, name in self._names.items()]
        return "\n".join(lines) + "\n"


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the system gives to outgoing connections."""
    found: list[int] = []
    chance = random.SystemRandom()
    while len(found) < count:
        port = chance.randrange(12_000, 32_000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind((HOST, port))
            found += [port] if port not in found else []
    return found


def _die_with_parent() -> None:
    """In the child: the system kills it when the keeper dies (Linux; elsewhere only a killed keeper leaves nodes)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


if __name__ == "__main__":
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    main()
