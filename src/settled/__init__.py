"""settled: a runtime for durable messaging whose unit of progress is the durable effect."""

from settled.app import App
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
from settled.outcome import Outcome
from settled.record import Message, Record
from settled.store import Tx

__all__ = [
    "App",
    "CommitUnknown",
    "ContractError",
    "Damaged",
    "Fenced",
    "HistoryLost",
    "InvalidMessage",
    "Message",
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
]
