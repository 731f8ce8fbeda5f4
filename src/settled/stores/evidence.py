"""What every store keeps in the same form: bounded evidence, and the judgement of what was settled before.

Pure: no I/O. Texts are bounded in bytes and cleaned of what a database cannot hold, so a failure can always be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from itertools import chain
from typing import Any

import msgspec

from settled.errors import ContractError
from settled.outcome import Attempts, Ending, Failure, Outcome
from settled.record import Headers, Record, from_us
from settled.store import Applied, ConsumerSpec, QuarantineEntry

VALUE_LIMIT = 1024 * 1024  # a value above it is kept once, whole, in a table of its own
NOTE_BYTES = 500
NOTES_KEPT = 20
STATES = ("held", "requested", "settled", "discarded")
OPEN_STATES = ("held", "requested")

_headers = msgspec.msgpack.Decoder(tuple[tuple[str, bytes | None], ...])
_attempts = msgspec.json.Decoder(Attempts)
_failure = msgspec.json.Decoder(Failure)


def clipped(text: str, limit: int) -> str:
    """The text as any database can hold it: no NUL, no lone surrogate, at most `limit` bytes of UTF-8."""
    raw = text.replace("\0", "\\0").encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def bounded(failure: Failure, *, brief: bool = False) -> Failure:
    """The failure within the store's limits; `brief` for the first one, of which less is kept than of the last."""
    message, trace = (500, 2000) if brief else (2000, 6000)
    return msgspec.structs.replace(
        failure,
        error=clipped(failure.error, 200),
        message=clipped(failure.message, message),
        trace=clipped(failure.trace, trace),
        fingerprint=clipped(failure.fingerprint, 200),
    )


def encode_attempts(attempts: Attempts) -> str:
    kept = msgspec.structs.replace(
        attempts,
        first=None if attempts.first is None else bounded(attempts.first, brief=True),
        last=None if attempts.last is None else bounded(attempts.last),
    )
    return msgspec.json.encode(kept).decode()


def decode_attempts(text: str) -> Attempts:
    return _attempts.decode(text)


def added(before: Attempts, now: Attempts) -> Attempts:
    """The attempts of a redrive on top of those that the entry had. Attempts that continue the entry's (same first
    failure) hold them already."""
    if now.first_us == before.first_us and now.count > before.count:
        return now
    return msgspec.structs.replace(
        now,
        count=before.count + now.count,
        first_us=min(before.first_us, now.first_us),
        first=before.first or now.first,
        last=now.last or before.last,
    )


class Evidence(msgspec.Struct, frozen=True):
    """The columns of a quarantine entry that come from its ending, ready to be stored."""

    failure: str
    attempts: str
    fingerprint: str
    error: str
    message: str


def evidence_of(ending: Ending, before: Attempts | None = None) -> Evidence:
    """`before`: what the entry had when a redrive failed. The last failure is kept once, as the entry's failure."""
    if ending.failure is None or ending.attempts is None:
        raise ContractError(
            f"a quarantined ending of {ending.record.id!r} comes without failure or attempts",
            field="endings",
            hint="give both: they are the evidence",
        )
    failure = bounded(ending.failure)
    attempts = ending.attempts if before is None else added(before, ending.attempts)
    attempts = msgspec.structs.replace(attempts, last=None, first=attempts.first or failure)
    return Evidence(
        failure=msgspec.json.encode(failure).decode(),
        attempts=encode_attempts(attempts),
        fingerprint=failure.fingerprint,
        error=failure.error,
        message=clipped(failure.message, 500),
    )


def stored_evidence(failure: str, attempts: str) -> tuple[Failure, Attempts]:
    last = _failure.decode(failure)
    return last, msgspec.structs.replace(_attempts.decode(attempts), last=last)


def encode_headers(headers: Headers) -> bytes:
    return msgspec.msgpack.encode(headers)


def decode_headers(raw: bytes) -> Headers:
    return _headers.decode(raw)


