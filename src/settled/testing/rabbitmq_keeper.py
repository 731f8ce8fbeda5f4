"""The process that keeps RabbitMQ nodes for tests: `python -m settled.testing.rabbitmq_keeper FOLDER SECONDS NODES`.
Several form a cluster, and a user starts all but the first. See `keeper`; an end that a user asks for is waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from settled.testing.keeper import Keeper, die_with_parent

HOST = "127.0.0.1"
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


def installed() -> Path | None:
    """The script that starts a node, none where the package is not installed."""
    found = sorted(SCRIPTS.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return found[-1] if found and shutil.which("epmd") else None


class Nodes(Keeper):
    """Nodes, and the port mapper that they find one another by."""

    stop_s = 25.0
    first_s = 60.0

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder)
        self._numbers = range(1, nodes + 1)
        self._mapper: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
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
        self.start(1)  # the others join it: its user starts them, one after the other
        ports = {str(number): port for number, (port, _) in self._ports.items()}
        (self._folder / "ports.json").write_text(json.dumps(ports))
        tool = {"nodes": self._names, "environment": {"ERL_EPMD_PORT": str(self._mapper_port), "HOME": str(home)}}
        (self._folder / "tool.json").write_text(json.dumps(tool))

    def command(self, server: int) -> dict[str, Any]:
        script = installed()
        assert script is not None
        home = self._folder / f"node-{server}"
        home.mkdir(exist_ok=True)
        (home / "plugins").write_text("[].\n")
        (home / "rabbit.conf").write_text(CONFIG + self._cluster())
        return {"args": [str(script), "-noinput"], "cwd": home, "env": self._environment(server, home)}

    def log(self, server: int) -> Path:
        return self._folder / f"node-{server}.log"

    def signal(self, server: int, number: int) -> None:
        super().signal(server, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._servers[server].wait(self.stop_s)

    def end(self) -> None:
        super().end()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait(self.stop_s)

    def _start_mapper(self) -> None:
        """Erlang's port mapper, on a port of its own: no node starts one that would outlive it."""
        self._mapper = subprocess.Popen(
            ["epmd", "-port", str(self._mapper_port), "-address", HOST],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
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


if __name__ == "__main__":
    Nodes(Path(sys.argv[1]), int(sys.argv[3])).run(float(sys.argv[2]))
