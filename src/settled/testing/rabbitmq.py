"""Real RabbitMQ nodes for tests: the one that SETTLED_TEST_RABBITMQ names, or one that the tests start from Debian's
package `rabbitmq-server`. All test processes of a user share it; each test has queues of its own (`unique`). A test
that harms nodes starts its own: `with own_nodes() as nodes`, or `own_nodes(3)` for a cluster.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from settled.errors import Unavailable
from settled.testing.kafka_jars import locked
from settled.testing.keeper import PATIENCE_S
from settled.testing.rabbitmq_keeper import HOST, installed
from settled.testing.rabbitmq_nodes import Nodes, keep, started

__all__ = ["HOST", "VARIABLE", "Nodes", "own_nodes", "shared", "unique", "url"]

VARIABLE = "SETTLED_TEST_RABBITMQ"


def url() -> str:
    """The URL of a node on which queues may be made. Skips the test where there is none, fails in CI."""
    return os.environ.get(VARIABLE) or shared().url


@functools.cache
def shared() -> Nodes:
    """The node that all processes of this user share, held until this process ends."""
    _require_package()
    home = Path(tempfile.gettempdir()) / f"settled-rabbitmq-{os.getuid()}"
    with locked(home / "lock"):
        place = home / "shared"
        with contextlib.suppress(OSError, Unavailable):
            found = Nodes(Path(place.read_text()))
            try:
                found.wait_ready()
            except BaseException:
                found.close()
                raise
            return found
        folder = Path(tempfile.mkdtemp(prefix="node-", dir=home)) / "nodes"
        keep(folder, PATIENCE_S, 1)
        place.write_text(str(folder))
        found = Nodes(folder)
        found.wait_ready()
        return found


@contextmanager
def own_nodes(count: int = 1) -> Iterator[Nodes]:
    """Nodes that may be killed. Skips the test where there is no package, fails in CI."""
    _require_package()
    with started(count) as nodes:
        yield nodes


def unique(name: str) -> str:
    """A name that no other test uses, for a topic or a group."""
    return f"{name}-{uuid.uuid4().hex[:12]}"


def _require_package() -> None:
    if installed() is None:
        _absent("install rabbitmq-server")


def _absent(why: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"no RabbitMQ: {why} or set {VARIABLE}")
    pytest.skip(f"no RabbitMQ: {why} or set {VARIABLE}")
