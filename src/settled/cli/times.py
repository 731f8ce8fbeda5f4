"""Times and sizes as people read them."""

from __future__ import annotations

from datetime import datetime

from settled.errors import ContractError


def at(us: int | None) -> str:
    """A moment in UTC, to the millisecond; empty for none."""
    if us is None:
        return ""
    from settled.record import from_us

    return from_us(us).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str, field: str = "--from-time") -> int:
    """Microseconds since 1970 of an ISO 8601 time with its zone. Raises ContractError."""
    from settled.record import to_us

    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ContractError(
            f"{text!r} is not a time with its zone",
            field=field,
            value=text,
            hint="write it as 2030-01-31T12:00:00Z",
        )
    return to_us(found)


def age(seconds: float | None) -> str:
    """A span: 0.4 s, 12 s, 5 min, 3.2 h, 2.1 d; empty for none."""
    if seconds is None:
        return ""
    for limit, unit, words in ((60, 1, "s"), (3600, 60, "min"), (86_400 * 2, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.1f} {words}" if value < 10 else f"{value:.0f} {words}"
    return f"{seconds / 86_400:.1f} d"


def size(count: float | None) -> str:
    """Bytes: 512 B, 14.2 kB, 3.0 MB; empty for none."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
