"""How a relay works: rates, bounds and delays, checked before it begins."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from settled.engine import Durability
from settled.errors import ContractError


class RelayPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a relay works.

    rate             at most so many rows a second, none: as fast as it goes; per relay
    rows, bytes      at most so much is read, and held in memory, at a time
    batch            so many rows go to the engine in one batch
    attempts         refusals after which a row is parked
    first_s, most_s  the delay after the first refusal, doubled for each further one up to `most_s`
    lease_s          how long others wait for this relay's sign of life
    poll_s           how often it looks by itself when nothing wakes it
    topics           topic of a row -> topic to publish to, where they differ
    durability       where a row must be before it is removed; none: the engine's most durable
    """

    rate: float | None = None
    rows: int = 2000
    bytes: int = 4_000_000
    batch: int = 2000
    attempts: int = 8
    first_s: float = 1.0
    most_s: float = 60.0
    lease_s: float = 10.0
    poll_s: float = 1.0
    topics: Mapping[str, str] = {}
    durability: Durability | None = None


def check(policy: RelayPolicy) -> None:
    """Raises ContractError for a policy that cannot work."""
    for name in ("rows", "bytes", "batch", "attempts", "first_s", "most_s", "lease_s", "poll_s", "rate"):
        value = getattr(policy, name)
        if value is not None and value <= 0:
            raise ContractError(f"must be above 0, not {value}", field=f"relay.{name}", value=value, hint="raise it")
