"""From a URL to an engine or a store. Drivers of what is not asked for are never imported."""

from __future__ import annotations

import importlib
from typing import Any

from settled.address import parts_of
from settled.engine import Capabilities, Engine
from settled.errors import ContractError, Unsupported
from settled.store import Store

_ENGINES = {
    "sqlite": ("settled.engines.sqlite", "SqliteEngine", ""),
    "kafka": ("settled.engines.kafka", "KafkaEngine", "kafka"),
    "rabbitmq": ("settled.engines.rabbitmq", "RabbitEngine", "rabbitmq"),
    "rabbitmqs": ("settled.engines.rabbitmq", "RabbitEngine", "rabbitmq"),
}
_STORES = {
    "sqlite": ("settled.stores.sqlite", "SqliteStore", ""),
    "postgresql": ("settled.stores.postgres", "PostgresStore", "postgres"),
    "postgres": ("settled.stores.postgres", "PostgresStore", "postgres"),
}


def engine(url: str) -> Engine:
    """Open the log engine at `url`: sqlite:///orders.db (relative), sqlite:////var/lib/orders.db, kafka://host:port,
    rabbitmq://host:port/vhost.

    Raises ContractError for a URL that no engine takes, Unsupported when its extra is not installed, Unavailable,
    HistoryLost.
    """
    found: Engine = _adapter("engine", url, _ENGINES)(url)
    return found


def kind(url: str) -> tuple[str, Capabilities]:
    """The name of the engine that takes the URL, and what it can keep. Opens nothing; raises as `require_engine`."""
    found = _adapter("engine", url, _ENGINES)
    by_url = getattr(found, "capabilities_at", None)
    return found.name, found.capabilities if by_url is None else by_url(url)


def require_engine(url: str) -> None:
    """Raises as `engine` does for a URL that none takes, or whose extra is not installed; opens nothing."""
    _adapter("engine", url, _ENGINES)


def store(url: str) -> Store:
    """Open the effect store at `url`: sqlite:///effects.db or postgresql://user@host/database.

    Raises as `engine` does; Refused for a schema newer than this release.
    """
    found: Store = _adapter("store", url, _STORES)(url)
    return found


def _adapter(kind: str, url: str, known: dict[str, tuple[str, str, str]]) -> Any:
    scheme = parts_of(url, kind).scheme
    if scheme not in known:
        raise ContractError(
            f"no {kind} takes a URL that begins with {scheme or url.split(':')[0]!r}",
            field=kind,
            value=scheme,
            hint=f"use one of {', '.join(sorted(f'{name}:' for name in known))}",
        )
    module, name, extra = known[scheme]
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("settled"):
            raise
        raise Unsupported(
            f"{scheme} needs the package {error.name}", field=kind, hint=f"pip install 'settled[{extra}]'"
        ) from error
