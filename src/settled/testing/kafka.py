"""A real Kafka cluster for tests: the one that SETTLED_TEST_KAFKA names, or three brokers that the tests start.

All test processes of a user share one; each test has topics and groups of its own (`unique`). A test that harms brokers
starts its own: `with own_cluster() as cluster`.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from settled.errors import Unavailable, Unsupported
from settled.testing.kafka_cluster import Cluster, shared, started

VARIABLE = "SETTLED_TEST_KAFKA"


def bootstrap() -> str:
    """`host:port,...` of a cluster on which topics may be made. Skips the test where there is none, fails in CI."""
    return os.environ.get(VARIABLE) or cluster().bootstrap


@functools.cache
def cluster() -> Cluster:
    """The shared cluster, held until this process ends. Skips the test where there is none, fails in CI."""
    try:
        return shared()
    except (Unsupported, Unavailable) as absent:
        _absent(absent)


@contextmanager
def own_cluster() -> Iterator[Cluster]:
    """A cluster whose brokers may be killed. Skips the test where there is none, fails in CI."""
    opening = started()
    try:
        opened = opening.__enter__()
    except (Unsupported, Unavailable) as absent:
        _absent(absent)
    try:
        yield opened
    finally:
        opening.__exit__(None, None, None)


def unique(name: str) -> str:
    """A name that no other test uses, for a topic or a group."""
    return f"{name}-{uuid.uuid4().hex[:12]}"


def _absent(why: Exception) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"no Kafka: {why}")
    pytest.skip(f"no Kafka: {why}")
