from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from relay_bench import RelayBench
from shop import Shop

from settled.testing.postgres import database


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path)
    yield found
    found.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RelayBench]:
    with ExitStack() as opened:
        url = f"sqlite:///{tmp_path}/effects.db" if request.param == "sqlite" else opened.enter_context(database())
        yield RelayBench(tmp_path, url, opened)


@pytest.fixture
def on_postgres(tmp_path: Path) -> Iterator[RelayBench]:
    with ExitStack() as opened:
        yield RelayBench(tmp_path, opened.enter_context(database()), opened)