def note_line(us: int, who: str, text: str) -> str:
    moment = from_us(us).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{moment} {who}: {text}" if who else f"{moment} {text}"


ENTRY_COLUMNS = (
    "q.number, c.name, t.name, p.partition, q.place_offset, q.record_key, q.value, q.headers, q.event_id, q.type,"
    " q.version, q.event_time_us, q.correlation_id, q.causation_id, q.accepted_us, q.failure, q.attempts, q.owner,"
    " q.state, q.quarantined_us, q.parked, q.code_version, q.value_bytes"
)


def entry_from(row: Sequence[Any], notes: Iterable[str]) -> QuarantineEntry:
    """An entry from a row of ENTRY_COLUMNS."""
    failure, attempts = stored_evidence(row[15], row[16])
    record: Record = Record(
        topic=row[2],
        partition=row[3],
        offset=row[4],
        key=row[5],
        value=row[6],
        headers=decode_headers(row[7]),
        id=row[8],
        type=row[9],
        version=row[10],
        event_time_us=row[11],
        correlation_id=row[12],
        causation_id=row[13],
        accepted_us=row[14],
    )
    return QuarantineEntry(
        number=row[0],
        consumer=row[1],
        record=record,
        failure=failure,
        attempts=attempts,
        owner=row[17],
        state=row[18],
        quarantined_us=row[19],
        parked=bool(row[20]),
        code_version=row[21],
        value_bytes=row[22],
        notes=tuple(notes),
    )


def with_value(entry: QuarantineEntry, value: bytes) -> QuarantineEntry:
    return msgspec.structs.replace(entry, record=msgspec.structs.replace(entry.record, value=value))


def record_columns(record: Record) -> tuple[Any, ...]:
    """event_id to accepted_us and the rest of a record as a quarantine row holds it, the value left out."""
    return (
        record.offset,
        record.key,
        encode_headers(record.headers),
        record.id,
        record.type,
        record.version,
        record.event_time_us,
        record.correlation_id,
        record.causation_id,
        record.accepted_us,
        len(record.value or b""),
    )


def judge(
    spec: ConsumerSpec,
    records: Sequence[Record],
    marks: Mapping[str, int],
    versions: Mapping[tuple[str, bytes], int],
    *,
    redrive: bool,
) -> list[Outcome | None]:
    """For each record DUPLICATE, STALE or none, given the marks and versions that the store holds.

    Duplicates within the list count, and so do versions: the earlier record is taken to be applied. A record without
    a key has no version to compare with.
    """
    if not spec.versioned and (not spec.inbox or (not marks and len({r.id for r in records}) == len(records))):
        return [None] * len(records)
    seen: set[str] = set()
    highest = dict(versions)
    judged: list[Outcome | None] = []
    for record in records:
        outcome: Outcome | None = None
        mark = marks.get(record.id)
        if (spec.inbox and record.id in seen) or (mark is not None and not (redrive and mark == Outcome.QUARANTINED)):
            outcome = Outcome.DUPLICATE
        elif spec.versioned and record.version is not None and record.key is not None:
            place = (record.topic, record.key)
            if place in highest and record.version <= highest[place]:
                outcome = Outcome.STALE
            else:
                highest[place] = record.version
        seen.add(record.id)
        judged.append(outcome)
    return judged


def all_endings(endings: Sequence[Ending], applied: Applied) -> Iterator[Ending]:
    """The endings, and those of `applied`, one by one."""
    yield from endings
    for record in chain(*applied.values()):
        yield Ending(record, Outcome.APPLIED)


def applied_versions(endings: Sequence[Ending], applied: Applied) -> dict[tuple[str, bytes], int]:
    """The version that each (topic, key) will have when these endings are committed, and those of `applied`."""
    highest: dict[tuple[str, bytes], int] = {}
    for record in (ending.record for ending in all_endings(endings, applied) if ending.outcome is Outcome.APPLIED):
        if record.version is not None and record.key is not None:
            place = (record.topic, record.key)
            highest[place] = max(record.version, highest.get(place, record.version))
    return highest
