"""Fixtures for all tests. The folder of this file is on the import path: `from waiting import until`."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from settled.testing.engine_tools import names

BROKERS = ("kafka", "rabbitmq")  # as groups of tests begin whose brokers are real, and harmed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Brokers on two cores elect, forget and stand still in their own time: such a test that fails is run once more,
    and the summary says so. One that fails twice has failed."""
    for item in items:
        if _harms_brokers(item):
            item.add_marker(pytest.mark.flaky(reruns=1))


def _harms_brokers(item: pytest.Item) -> bool:
    group = item.get_closest_marker("xdist_group")
    return group is not None and str(group.args[0]).startswith(BROKERS)


@pytest.fixture(autouse=True)
def leaves_nothing_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """A connection that such a test leaves open is found now, and not in whichever test the next collection falls."""
    yield
    if _harms_brokers(request.node):
        gc.collect()


@pytest.fixture(autouse=True)
def plain_names() -> Iterator[None]:
    """Names that a test took for itself are not another's."""
    yield
    names.plain()
