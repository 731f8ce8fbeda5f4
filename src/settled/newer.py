"""Versioned writes: what competing consumers need in the effect's own table, where no order of events protects it.

    settled.apply_if_newer(tx, table="price", key={"sku": "lamp"}, version=7, values={"euros": 30})

One statement; the row's version decides, whoever comes first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from settled.callers import caller_of, quoted
from settled.delivery.binding import AsyncTx
from settled.errors import ContractError
from settled.store import Tx

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}\Z")


def apply_if_newer(
    tx: Any,
    *,
    table: str,
    key: Mapping[str, Any],
    version: int,
    values: Mapping[str, Any],
    version_column: str = "version",
) -> Any:
    """Insert the row, or update it if its version is below this one (or none). True: it was written; False: the table
    holds this version or a newer one, and nothing was changed.

    `tx` is a handler's, or any connection or session that `settled.inbox` takes, in a transaction; where it is
    asynchronous, await the answer. `key` are the columns of a primary key or unique constraint. `table` may be
    `schema.table`. Names are quoted as they are given, so on PostgreSQL write them in the case that the table has.

    Raises ContractError for a name or version that cannot be one, Refused without an open transaction.
    """
    names = (*key, version_column, *values)
    sql = _statement(table, tuple(key), version_column, tuple(values))
    if len(set(names)) != len(names):
        raise ContractError(f"a column is named twice: {', '.join(names)}", field="values", hint="name each once")
    if type(version) is not int or not -(2**63) <= version < 2**63:
        raise ContractError(f"version must be an integer of 64 bits, not {version!r}", field="version", value=version)
    params = (*key.values(), version, *values.values())
    if isinstance(tx, AsyncTx):
        return _in_tx_async(tx, sql, params)
    if _is_tx(tx):
        return bool(tx.execute(sql if tx.dialect == "sqlite" else sql.replace("?", "%s"), params).fetchall())
    caller = caller_of(tx)
    if caller.asynchronous:
        return _in_caller_async(caller, sql, params)
    caller.check()
    return bool(caller.run(sql, params))


async def _in_tx_async(tx: AsyncTx, sql: str, params: tuple[Any, ...]) -> bool:
    found = await tx.execute(sql if tx.dialect == "sqlite" else sql.replace("?", "%s"), params)
    return bool(found.fetchall())


async def _in_caller_async(caller: Any, sql: str, params: tuple[Any, ...]) -> bool:
    await caller.acheck()
    return bool(await caller.arun(sql, params))


def _is_tx(tx: Any) -> TypeGuard[Tx]:
    return hasattr(tx, "at_hand") and hasattr(tx, "dialect")


@lru_cache(maxsize=500)
def _statement(table: str, key: tuple[str, ...], version: str, values: tuple[str, ...]) -> str:
    if not key:
        raise ContractError("a row needs a key", field="key", hint='key={"id": ...}')
    place = ".".join(_checked("table", part) for part in table.split("."))
    by, stamp = [_checked("key", name) for name in key], _checked("version_column", version)
    written = [stamp, *(_checked("values", name) for name in values)]
    columns = ", ".join([*by, *written])
    return (
        f"INSERT INTO {place} AS held ({columns}) VALUES ({', '.join('?' * len([*by, *written]))})"
        f" ON CONFLICT ({', '.join(by)}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in written)}"
        f" WHERE held.{stamp} IS NULL OR held.{stamp} < excluded.{stamp} RETURNING 1"
    )


def _checked(field: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise ContractError(
            f"{name!r} is no name of a table or column",
            field=field,
            value=name,
            hint="use A-Z a-z 0-9 _ $, not a digit first, at most 63 characters",
        )
    return quoted(name)
