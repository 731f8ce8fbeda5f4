"""Nodes that tests may harm, started once; each test that asks for them finds all of them up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from settled.testing import rabbitmq
from settled.testing.rabbitmq import Nodes


@pytest.fixture(scope="session")
def one() -> Iterator[Nodes]:
    with rabbitmq.own_nodes() as found:
        yield found


@pytest.fixture(scope="session")
def three() -> Iterator[Nodes]:
    with rabbitmq.own_nodes(3) as found:
        yield found


@pytest.fixture
def node(one: Nodes) -> Nodes:
    one.wait_ready()
    return one


@pytest.fixture
def cluster(three: Nodes) -> Nodes:
    three.wait_ready()
    return three
