"""The outbox in a store, as far as it is the same SQL everywhere: who relays which bucket, refusals, what people ask.

A bucket's owner is judged twice: by the lease of its relay when others look for work, and by the bucket's epoch in the
transaction that writes anything down. The lease decides who works; only the epoch protects.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from settled.errors import ContractError
from settled.outbox_row import BUCKETS, COLUMNS, message_of
from settled.store import Holding, OutboxRow, OutboxStatus, RelayReport, RowFailure
from settled.stores.evidence import clipped
from settled.stores.statements import Statements, holders

T = TypeVar("T")

STATES = ("pending", "failing", "parked", "discarded")  # as stored: 0 to 3; relays look at the first two
ROW = ", ".join(f"o.{name}" for name in (*COLUMNS, "seq", "bucket", "created_us", "state", "attempts", "due_us"))
NOT_BEHIND = (
    " AND (o.state = 0 OR o.due_us <= ?) AND NOT EXISTS (SELECT 1 FROM settled_outbox w WHERE w.state = 1"
    " AND w.due_us > ? AND w.aggregatetype = o.aggregatetype AND w.aggregateid = o.aggregateid AND w.seq < o.seq)"
)
ANY_FAILING = "SELECT 1 FROM settled_outbox WHERE state = 1 LIMIT 1"
_WIDTH = len(COLUMNS)
PAYLOAD = COLUMNS.index("payload")
ROW_BYTES = 200  # what a row weighs without its value, for the bound on bytes
_LIST = ROW.replace("o.payload", "NULL") + ", o.error, coalesce(length(o.payload), 0)"
_BUCKETS = "SELECT bucket, epoch, owner FROM settled_outbox_bucket ORDER BY bucket"
_LEASE = (
    "INSERT INTO settled_outbox_relay (relay, host, pid, until_us, why) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (relay) DO UPDATE SET until_us = excluded.until_us, why = excluded.why"
)
_REFUSED = (
    "UPDATE settled_outbox SET state = ?, attempts = ?, due_us = ?, error = ? WHERE seq = ? AND state < 2 AND bucket"
)
_TAKE = "UPDATE settled_outbox_bucket SET owner = ?, epoch = ? WHERE bucket = ?"
_FAR_US = 3_600_000_000  # a lease that ends later than in an hour was given before the clock was set back


class SqlOutbox:
    """The shared half of `settled.store.Outbox`. A store supplies `_query`, `_look` (several queries of one moment)
    and `_work` (a transaction that writes)."""

    def _query(self, sql: str, params: Any) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def _look(self, work: Callable[[Statements], T]) -> T:
        raise NotImplementedError

    def _work(self, work: Callable[[Statements], T]) -> T:
        raise NotImplementedError

    # for relays

    def hold(self, relay: str, *, lease_s: float, why: str = "", keep: bool = False) -> Holding:
        def work(handle: Statements) -> Holding:
            owned = [] if keep else _locked(handle)
            now = handle.now()
            handle.run("DELETE FROM settled_outbox_relay WHERE until_us < ? OR until_us > ?", (now, now + _FAR_US))
            until = now + int(lease_s * 1_000_000)
            handle.run(_LEASE, (relay, socket.gethostname(), os.getpid(), until, clipped(why, 500)))
            if keep:
                return Holding({bucket: epoch for bucket, epoch, owner in handle.all(_BUCKETS) if owner == relay})
            living = {row[0] for row in handle.all("SELECT relay FROM settled_outbox_relay")}
            return _share(handle, relay, owned, living)

        return self._work(work)

    def leave(self, relay: str) -> None:
        def work(handle: Statements) -> None:
            _locked(handle)
            handle.run("UPDATE settled_outbox_bucket SET owner = '' WHERE owner = ?", (relay,))
            handle.run("DELETE FROM settled_outbox_relay WHERE relay = ?", (relay,))

        self._work(work)

    def failed(self, held: Mapping[int, int], failures: Sequence[RowFailure]) -> int:
        def work(handle: Statements) -> int:
            mine = still_held(handle, held)
            changed = 0
            for each in failures if mine else ():
                row = (2 if each.parked else 1, each.row.attempts + 1, each.due_us, clipped(each.error, 1000))
                changed += len(
                    handle.all(f"{_REFUSED} IN ({holders(mine)}) RETURNING seq", (*row, each.row.seq, *mine))
                )
            return changed

        return self._work(work)

    # for people

    def status(self) -> OutboxStatus:
        def work(handle: Statements) -> OutboxStatus:
            now = handle.now()
            groups = handle.all("SELECT state, bucket, count(*) FROM settled_outbox GROUP BY state, bucket")
            counts = [sum(count for state, _, count in groups if state == number) for number in range(len(STATES))]
            oldest = handle.all("SELECT min(created_us) FROM settled_outbox WHERE state < 2")[0][0]
            owned: dict[str, list[int]] = {}
            for bucket, _, owner in handle.all(_BUCKETS):
                owned.setdefault(owner, []).append(bucket)
            relays = handle.all("SELECT relay, host, pid, why, until_us FROM settled_outbox_relay ORDER BY relay")
            return OutboxStatus(
                pending=counts[0],
                failing=counts[1],
                parked=counts[2],
                discarded=counts[3],
                by_bucket={bucket: count for state, bucket, count in groups if state == 0},
                oldest_age_s=None if oldest is None else max(0, now - oldest) / 1e6,
                relays=[
                    RelayReport(
                        relay=relay,
                        host=host,
                        pid=pid,
                        why=why,
                        buckets=tuple(owned.get(relay, ())),
                        lease_left_s=(until - now) / 1e6,
                    )
                    for relay, host, pid, why, until in relays
                    if now <= until <= now + _FAR_US
                ],
            )

        return self._look(work)

    def rows(self, *, states: Sequence[str] = (), limit: int = 100) -> list[OutboxRow]:
        numbers = [_state(name) for name in states] or list(range(len(STATES)))
        sql = f"SELECT {_LIST} FROM settled_outbox o WHERE o.state IN ({holders(numbers)}) ORDER BY o.seq LIMIT ?"
        return [_listed(row) for row in self._query(sql, (*numbers, limit))]

    def retry(self, seqs: Sequence[int]) -> list[int]:
        change = "UPDATE settled_outbox SET state = 0, attempts = 0, due_us = 0"
        return self._change(f"{change} WHERE state IN (1, 2) AND seq IN", (), seqs)

    def park(self, seqs: Sequence[int], *, reason: str) -> list[int]:
        change = "UPDATE settled_outbox SET state = 2, error = ?"
        return self._change(f"{change} WHERE state < 2 AND seq IN", (clipped(reason, 1000),), seqs)

    def discard(self, seqs: Sequence[int], *, reason: str, who: str) -> list[int]:
        change = "UPDATE settled_outbox SET state = 3, error = substr(? || coalesce(error, '-'), 1, 2000)"
        note = f"discarded by {clipped(who, 100)}: {clipped(reason, 500)}; before: "
        return self._change(f"{change} WHERE state = 2 AND seq IN", (note,), seqs)

    def _change(self, sql: str, params: tuple[Any, ...], seqs: Sequence[int]) -> list[int]:
        changed: list[int] = []
        for start in range(0, len(seqs), 500):
            part = seqs[start : start + 500]
            asked = f"{sql} ({holders(part)}) RETURNING seq"
            changed += [row[0] for row in self._work(lambda handle: handle.all(asked, (*params, *part)))]  # noqa: B023
        return sorted(changed)


def row_from(row: tuple[Any, ...]) -> OutboxRow:
    """A row of ROW."""
    seq, bucket, created, state, attempts, due = row[_WIDTH : _WIDTH + 6]
    return OutboxRow(seq, bucket, message_of(row[:_WIDTH]), created, STATES[state], attempts, due)


def still_held(handle: Statements, held: Mapping[int, int]) -> set[int]:
    """The buckets whose epoch is still the one under which they are held; the transaction keeps them so."""
    return {bucket for bucket, epoch, _ in handle.all(_BUCKETS + handle.for_update) if held.get(bucket) == epoch}


def _locked(handle: Statements) -> list[tuple[int, int, str]]:
    """All buckets, locked before anything else is looked at or changed: who lives is then judged by one relay after the
    other, and no two of them hold what the other waits for."""
    rows = handle.all(_BUCKETS + handle.for_update)
    if len(rows) == BUCKETS:
        return rows
    for bucket in range(BUCKETS):
        handle.run(
            "INSERT INTO settled_outbox_bucket (bucket, epoch, owner) VALUES (?, 0, '') ON CONFLICT DO NOTHING",
            (bucket,),
        )
    return handle.all(_BUCKETS + handle.for_update)


def _share(handle: Statements, relay: str, owned: list[tuple[int, int, str]], living: set[str]) -> Holding:
    share = -(-BUCKETS // len(living))
    held = {bucket: epoch for bucket, epoch, owner in owned if owner == relay}
    for bucket in list(held)[share:]:
        handle.run("UPDATE settled_outbox_bucket SET owner = '' WHERE bucket = ?", (bucket,))
        del held[bucket]
    for bucket, epoch, owner in owned:
        if len(held) >= share:
            break
        if owner not in living:
            handle.run(_TAKE, (relay, epoch + 1, bucket))
            held[bucket] = epoch + 1
    counts = Counter(owner for _, _, owner in owned if owner in living and owner != relay)
    too_many = sum(max(0, count - share) for count in counts.values())
    return Holding(held, min(share - len(held), too_many))


def _listed(row: tuple[Any, ...]) -> OutboxRow:
    return msgspec.structs.replace(row_from(row), error=row[-2] or "", value_bytes=row[-1])


def _state(name: str) -> int:
    if name not in STATES:
        raise ContractError(f"{name!r} is not a state of an outbox row", field="state", hint=f"one of {STATES}")
    return STATES.index(name)
