"""Seeded mutants of what leaves the transaction, one broken promise each; a fork server with one of them in it:
`python outside_mutants.py NAME`. The product knows nothing of them.
"""

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from settled import calls, windows
from settled.drills.worker import serve
from settled.outbox.relay import Relay
from settled.store import Intent, OutboxRow
from settled.stores import calls as stored_calls
from settled.stores.postgres.outbox import PostgresOutbox


def relay_marks_before_publishing() -> None:
    publish = Relay._publish

    def early(self: Relay, batch: Any, blocked: Any, behind: Any) -> None:
        self._unmarked += batch
        self._write_down()
        windows.reach("relay-sent")
        publish(self, batch, blocked, behind)

    Relay._publish = early  # type: ignore[method-assign]


def relay_gives_ids_of_its_own() -> None:
    """As a relay that publishes under a fresh id each time: the inbox downstream cannot refuse repeats."""
    publish = Relay._publish

    def renamed(self: Relay, batch: Sequence[OutboxRow], blocked: Any, behind: Any) -> None:
        fresh = [
            msgspec.structs.replace(
                row, message=msgspec.structs.replace(row.message, id=f"{row.message.id}~{uuid.uuid4().hex[:6]}")
            )
            for row in batch
        ]
        publish(self, fresh, blocked, behind)

    Relay._publish = renamed  # type: ignore[method-assign]


def relay_goes_by_the_highest_number() -> None:
    """As a poller that asks for all above the last number it has seen, and keeps that number in the database."""
    pending, sent = PostgresOutbox.pending, PostgresOutbox.sent

    def marked(self: PostgresOutbox, number: int = -1) -> int:
        with psycopg.connect(self._link.conninfo, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(1)")  # relays that start together make it one after the other
            connection.execute("CREATE TABLE IF NOT EXISTS mutant_mark (id int PRIMARY KEY, number bigint)")
            found = connection.execute(
                "INSERT INTO mutant_mark VALUES (1, %s) ON CONFLICT (id) DO UPDATE"
                " SET number = greatest(mutant_mark.number, excluded.number) RETURNING number",
                (number,),
            ).fetchone()
        assert found is not None
        return int(found[0])

    def above(self: PostgresOutbox, held: Mapping[int, int], *, rows: int, bytes: int, but: Any = ()) -> Any:
        whole = pending(self, held, rows=100_000, bytes=10**9, but=but)  # not a bucket less: the gap alone is to blame
        last = marked(self)
        return [row for row in whole if row.seq > last]

    def remembered(self: PostgresOutbox, held: Mapping[int, int], rows: Sequence[OutboxRow]) -> int:
        marked(self, max(row.seq for row in rows))
        return sent(self, held, rows)

    PostgresOutbox.pending = above  # type: ignore[method-assign]
    PostgresOutbox.sent = remembered  # type: ignore[method-assign]


def external_call_has_a_fresh_key() -> None:
    calls.key_of = lambda consumer, event_id, name: str(uuid.uuid4())


def external_result_is_not_kept() -> None:
    def forgotten(self: Any, consumer: str, event_id: str, name: str, result: bytes) -> Intent:
        return Intent(1, 0, result)

    stored_calls.StoredCalls.keep = forgotten  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        relay_marks_before_publishing,
        relay_gives_ids_of_its_own,
        relay_goes_by_the_highest_number,
        external_call_has_a_fresh_key,
        external_result_is_not_kept,
    )
}

if __name__ == "__main__":
    MUTANTS[sys.argv[1]]()
    serve()
