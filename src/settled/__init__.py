"""settled: a runtime for durable messaging whose unit of progress is the durable effect.

The names below are imported at first use, so that `import settled` (and `settled --help`) costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from settled import inbox, outbox
    from settled.app import App
    from settled.calls import external
    from settled.errors import (
        CommitUnknown,
        ContractError,
        Damaged,
        Fenced,
        HistoryLost,
        InvalidMessage,
        Refused,
        Reject,
        Retry,
        SettledError,
        TooLarge,
        Unavailable,
        Unsupported,
    )
    from settled.newer import apply_if_newer
    from settled.outcome import Outcome
    from settled.record import Message, Record
    from settled.store import Tx
    from settled.tokens import NotYet, Visible, read_your_writes, wait

__all__ = [
    "App",
    "CommitUnknown",
    "ContractError",
    "Damaged",
    "Fenced",
    "HistoryLost",
    "InvalidMessage",
    "Message",
    "NotYet",
    "Outcome",
    "Record",
    "Refused",
    "Reject",
    "Retry",
    "SettledError",
    "TooLarge",
    "Tx",
    "Unavailable",
    "Unsupported",
    "Visible",
    "apply_if_newer",
    "external",
    "inbox",
    "outbox",
    "read_your_writes",
    "wait",
]

_MODULES = frozenset({"inbox", "outbox"})  # names that are modules
_ROOMS = {
    "App": "settled.app",
    "Outcome": "settled.outcome",
    "Message": "settled.record",
    "Record": "settled.record",
    "Tx": "settled.store",
    "NotYet": "settled.tokens",
    "apply_if_newer": "settled.newer",
    "external": "settled.calls",
    "Visible": "settled.tokens",
    "read_your_writes": "settled.tokens",
    "wait": "settled.tokens",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'settled' has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"settled.{name}")
    value = getattr(importlib.import_module(_ROOMS.get(name, "settled.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
