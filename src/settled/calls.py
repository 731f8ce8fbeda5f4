"""Calls outside the transaction: a charge, an e-mail, another service.

    @app.handler
    def pay(tx, record):
        receipt = settled.external(tx, "charge", lambda key: bank.charge(record.payload.amount, idempotency_key=key),
                                   policy="repeat")
        tx.execute("INSERT INTO payment VALUES (?, ?)", (record.id, receipt["number"]))

The boundary: the call is made at least once, and one outcome of it is recorded. The intent is durable before the call,
the result right after it, both whatever becomes of the transaction; a run after that gets the recorded result.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Literal, overload

import msgspec

from settled import windows
from settled.delivery.binding import AsyncTx
from settled.errors import ContractError, Refused, Reject, Retry
from settled.record import Record, checked_text, from_us
from settled.store import AtHand, Calls, Intent, Tx

Policy = Literal["repeat", "reconcile", "quarantine"]
POLICIES = ("repeat", "reconcile", "quarantine")
RESULT_BYTES = 64 * 1024


@overload
def external(
    tx: Tx,
    name: str,
    call: Callable[[str], Any],
    *,
    policy: Policy | None = None,
    lookup: Callable[[str], Any] | None = None,
    record: Record[Any] | None = None,
) -> Any: ...
@overload
def external(
    tx: AsyncTx,
    name: str,
    call: Callable[[str], Awaitable[Any]],
    *,
    policy: Policy | None = None,
    lookup: Callable[[str], Awaitable[Any]] | None = None,
    record: Record[Any] | None = None,
) -> Awaitable[Any]: ...
def external(
    tx: Any,
    name: str,
    call: Callable[[str], Any],
    *,
    policy: Policy | None = None,
    lookup: Callable[[str], Any] | None = None,
    record: Record[Any] | None = None,
) -> Any:
    """Make a call that cannot be undone, and return its recorded result; in an `async def` handler, await it.

    `call(key)` makes the call; `key` is the same for this record and name in every run, for the receiver to know a
    repetition by. What it returns is recorded as JSON and comes back from it, now and in later runs. It may raise Retry
    or Reject to say that the call was not made; any other exception leaves it ambiguous.

    policy     when an earlier run may have made the call and recorded nothing: `repeat` makes it again with the same
               key; `reconcile` asks `lookup(key)`, which returns the result, or none if the call was never made;
               `quarantine` raises Reject with what is known, for a person: a redrive makes the call again. The
               contract's word for this name, under `external`, wins; the default is quarantine
    record     which record the call belongs to; needed in handlers that take a whole group

    Raises Fenced when another owner has the partition by now, Refused in a replay when nothing is recorded.
    """
    if isinstance(tx, AsyncTx):
        return _Call(tx._tx, name, call, policy, lookup, record).make_async()
    return _Call(tx, name, call, policy, lookup, record).make()


def key_of(consumer: str, event_id: str, name: str) -> str:
    """The key of a call: a UUID that these three determine."""
    text = "\0".join((consumer, event_id, name)).encode()
    return str(uuid.UUID(bytes=hashlib.blake2b(text, digest_size=16, person=b"settled external").digest(), version=5))


class _Call:
    """One call of one record."""

    def __init__(
        self,
        tx: Tx,
        name: str,
        call: Callable[[str], Any],
        policy: Policy | None,
        lookup: Callable[[str], Any] | None,
        record: Record[Any] | None,
    ) -> None:
        checked_text("name", name)
        self._at_hand = _at_hand(tx)
        self._name, self._call, self._lookup = name, call, lookup
        self._record = _the_record(self._at_hand, record)
        self._policy = _checked(self._at_hand.policies.get(name) or policy or "quarantine", name, lookup)
        self._place = (self._at_hand.consumer, self._record.id, name)
        self._key = key_of(*self._place)
        self._intended_us = 0

    def make(self) -> Any:
        calls, intent = self._intend()
        if intent.result is not None:
            return msgspec.json.decode(intent.result)
        if intent.runs > 1 and self._looks_up():
            assert self._lookup is not None
            found = self._lookup(self._key)
            if found is not None:
                return self._keep(calls, found)
        windows.reach("intent-recorded")
        try:
            found = self._call(self._key)
        except (Retry, Reject):
            calls.withdraw(*self._place)
            raise
        windows.reach("call-made")
        return self._keep(calls, found)

    async def make_async(self) -> Any:
        calls, intent = self._intend()
        if intent.result is not None:
            return msgspec.json.decode(intent.result)
        if intent.runs > 1 and self._looks_up():
            assert self._lookup is not None
            found = await self._lookup(self._key)
            if found is not None:
                return self._keep(calls, found)
        windows.reach("intent-recorded")
        try:
            found = await self._call(self._key)
        except (Retry, Reject):
            calls.withdraw(*self._place)
            raise
        windows.reach("call-made")
        return self._keep(calls, found)

    def _intend(self) -> tuple[Calls, Intent]:
        calls = self._at_hand.calls()
        if not self._at_hand.live:
            found = calls.found(*self._place)
            if found is None or found.result is None:
                raise Refused(
                    f"{self._name!r} of {self._record.id!r} is a call outside, and a replay makes none",
                    hint="allow calls for this replay, or leave such records out of it",
                )
            return calls, found
        intent = calls.intend(*self._place)
        self._intended_us = intent.intended_us
        return calls, intent

    def _looks_up(self) -> bool:
        """Whether the user's lookup is asked about an ambiguous call. Raises Reject where a person must decide, unless
        one did: this run was asked for."""
        if self._policy == "quarantine" and not self._at_hand.redrive:
            raise Reject(
                f"{self._name!r} may have been called before, under the key {self._key}: its intent was recorded"
                f" at {from_us(self._intended_us).isoformat(timespec='seconds')} and no result."
                " Look at the receiver; a redrive makes the call (again) under the same key, a discard does not"
            )
        return self._policy == "reconcile"

    def _keep(self, calls: Calls, found: Any) -> Any:
        result = msgspec.json.encode(found)
        if len(result) > RESULT_BYTES:
            raise ContractError(
                f"the result of {self._name!r} has {len(result)} bytes, above the limit of {RESULT_BYTES}",
                field="result",
                hint="return what the effect needs of it, not the whole answer",
            )
        kept = calls.keep(*self._place, result)
        windows.reach("result-recorded")
        assert kept.result is not None
        return msgspec.json.decode(kept.result)


def _at_hand(tx: Any) -> AtHand:
    found = getattr(tx, "at_hand", None)
    if not isinstance(found, AtHand):
        raise ContractError(
            "external needs the tx of a handler that a worker runs", field="tx", hint="pass on the handler's own tx"
        )
    return found


def _the_record(at_hand: AtHand, given: Record[Any] | None) -> Record[Any]:
    record = given if given is not None else at_hand.record()
    if record is None:
        raise ContractError(
            "which record the call belongs to is not known: the handler takes a whole group",
            field="record",
            hint="pass record=",
        )
    return record


def _checked(policy: str, name: str, lookup: object) -> str:
    if policy not in POLICIES:
        raise ContractError(
            f"{policy!r} is no policy for an ambiguous call", field="policy", hint=f"use one of {', '.join(POLICIES)}"
        )
    if policy == "reconcile" and lookup is None:
        raise ContractError(
            f"{name!r} is to be reconciled, and there is no lookup", field="lookup", hint="pass lookup=: key -> result"
        )
    return policy
