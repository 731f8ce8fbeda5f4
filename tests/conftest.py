"""Fixtures for all tests. The folder of this file is on the import path: `from waiting import until`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from settled.testing.engine_tools import names


@pytest.fixture(autouse=True)
def plain_names() -> Iterator[None]:
    """Names that a test took for itself are not another's."""
    yield
    names.plain()
