"""The shelf of quarantined records: how entries get there with their mark, and what people do with them. Every change
of state is guarded by the state before, so that two calls at once do the work once. The same SQL serves every store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from settled.errors import ContractError, Refused
from settled.outcome import Ending, Outcome
from settled.store import ConsumerSpec, QuarantineEntry, QuarantineGroup, Selection
from settled.stores import evidence
from settled.stores.statements import Statements, holders

Query = Callable[[str, Any], list[tuple[Any, ...]]]

_ADD = (
    "INSERT INTO settled_quarantine (consumer_id, place_id, place_offset, record_key, headers, event_id, type, version,"
    " event_time_us, correlation_id, causation_id, accepted_us, value_bytes, value, failure, attempts, fingerprint,"
    " error, message, owner, code_version, state, quarantined_us, parked, marked)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'held', ?, ?, ?)"
    " ON CONFLICT (place_id, place_offset) WHERE state IN ('held', 'requested') DO UPDATE SET"
    " failure = excluded.failure, attempts = excluded.attempts, fingerprint = excluded.fingerprint,"
    " error = excluded.error, message = excluded.message, parked = excluded.parked"
    " RETURNING number"
)
_FROM = (
    " FROM settled_quarantine q JOIN settled_frontier p ON p.id = q.place_id"
    " JOIN settled_consumer c ON c.id = q.consumer_id JOIN settled_topic t ON t.id = p.topic_id"
)
_ENTRY = f"SELECT {evidence.ENTRY_COLUMNS}{_FROM}"


def add(handle: Statements, spec: ConsumerSpec, consumer: int, place: int, ending: Ending, now: int) -> None:
    """Write an entry; inside the transaction that writes its mark."""
    record, kept = ending.record, evidence.evidence_of(ending)
    large = record.value is not None and len(record.value) > evidence.VALUE_LIMIT
    row = (
        *(consumer, place, *evidence.record_columns(record), None if large else record.value),
        *(kept.failure, kept.attempts, kept.fingerprint, kept.error, kept.message),
        *(evidence.clipped(spec.owner, 200), evidence.clipped(spec.code_version, 200)),
        *(now, ending.parked, spec.inbox),
    )
    number = handle.all(_ADD, row)[0][0]
    if large:
        handle.run(
            "INSERT INTO settled_quarantine_value (number, value) VALUES (?, ?)"
            " ON CONFLICT (number) DO UPDATE SET value = excluded.value",
            (number, record.value),
        )


def end_redrive(handle: Statements, place: int, ending: Ending) -> bool:
    """Move the requested entry on; false if it is no longer requested. Inside the transaction of its effect."""
    rows = handle.all(
        "SELECT number, attempts, failure FROM settled_quarantine"
        " WHERE place_id = ? AND place_offset = ? AND state = 'requested'",
        (place, ending.record.offset),
    )
    if not rows:
        return False
    number, attempts, failure = rows[0]
    if ending.outcome is Outcome.QUARANTINED:
        _, before = evidence.stored_evidence(failure, attempts)
        kept = evidence.evidence_of(ending, before)
        handle.run(
            "UPDATE settled_quarantine SET state = 'held', failure = ?, attempts = ?, fingerprint = ?, error = ?,"
            " message = ?, parked = ? WHERE number = ?",
            (kept.failure, kept.attempts, kept.fingerprint, kept.error, kept.message, ending.parked, number),
        )
    else:
        state = "discarded" if ending.outcome is Outcome.DISCARDED else "settled"
        handle.run("UPDATE settled_quarantine SET state = ? WHERE number = ?", (state, number))
    return True


class Shelf:
    """See `settled.store.Quarantine`. Any thread."""

    def __init__(self, query: Query, write: Callable[[Callable[[Statements], Any]], Any]) -> None:
        self._query, self._write = query, write

    def select(self, selection: Selection) -> list[int]:
        where: list[str] = ["TRUE"]
        params: list[Any] = []
        for column, value in (
            ("c.name", selection.consumer),
            ("q.fingerprint", selection.fingerprint),
            ("t.name", selection.topic),
            ("q.event_id", selection.event_id),
        ):
            if value is not None:
                where.append(f"{column} = ?")
                params.append(value)
        for column, values in (("q.state", selection.states), ("q.number", selection.numbers)):
            if values:
                where.append(f"{column} IN ({holders(values)})")
                params += values
        rows = self._query(f"SELECT q.number{_FROM} WHERE {' AND '.join(where)} ORDER BY q.number", params)
        return [row[0] for row in rows]

    def entries(self, numbers: Sequence[int]) -> list[QuarantineEntry]:
        found: dict[int, QuarantineEntry] = {}
        for start in range(0, len(numbers), 500):
            part = numbers[start : start + 500]
            rows = self._query(f"{_ENTRY} WHERE q.number IN ({holders(part)})", part)
            found.update((row[0], evidence.entry_from(row, self._notes(row[0]))) for row in rows)
        return [found[number] if number in found else _missing(number) for number in numbers]

    def entry(self, number: int) -> QuarantineEntry:
        return self.whole(self.entries([number])[0])

    def whole(self, entry: QuarantineEntry) -> QuarantineEntry:
        """The entry with its value, also where that is kept in a table of its own."""
        if entry.record.value is not None or not entry.value_bytes:
            return entry
        rows = self._query("SELECT value FROM settled_quarantine_value WHERE number = ?", (entry.number,))
        return evidence.with_value(entry, rows[0][0])

    def groups(self, consumer: str | None = None) -> list[QuarantineGroup]:
        rows = self._query(
            "SELECT c.name, q.fingerprint, q.error, max(q.number), count(*), min(q.quarantined_us),"
            f" max(q.quarantined_us){_FROM} WHERE q.state = 'held' AND (CAST(? AS TEXT) IS NULL OR c.name = ?)"
            " GROUP BY c.name, q.fingerprint, q.error ORDER BY count(*) DESC, c.name, q.fingerprint",
            (consumer, consumer),
        )
        names = ("consumer", "fingerprint", "error", "message", "count", "oldest_us", "newest_us")
        return [
            QuarantineGroup(**dict(zip(names, (*row[:3], self._message(row[3]), *row[4:]), strict=True)))
            for row in rows
        ]

    def _message(self, number: int) -> str:
        return str(self._query("SELECT message FROM settled_quarantine WHERE number = ?", (number,))[0][0])

    def request(self, numbers: Sequence[int], *, reason: str, who: str) -> dict[str, int]:
        def work(handle: Statements) -> dict[str, int]:
            counts = {"requested": 0, "already_requested": 0, "settled": 0, "discarded": 0}
            for number in dict.fromkeys(numbers):
                state, consumer, event_id, marked = _state(handle, number)
                if state != "held":
                    counts["already_requested" if state == "requested" else state] += 1
                    continue
                if marked:
                    _require_mark(handle, number, consumer, event_id)
                handle.run("UPDATE settled_quarantine SET state = 'requested' WHERE number = ?", (number,))
                _note(handle, number, f"redrive asked for: {reason}", who)
                counts["requested"] += 1
            return counts

        return self._write(work)  # type: ignore[no-any-return]

    def discard(self, numbers: Sequence[int], *, reason: str, who: str) -> int:
        def work(handle: Statements) -> int:
            changed = 0
            for number in dict.fromkeys(numbers):
                state, consumer, event_id, _ = _state(handle, number)
                if state != "held":
                    continue
                handle.run("UPDATE settled_quarantine SET state = 'discarded' WHERE number = ?", (number,))
                handle.run(
                    "UPDATE settled_inbox SET outcome = ?, settled_us = ?"
                    " WHERE consumer_id = ? AND event_id = ? AND outcome = ?",
                    (int(Outcome.DISCARDED), handle.now(), consumer, event_id, int(Outcome.QUARANTINED)),
                )
                _note(handle, number, f"discarded: {reason}", who)
                changed += 1
            return changed

        return self._write(work)  # type: ignore[no-any-return]

    def note(self, number: int, text: str, *, who: str) -> None:
        def work(handle: Statements) -> None:
            _state(handle, number)
            _note(handle, number, text, who)

        self._write(work)

    def parked(self, consumer: str, topic: str, partition: int) -> set[bytes]:
        rows = self._query(
            f"SELECT DISTINCT q.record_key{_FROM} WHERE c.name = ? AND t.name = ? AND p.partition = ?"
            " AND q.state IN ('held', 'requested') AND q.record_key IS NOT NULL",
            (consumer, topic, partition),
        )
        return {row[0] for row in rows}

    def redrives(self, consumer: str, topic: str, partition: int) -> list[QuarantineEntry]:
        rows = self._query(
            f"{_ENTRY} WHERE c.name = ? AND t.name = ? AND p.partition = ? AND q.state = 'requested'"
            " ORDER BY q.place_offset",
            (consumer, topic, partition),
        )
        return [self.whole(evidence.entry_from(row, self._notes(row[0]))) for row in rows]

    def _notes(self, number: int) -> list[str]:
        rows = self._query(
            "SELECT noted_us, who, note FROM settled_quarantine_note WHERE number = ? ORDER BY id", (number,)
        )
        return [evidence.note_line(*row) for row in rows]


def _state(handle: Statements, number: int) -> tuple[str, int, str, bool]:
    sql = "SELECT state, consumer_id, event_id, marked FROM settled_quarantine WHERE number = ?"
    rows = handle.all(sql + handle.for_update, (number,))
    if not rows:
        _missing(number)
    state, consumer, event_id, marked = rows[0]
    return state, consumer, event_id, bool(marked)


def _require_mark(handle: Statements, number: int, consumer: int, event_id: str) -> None:
    rows = handle.all("SELECT 1 FROM settled_inbox WHERE consumer_id = ? AND event_id = ?", (consumer, event_id))
    if not rows:
        raise Refused(
            f"entry {number}: the inbox mark of {event_id!r} is gone, so a redrive could apply it a second time",
            hint="discard the entry, or publish the message again under a new id if it is known not to be applied",
        )


def _note(handle: Statements, number: int, text: str, who: str) -> None:
    handle.run(
        "INSERT INTO settled_quarantine_note (number, noted_us, who, note) VALUES (?, ?, ?, ?)",
        (number, handle.now(), evidence.clipped(who, 100), evidence.clipped(text, evidence.NOTE_BYTES)),
    )
    handle.run(
        "DELETE FROM settled_quarantine_note WHERE number = ? AND id NOT IN"
        " (SELECT id FROM settled_quarantine_note WHERE number = ? ORDER BY id DESC LIMIT ?)",
        (number, number, evidence.NOTES_KEPT),
    )


def _missing(number: int) -> QuarantineEntry:
    raise ContractError(
        f"there is no quarantine entry {number}", field="number", value=number, hint="settled quarantine ls lists them"
    )
