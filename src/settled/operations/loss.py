"""Going on with a log that went back in time, knowingly: every partition continues above all that was ever given."""

from __future__ import annotations

from settled.engines.sqlite import LossAccepted, accept_loss
from settled.errors import ContractError
from settled.store import Store


def highest_frontier(store: Store | None) -> int:
    """The highest offset that a consumer has settled, -1 if none: the log must continue above it."""
    if store is None:
        return -1
    return max((position.frontier - 1 for _, position in store.positions()), default=-1)


def accept(url: str, store: Store | None, *, reason: str) -> LossAccepted:
    """Durable when it returns. Only the embedded engine's logs can be told this."""
    require_embedded(url)
    return accept_loss(url, reason, above=highest_frontier(store))


def require_embedded(url: str) -> None:
    """Raises ContractError for another engine's address."""
    if not url.startswith("sqlite:"):
        raise ContractError(
            "only the embedded log can be told to accept a loss", field="--engine", hint="use the broker's own tools"
        )
