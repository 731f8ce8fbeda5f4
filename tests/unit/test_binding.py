"""How a user's function is called: bytes, payloads decoded as annotated, batches, async; and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from delivery_records import record

from settled.delivery.binding import Binding, check_handler
from settled.delivery.retry import UndecodableError
from settled.errors import ContractError
from settled.record import Record
from settled.store import Tx


class StructOrder(msgspec.Struct):
    sku: str
    count: int


@dataclass
class DataOrder:
    sku: str
    count: int


class DictOrder(TypedDict):
    sku: str
    count: int


class ModelOrder(pydantic.BaseModel):
    sku: str
    count: int


JSON = b'{"sku": "x", "count": 2}'
seen: list[Any] = []


class KeepingTx:
    """Notes what is run on it; the binding only hands it through."""

    def execute(self, sql: str, params: Any = ()) -> Any:
        seen.append((sql, params))
        return "cursor"

    def executemany(self, sql: str, rows: Any) -> Any:
        seen.append((sql, list(rows)))
        return "cursor"


TX: Tx = KeepingTx()


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def plain(tx: Tx, found: Record) -> None:
    seen.append(found)


def unannotated(tx, found):  # type: ignore[no-untyped-def]
    seen.append(found)


def bare(tx: Tx, value: bytes) -> None:
    seen.append(value)


def struct(tx: Tx, order: StructOrder) -> None:
    seen.append(order)


def data(tx: Tx, order: DataOrder) -> None:
    seen.append(order)


def typed_dict(tx: Tx, order: DictOrder) -> None:
    seen.append(order)


def model(tx: Tx, order: ModelOrder) -> None:
    seen.append(order)


def optional(tx: Tx, order: StructOrder | None) -> None:
    seen.append(order)


def with_payload(tx: Tx, found: Record[StructOrder]) -> None:
    seen.append(found)


def call(function: Any, *found: Record, batch: bool = False) -> None:
    binding = Binding(function, batch=batch)
    try:
        binding.call(TX, found)
    finally:
        binding.close()


@pytest.mark.parametrize("function", [plain, unannotated])
def test_the_record_as_it_is(function: Any) -> None:
    one = record(0, b"k")
    call(function, one, record(1))
    assert seen[0] is one
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (struct, StructOrder("x", 2)),
        (data, DataOrder("x", 2)),
        (typed_dict, {"sku": "x", "count": 2}),
        (model, ModelOrder(sku="x", count=2)),
        (optional, StructOrder("x", 2)),
        (bare, JSON),
    ],
)
def test_the_value_as_annotated(function: Any, expected: Any) -> None:
    call(function, record(0, value=JSON))
    assert seen == [expected]


def test_the_record_with_its_payload() -> None:
    call(with_payload, record(0, b"k", value=JSON))
    assert (seen[0].payload, seen[0].key, seen[0].value) == (StructOrder("x", 2), b"k", JSON)


@pytest.mark.parametrize("function", [struct, data, typed_dict, model, with_payload, optional])
@pytest.mark.parametrize("value", [b"{", b"\xff\xfe", b"", b'{"sku": 1}', b"null "[:0] + b"[]"])
def test_a_value_that_does_not_fit_is_undecodable(function: Any, value: bytes) -> None:
    with pytest.raises(UndecodableError, match="t/0@7"):
        call(function, record(7, value=value))
    assert seen == []


@pytest.mark.parametrize("function", [struct, data, typed_dict, model, with_payload])
def test_no_value_is_undecodable_unless_the_annotation_allows_it(function: Any) -> None:
    with pytest.raises(UndecodableError):
        call(function, record(7, value=None))


def test_no_value_is_none_where_the_annotation_allows_it() -> None:
    call(optional, record(7, value=None))
    assert seen == [None]


def test_a_batch_comes_as_a_list_of_its_own() -> None:
    def batch(tx: Tx, found: list[Record]) -> None:
        seen.append(found)

    group = (record(0), record(1))
    call(batch, *group, batch=True)
    assert seen == [list(group)]
    assert isinstance(seen[0], list)


def test_a_batch_of_payloads() -> None:
    def batch(tx: Tx, orders: Sequence[StructOrder]) -> None:
        seen.append(orders)

    check_handler(batch, batch=True)
    call(batch, record(0, value=JSON), batch=True)
    assert seen == [[StructOrder("x", 2)]]


def test_async_handlers_share_one_loop_and_await_tx() -> None:
    import asyncio

    loops = []

    async def handler(tx: Any, found: Record) -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        assert await tx.execute("INSERT", (found.id,)) == "cursor"
        await tx.executemany("MANY", [(1,)])

    call(handler, record(0), record(1))
    assert seen == [("INSERT", ("e0",)), ("MANY", [(1,)]), ("INSERT", ("e1",)), ("MANY", [(1,)])]
    assert loops[0] is loops[1]


def test_an_async_batch() -> None:
    async def handler(tx: Any, found: list[Record]) -> None:
        seen.append([each.offset for each in found])

    call(handler, record(0), record(1), batch=True)
    assert seen == [[0, 1]]


def test_what_an_async_handler_raises_leaves_the_loop_usable() -> None:
    async def handler(tx: Any, found: Record) -> None:
        if found.offset == 0:
            raise SystemExit(0)
        seen.append(found.offset)

    binding = Binding(handler)
    with pytest.raises(SystemExit):
        binding.call(TX, [record(0)])
    binding.call(TX, [record(1)])
    binding.close()
    assert seen == [1]


def test_a_callable_object_and_a_method_can_be_handlers() -> None:
    class Handler:
        def __call__(self, tx: Tx, found: Record) -> None:
            seen.append(found.offset)

        def method(self, tx: Tx, order: StructOrder) -> None:
            seen.append(order.sku)

    call(Handler(), record(4))
    call(Handler().method, record(5, value=JSON))
    assert seen == [4, "x"]


def test_an_async_callable_object_is_awaited() -> None:
    class Handler:
        async def __call__(self, tx: Any, found: Record) -> None:
            seen.append(found.offset)

    call(Handler(), record(4))
    assert seen == [4]


def one_argument(tx: Tx) -> None: ...


def three(tx: Tx, found: Record, more: int) -> None: ...


def keyword_only(tx: Tx, found: Record, *, more: int) -> None: ...


def unreadable(tx: Tx, found: NotThere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def not_json(tx: Tx, found: StructOrder | DataOrder) -> None: ...


@pytest.mark.parametrize("function", [one_argument, three, keyword_only, unreadable, not_json])
def test_what_cannot_be_called_is_refused_with_a_hint(function: Any) -> None:
    with pytest.raises(ContractError) as caught:
        check_handler(function, batch=False)
    assert caught.value.hint


def test_a_batch_handler_must_take_a_list() -> None:
    with pytest.raises(ContractError, match="batch handler"):
        check_handler(plain, batch=True)


def test_a_default_for_a_third_argument_is_fine() -> None:
    def handler(tx: Tx, found: Record, more: int = 3) -> None:
        seen.append(more)

    call(handler, record(0))
    assert seen == [3]
