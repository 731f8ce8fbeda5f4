"""Runs the command as people do: a process of its own, in a folder of its own, standard streams captured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CONTRACT = """\
name: OrderPlaced
transport: {topic: orders, partitions: 3, key: order_id, version: version}
delivery: {group: stock-v1, lease: 5s}
poison: {owner: orders-oncall}
"""

APP = """\
from settled import App

app = App("contract.yaml")


@app.setup
def tables(tx):
    tx.execute("CREATE TABLE IF NOT EXISTS stock (order_id TEXT, version INTEGER)")


@app.handler
def reserve(tx, record):
    tx.execute("INSERT INTO stock VALUES (?, ?)", [record.key.decode(), record.version])
"""


class Ran:
    """What a run of the command left."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code, self.raw = done.returncode, done.stdout
        self.out, self.err = done.stdout.decode(), done.stderr.decode()

    @property
    def json(self) -> Any:
        """The one JSON document on standard output."""
        document = json.loads(self.out)
        assert document["schema_version"] == 1
        return document

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def environment(**changes: str) -> dict[str, str]:
    """Ours, without settings that would steer the command."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    return {**kept, **changes}


def settled(
    folder: Path, *arguments: object, code: int | None = 0, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> Ran:
    """Run `settled ARGUMENTS` in `folder`; its exit code must be `code` (none: any)."""
    command = [sys.executable, "-m", "settled", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, input=stdin, capture_output=True, timeout=60, env=environment(**(env or {})), check=False
    )
    ran = Ran(done)
    assert code is None or ran.code == code, f"exit {ran.code}\n{ran.out}\n{ran.err}"
    assert "Traceback" not in ran.err, ran.err
    return ran


class Running:
    """A command that runs; what it says is read line by line."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        command = [sys.executable, "-m", "settled", *map(str, arguments)]
        self.process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.said.append(line)
                self._changed.notify_all()

    def wait_for(self, found: Callable[[str], bool], seconds: float = 40) -> str:
        """The first line said for which `found` holds."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(found, self.said)), seconds), "".join(self.said)
            return next(filter(found, self.said))

    def end(self, number: int | None = None) -> int:
        """Send a signal, wait for the end."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(40)
        self.close()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


def orders(count: int, versions: int = 1) -> str:
    """JSON lines: `versions` events of each of `count` orders."""
    rows = [{"order_id": f"o-{n}", "version": v, "sku": "x"} for v in range(1, versions + 1) for n in range(count)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def started(folder: Path, **files: str) -> Path:
    """The folder with the contract, the app and further files (`events_jsonl` becomes events.jsonl)."""
    for name, text in {"contract_yaml": CONTRACT, "app_py": APP, **files}.items():
        folder.joinpath(".".join(name.rsplit("_", 1))).write_text(text, encoding="utf-8")
    return folder
