"""What the shared parts of the stores run their SQL through. One dialect: `?` for a parameter, tables `settled_name`;
each store writes it in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, Protocol


class Statements(Protocol):
    """A connection inside a transaction of settled's own. Raises the driver's errors; its user translates them."""

    for_update: str  # what a SELECT ends with to keep the rows it read from changing, or nothing

    def run(self, sql: str, params: Any = ()) -> Any: ...

    def all(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        """Run a query and take all of its rows."""
        ...

    def run_many(self, sql: str, rows: Iterable[Any]) -> None: ...

    def now(self) -> int:
        """The store's clock, microseconds since 1970 in UTC."""
        ...


def holders(values: Sized) -> str:
    """As many `?` as there are values."""
    return ",".join("?" * len(values))
