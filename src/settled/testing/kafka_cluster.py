"""A real Kafka cluster of three brokers on loopback, to be ill-treated: killed, stopped, suspended, started again.

    with started() as cluster:                      # one's own
        cluster.kill(cluster.leader("orders", 0))

`shared()` is one per user of the machine, started by whoever comes first and ended after the last has gone; its brokers
are not to be harmed. Java and Maven are needed (`kafka_jars`); `python -m settled.testing.kafka_cluster` runs a shared
one by hand until it is interrupted.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

from settled.errors import Refused, Unavailable
from settled.testing import keeper
from settled.testing.kafka_jars import formatted, locked
from settled.testing.kafka_settings import (
    BROKERS,
    HOST,
    LIMITED_PASSWORD,
    LIMITED_USER,
    Ports,
    free_ports,
    properties,
)
from settled.testing.keeper import ANSWER_S, PATIENCE_S, User

READY_S = 90.0


class Cluster:
    """A user of the cluster that a keeper keeps in `folder`; close it. Any thread.

    bootstrap           where clients begin: host:port,host:port,host:port
    proxied_bootstrap   the same brokers by way of proxies on `proxy_ports`; nobody listens there unless you do
    limited             librdkafka settings of a user (SASL PLAIN) who has no rights at all
    """

    def __init__(self, folder: Path, *, own: bool) -> None:
        self.own = own
        try:
            self._user = User(folder)
            told = json.loads((folder / "ports.json").read_text())
        except OSError as error:
            raise Unavailable("the keeper of the test cluster has gone", hint="start another") from error
        self._folder = folder
        self._ports = {int(broker): Ports(*ports) for broker, ports in told.items()}
        self.bootstrap = ",".join(f"{HOST}:{each.client}" for each in self._ports.values())
        self.proxied_bootstrap = ",".join(f"{HOST}:{each.proxy}" for each in self._ports.values())
        self.proxy_ports = {each.proxy: (HOST, each.proxied) for each in self._ports.values()}  # from here to there
        self.limited = {
            "bootstrap.servers": ",".join(f"{HOST}:{each.limited}" for each in self._ports.values()),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": LIMITED_USER,
            "sasl.password": LIMITED_PASSWORD,
        }

    @contextmanager
    def proxy_ports_held(self) -> Iterator[None]:
        """While the block runs, nobody else who asks so may listen on `proxy_ports`."""
        with locked(self._folder / "proxies"):
            yield

    def processes(self) -> dict[int, int]:
        """The process of each broker; 0 where it does not run."""
        return self._user.processes()

    def kill(self, broker: int) -> None:
        """End it as a crash would. Back when it has ended."""
        self._signal(broker, signal.SIGKILL)
        self._until(lambda: not self.processes()[broker], READY_S, f"broker {broker} did not die")

    def stop(self, broker: int) -> None:
        """Let it hand over its partitions and end. Back when it has ended."""
        self._signal(broker, signal.SIGTERM)
        self._until(lambda: not self.processes()[broker], READY_S, f"broker {broker} did not stop")

    def suspend(self, broker: int) -> None:
        self._signal(broker, signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        self._signal(broker, signal.SIGCONT)

    def start(self, broker: int) -> None:
        """Start it again where it does not run; `wait_ready` waits for it."""
        self._harm()
        self._user.start(broker)

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads the partition now; -1 while there is none."""
        found = self._partition(topic, partition)
        return -1 if found is None else int(found.leader)

    def in_sync(self, topic: str, partition: int) -> set[int]:
        """The brokers that hold all of it."""
        found = self._partition(topic, partition)
        return set() if found is None else set(found.isrs)

    def _partition(self, topic: str, partition: int) -> Any:
        """As a broker tells it; none where that one does not know the topic yet."""
        there = _admin(self.bootstrap).list_topics(topic, timeout=ANSWER_S).topics.get(topic)
        return None if there is None else there.partitions.get(partition)

    def wait_ready(self, seconds: float = READY_S) -> None:
        """Until all three brokers run, answer, and hold all of every partition. Raises Unavailable with what they
        printed last."""
        self._until(self._ready, seconds, "the cluster is not ready")

    def close(self) -> None:
        """No longer use it. The keeper ends a cluster that nobody uses."""
        self._user.close()

    def _ready(self) -> bool:
        from confluent_kafka import KafkaException

        if not all(self.processes().values()):
            raise Unavailable(f"a broker ended by itself: {self._user.printed()}", hint="look at what it printed")
        try:
            for own in self._ports.values():  # a new client asks the broker that it is given
                told = _admin(f"{HOST}:{own.client}").list_topics(timeout=2.0)
                partitions = [each for topic in told.topics.values() for each in topic.partitions.values()]
                if len(told.brokers) < len(BROKERS):
                    return False
                if any(set(each.isrs) != set(each.replicas) or each.leader < 0 for each in partitions):
                    return False
        except KafkaException:
            return False
        return True

    def _signal(self, broker: int, number: signal.Signals) -> None:
        self._harm()
        self._user.signal(broker, number)

    def _harm(self) -> None:
        if not self.own:
            raise Refused("others use this cluster", hint="harm a cluster of your own: `with started() as cluster`")

    def _until(self, reached: Callable[[], bool], seconds: float, failure: str) -> None:
        end = time.monotonic() + seconds
        pause = threading.Event()
        while not reached():
            if time.monotonic() > end:
                raise Unavailable(f"{failure} in {seconds:g} s: {self._user.printed()}", hint="look at what it printed")
            pause.wait(0.05)


@contextmanager
def started() -> Iterator[Cluster]:
    """A cluster of one's own while the block runs, ready to be used. Raises Unsupported without Java or Maven."""
    with tempfile.TemporaryDirectory(prefix="settled-kafka-", ignore_cleanup_errors=True) as parent:
        folder = Path(parent) / "cluster"
        process = _keep(folder, 0.0)
        try:
            cluster = Cluster(folder, own=True)
            try:
                cluster.wait_ready()
                yield cluster
            finally:
                cluster.close()
        finally:
            process.terminate()
            process.wait(ANSWER_S)


def shared() -> Cluster:
    """The cluster that all processes of this user share; close it. Raises Unsupported without Java or Maven."""
    home = Path(tempfile.gettempdir()) / f"settled-kafka-{os.getuid()}"
    with locked(home / "lock"):
        place = home / "shared"
        with contextlib.suppress(OSError, Unavailable):
            cluster = Cluster(Path(place.read_text()), own=False)
            cluster.wait_ready()
            return cluster
        folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=home)) / "cluster"
        _keep(folder, PATIENCE_S)
        place.write_text(str(folder))
        cluster = Cluster(folder, own=False)
        cluster.wait_ready()
        return cluster


def _keep(folder: Path, patience: float) -> subprocess.Popen[bytes]:
    """Start a keeper for a cluster in `folder`. Back when it listens."""
    formatted(properties(BROKERS[0], free_ports(), "{storage}"))  # what can be missing is missed here
    return keeper.keep("settled.testing.kafka_keeper", folder, patience, ready_s=READY_S)


def _admin(bootstrap: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 5000})


def main() -> None:
    cluster = shared()
    print(cluster.bootstrap, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    cluster.close()


if __name__ == "__main__":
    main()
