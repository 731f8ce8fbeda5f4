"""Before something that cannot be taken back: ask in a terminal, refuse without one."""

from __future__ import annotations

import sys

from settled.cli.output import say
from settled.errors import ContractError, Refused


def confirm(question: str, *, yes: bool) -> None:
    """Return when it was confirmed. Raises Refused otherwise."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("not confirmed, and there is no terminal to ask in", hint="look at it with --dry-run, add --yes")
    say(f"{question} [y/N]")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Refused("not confirmed; nothing was changed")


def required_reason(reason: str | None) -> str:
    """The reason. Raises ContractError when there is none."""
    if reason is None or not reason.strip():
        raise ContractError("a reason is needed", field="--reason", hint='add --reason "why", it is kept as evidence')
    return reason


def who() -> str:
    """The person at the keyboard, for evidence."""
    import getpass
    import socket

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
