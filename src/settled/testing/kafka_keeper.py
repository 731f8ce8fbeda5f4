"""The process that keeps a test cluster: `python -m settled.testing.kafka_keeper FOLDER SECONDS`. See `keeper`."""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

from settled.testing.kafka_jars import formatted, jars, java
from settled.testing.kafka_settings import BROKERS, HEAP, LOGGING, Ports, free_ports, properties
from settled.testing.keeper import Keeper


class Brokers(Keeper):
    """Three brokers."""

    def prepare(self) -> None:
        ports = free_ports()
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        (self._folder / "log4j2.yaml").write_text(LOGGING)
        for broker in BROKERS:
            self._lay_out(broker, ports, identity)
        for broker in BROKERS:
            self.start(broker)
        told = {str(each): [getattr(own, name) for name in Ports.__slots__] for each, own in ports.items()}
        (self._folder / "ports.json").write_text(json.dumps(told))

    def command(self, server: int) -> dict[str, Any]:
        logging = f"-Dlog4j2.configurationFile={self._folder}/log4j2.yaml"
        command = [java(), *HEAP, logging, "-cp", f"{jars()}/*", "kafka.Kafka"]
        return {"args": [*command, f"{self._folder}/broker-{server}.properties"], "cwd": self._folder}

    def log(self, server: int) -> Path:
        return self._folder / f"broker-{server}.log"

    def _lay_out(self, broker: int, ports: dict[int, Ports], identity: str) -> None:
        """The broker's properties and its formatted storage, with a name of its own."""
        storage = self._folder / f"broker-{broker}"
        shutil.copytree(formatted(properties(broker, ports, "{storage}")), storage)
        directory = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        lines = ("version=1", f"cluster.id={identity}", f"node.id={broker}", f"directory.id={directory}")
        (storage / "meta.properties").write_text("\n".join(lines) + "\n")
        (self._folder / f"broker-{broker}.properties").write_text(properties(broker, ports, str(storage)))


if __name__ == "__main__":
    Brokers(Path(sys.argv[1])).run(float(sys.argv[2]))
