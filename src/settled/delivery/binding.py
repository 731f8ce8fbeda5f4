"""Binding: how a user's function is called with records. Bytes by default, or the value decoded as its annotation asks.

    def reserve(tx, record): ...                    record.value is bytes or none
    def reserve(tx, record: Record[Order]): ...     record.payload is an Order
    def reserve(tx, order: Order): ...              just the Order
    def reserve(tx, records: list[Record]): ...     with batch=True: the whole group

Order may be a msgspec Struct, a dataclass, a TypedDict, a pydantic model or anything else that msgspec reads from JSON.
`async def` works the same; `tx` is then awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from settled.delivery.retry import UndecodableError
from settled.errors import ContractError
from settled.record import Record
from settled.store import Tx

Decode = Callable[[Record], Any]
One = Callable[[Tx, Record], object]


class Binding:
    """A user's function, ready to be called. One per executor thread: an async handler has its event loop here."""

    def __init__(self, function: Callable[..., Any], *, batch: bool = False) -> None:
        self.function, self.batch = function, batch
        self._decode = _decoder(function, batch=batch)
        self._runner = asyncio.Runner() if inspect.iscoroutinefunction(_code(function)) else None
        self.one: One = self._one()  # runs the function for one record; what the loop over all records calls

    def _one(self) -> One:
        function, decode = self.function, self._decode
        if self.batch or self._runner is not None:
            return lambda tx, record: self.call(tx, (record,))
        if decode is None:
            return function

        def one(tx: Tx, record: Record) -> None:
            function(tx, decode(record))

        return one

    def call(self, tx: Tx, records: Sequence[Record]) -> None:
        """Run the function for these records: once for all with `batch`, else once for each. Raises what it raises,
        and UndecodableError for a value that does not fit the annotation."""
        decode = self._decode
        arguments: Any = records if decode is None else [decode(record) for record in records]
        if self._runner is not None:
            self._runner.run(self._call_async(AsyncTx(tx), arguments))
        elif self.batch:
            self.function(tx, arguments if decode is not None else list(arguments))
        else:
            function = self.function
            for argument in arguments:
                function(tx, argument)

    async def _call_async(self, tx: AsyncTx, arguments: Sequence[Any]) -> None:
        if self.batch:
            await self.function(tx, list(arguments))
        else:
            for argument in arguments:
                await self.function(tx, argument)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


class AsyncTx:
    """`tx` for `async def` handlers. A statement runs in the executor's thread, where its loop serves this handler
    alone: the guarantees are those of the sync `tx`, because it is the sync `tx`."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    @property
    def dialect(self) -> str:
        return self._tx.dialect

    async def execute(self, sql: str, params: Any = ()) -> Any:
        return self._tx.execute(sql, params)

    async def executemany(self, sql: str, rows: Iterable[Any]) -> Any:
        return self._tx.executemany(sql, rows)

    async def publish(self, value: Any = None, **fields: Any) -> str:
        return self._tx.publish(value, **fields)


def check_handler(function: Callable[..., Any], *, batch: bool) -> None:
    """Raises ContractError when the function cannot be called as (tx, record)."""
    _decoder(function, batch=batch)


def _decoder(function: Callable[..., Any], *, batch: bool) -> Decode | None:
    """How to make the function's second argument (or each element of it), none: the record as it is."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(_code(function))
    except (NameError, TypeError, ValueError) as error:
        raise ContractError(
            f"the annotations of handler {function!r} cannot be read: {error}",
            field="handler",
            hint="annotate with types that can be seen from the handler's module",
        ) from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(positional) < 2 or any(p not in positional[:2] for p in needed):
        raise ContractError(
            f"handler {getattr(function, '__name__', function)!r} cannot be called with two positional arguments",
            field="handler",
            hint="define it as (tx, record), or (tx, records) with batch=True",
        )
    hint = hints.get(positional[1].name, inspect.Parameter.empty)
    if batch:
        hint = _element(function, hint)
    return _decode_for(hint)


def _code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where the annotations are: the function, or the `__call__` of an object."""
    return function if inspect.isroutine(function) else type(function).__call__


def _element(function: Callable[..., Any], hint: Any) -> Any:
    if hint is inspect.Parameter.empty:
        return hint
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (list, Sequence, tuple, Iterable) and arguments:
        return arguments[0]
    if hint in (list, Sequence):
        return inspect.Parameter.empty
    raise ContractError(
        f"batch handler {getattr(function, '__name__', function)!r} annotates its records as {hint}",
        field="handler",
        hint="annotate them as list[Record], list[Record[Order]] or list[Order]",
    )


def _decode_for(hint: Any) -> Decode | None:
    if hint in (inspect.Parameter.empty, Any, Record):
        return None
    if typing.get_origin(hint) is Record:
        read = _reader(typing.get_args(hint)[0])
        return lambda record: record.with_payload(read(record))
    return _reader(hint)


def _reader(kind: Any) -> Decode:
    """Reads a record's value as `kind`."""
    if kind is bytes:
        return lambda record: record.value
    read: Callable[[bytes], Any]
    if hasattr(kind, "model_validate_json"):  # a pydantic model; settled need not import pydantic for it
        read = kind.model_validate_json
    else:
        try:
            read = msgspec.json.Decoder(kind).decode
        except TypeError as error:
            raise ContractError(
                f"values cannot be read as {kind}: {error}",
                field="handler",
                hint="annotate with a msgspec Struct, a dataclass, a TypedDict, a pydantic model, or Record",
            ) from error
    name = getattr(kind, "__name__", str(kind))
    optional = type(None) in typing.get_args(kind)

    def decode(record: Record) -> Any:
        if record.value is None and optional:
            return None
        try:
            return read(record.value)  # type: ignore[arg-type]  # none is refused below, like any other bad value
        except Exception as error:
            raise UndecodableError(
                f"the value of {record.topic}/{record.partition}@{record.offset} is not a {name}: {error}",
                field="value",
                hint="mend the producer, or widen the handler's annotation; then redrive it from quarantine",
            ) from error

    return decode
