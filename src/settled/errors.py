"""Errors say who must act: you (ContractError, InvalidMessage, Unsupported, Refused), time (Unavailable),
or nobody (Fenced). Each carries a hint, the remedy in one sentence, and the exit code the command ends with.
Adapters translate driver errors into these at their own edge; nothing above an adapter sees a driver's class.
"""

from __future__ import annotations


class SettledError(Exception):
    """The root. `hint` is what to do about it; `exit_code` is what the command exits with."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class ContractError(SettledError):
    """The contract, a setting or a call is wrong. You must change it.

    `field` is the dotted path, `value` what stood there, `line` and `column` (from 1) where in `source`.
    """

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        field: str = "",
        value: object = None,
        source: str = "",
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.field, self.value = field, value
        self.source, self.line, self.column = source, line, column

    def __str__(self) -> str:
        place = self.source
        if self.line is not None:
            place += f":{self.line}:{self.column}"
        parts = [part for part in (place, self.field, super().__str__()) if part]
        return ": ".join(parts)


class InvalidMessage(ContractError):
    """A message that cannot be stored or carried as it is; nothing of it was stored."""


class TooLarge(InvalidMessage):
    """A message above the engine's limit; both sizes are named and nothing was stored."""


class Unsupported(ContractError):
    """This engine or store cannot keep what was asked of it."""


class Refused(SettledError):
    """A guard said no: going on would break a promise. The message names the cause."""

    exit_code = 3


class HistoryLost(Refused):
    """The log or the store went back in time, or is another one than before (a restored copy, a deleted WAL)."""


class Unavailable(SettledError):
    """The engine or the store cannot be reached or written now. Time repairs it; trying again is safe."""

    exit_code = 69


class CommitUnknown(Unavailable):
    """COMMIT was sent and its answer never came. Only a look at the inbox settles what happened."""


class Fenced(SettledError):
    """Another owner has taken over. Nothing was written; stop working on this partition."""

    exit_code = 75


class Damaged(SettledError):
    """Stored bytes do not match their checksum. Reported with topic, partition and offsets; never served."""

    exit_code = 1


class Retry(Exception):
    """Raise in a handler: the record could not be settled now; try again, `after` seconds from now if given."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Reject(Exception):
    """Raise in a handler: this record can never be settled; quarantine it at once with this reason."""
