"""What a queue is asked about one message: not before when, how urgent, whose. It travels in three headers, so that it
survives outbox, relay, redrive and every engine as it is; engines that have no queue form carry them and obey none.

settled-not-before   RFC 3339 in UTC with microseconds, e.g. 2030-01-31T12:00:00.000000Z; judged by the engine's clock
settled-priority     0 to 9 in ASCII, higher first; 4 unless stated
settled-tenant       whose work it is: ready work of all tenants is taken in turn
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from settled.errors import InvalidMessage
from settled.record import Headers, from_us, to_us

NOT_BEFORE, PRIORITY, TENANT = "settled-not-before", "settled-priority", "settled-tenant"
NAMES = frozenset({NOT_BEFORE, PRIORITY, TENANT})
USUAL = 4
HIGHEST = 9
MAX_TENANT_BYTES = 200


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a message asks. `due_us`: microseconds since 1970 in UTC, 0: at once."""

    due_us: int = 0
    priority: int = USUAL
    tenant: bytes = b""


NOTHING = Asked()


def headers(
    *, not_before: datetime | None = None, priority: int | None = None, tenant: bytes | str | None = None
) -> Headers:
    """The headers that ask for it; none for what is not given. A time in the past means at once, `datetime.max` never
    comes. Raises InvalidMessage for a time without a zone, a priority out of range, a tenant that is too long."""
    found: list[tuple[str, bytes | None]] = []
    if not_before is not None:
        found.append((NOT_BEFORE, _moment(not_before).encode()))
    if priority is not None:
        if type(priority) is not int or not 0 <= priority <= HIGHEST:
            raise _bad("priority", priority, f"is not from 0 to {HIGHEST}", f"give a whole number, {USUAL} is usual")
        found.append((PRIORITY, str(priority).encode()))
    if tenant is not None:
        found.append((TENANT, tenant.encode() if isinstance(tenant, str) else tenant))
    asked(tuple(found))
    return tuple(found)


def asked(found: Headers) -> Asked:
    """What headers ask for. The last of a name counts. Raises InvalidMessage naming the header that says nothing."""
    if not found:
        return NOTHING
    stated = {name: value for name, value in found if name in NAMES}
    if not stated:
        return NOTHING
    due_us, priority, tenant = 0, USUAL, b""
    if NOT_BEFORE in stated:
        due_us = _due(stated[NOT_BEFORE])
    if PRIORITY in stated:
        value = stated[PRIORITY]
        if value is None or len(value) != 1 or not value.isdigit():
            raise _bad(PRIORITY, value, f"is not from 0 to {HIGHEST}", "write one digit in ASCII")
        priority = int(value)
    if TENANT in stated:
        tenant = stated[TENANT] or b""
        if len(tenant) > MAX_TENANT_BYTES:
            raise _bad(TENANT, tenant, f"has {len(tenant)} bytes", f"name tenants in at most {MAX_TENANT_BYTES} bytes")
    return Asked(due_us, priority, tenant)


def _moment(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise _bad(
            "not_before", moment, "has no zone: whose local time it is cannot be known", "give an aware datetime"
        )
    try:
        utc = moment.astimezone(UTC)
    except OverflowError:  # an offset carries it out of the calendar
        utc = (datetime.max if moment.year > 5000 else datetime.min).replace(tzinfo=UTC)
    return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _due(value: bytes | None) -> int:
    try:
        moment = datetime.fromisoformat((value or b"").decode("ascii"))
    except ValueError:
        raise _bad(NOT_BEFORE, value, "is no time", "write it as 2030-01-31T12:00:00.000000Z") from None
    if moment.tzinfo is None:
        raise _bad(NOT_BEFORE, value, "has no zone", "write it in UTC, with a Z at the end")
    try:
        return max(0, to_us(moment))
    except OverflowError:
        return to_us((datetime.max if moment.year > 5000 else from_us(0)).replace(tzinfo=UTC))


def _bad(field: str, value: object, what: str, remedy: str) -> InvalidMessage:
    return InvalidMessage(f"{field} {value!r} {what}", field=field, value=value, hint=remedy)
