from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path)
    yield found
    found.close()
