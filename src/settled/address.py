"""Addresses of engines and stores, taken apart: what is no URL at all is told as any other wrong value."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from settled.errors import ContractError


def parts_of(url: str, field: str) -> SplitResult:
    """The parts of the URL. Raises ContractError for one that cannot be read; the URL may hold a password, so it is not
    in the message."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ContractError(
            f"the address cannot be read: {error}",
            field=field,
            hint="an IPv6 address stands in brackets, as in postgresql://user@[::1]:5432/database",
        ) from error
