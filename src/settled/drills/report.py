"""What a drill found: a row per window, a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from settled.drills.checker import Violation
from settled.drills.history import Event
from settled.windows import WINDOWS

ORDER_KINDS = frozenset({"order", "send-order", "stale-epoch"})
REPAIR = {window.name: window.repair for window in WINDOWS}
OWN_REJECT = "settled.errors.Reject: the drill rejects this record"
SHOWN = 5  # violations told in words for each window


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One window (or named drill). `window kills redelivered duplicates lost doubled order_violations resume_p50_ms
    resume_p99_ms` are what the JSON form promises.

    redelivered   runs of a handler for an event id beyond its first
    duplicates    records that the inbox refused as settled before
    resume        from a death until a record that waited in one of the dead worker's partitions was run; of a broker:
                  until a record was run that was accepted after its death in a partition that it led
    lag_added     the most records that were accepted and had not been run, at one time, above the usual of this drill
    other         violations that are neither loss, doubling nor order
    """

    window: str
    kills: int
    published: int
    effects: int
    quarantined: int
    redelivered: int
    duplicates: int
    lost: int
    doubled: int
    order_violations: int
    other: int
    resume_p50_ms: float | None
    resume_p99_ms: float | None
    lag_added: int
    repaired_by: str
    seconds: float
    violations: list[Violation]
    note: str = ""
    kept: str = ""  # where the databases of a failing row are

    @property
    def failed(self) -> bool:
        return bool(self.violations)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict` is pass or fail; the same seed and arguments draw the same plan of kills."""

    verdict: str
    seed: int
    windows: list[Row]
    seconds: float


def row(
    window: str,
    history: Sequence[Event],
    violations: Sequence[Violation],
    *,
    kills: int,
    seconds: float,
    note: str = "",
    kept: str = "",
) -> Row:
    """Count the history of one round."""
    delivered = [event.id for event in history if event.what == "deliver"]
    duplicates = sum(event.counts.get("duplicate", 0) for event in history if event.what == "settled")
    kinds = Counter(violation.kind for violation in violations)
    resumes = sorted(event.seconds for event in history if event.what == "resume")
    ordered = sum(kinds[kind] for kind in ORDER_KINDS)
    return Row(
        window=window,
        kills=kills,
        published=len({event.id for event in history if event.what == "publish" and event.step == "ok"}),
        effects=len({event.id for event in history if event.what == "effect"}),
        quarantined=len({event.id for event in history if event.what == "ended" and event.outcome == "quarantined"}),
        redelivered=len(delivered) - len(set(delivered)),
        duplicates=duplicates,
        lost=kinds["lost"],
        doubled=kinds["doubled"],
        order_violations=ordered,
        other=sum(kinds.values()) - kinds["lost"] - kinds["doubled"] - ordered,
        resume_p50_ms=_percentile(resumes, 0.5),
        resume_p99_ms=_percentile(resumes, 0.99),
        lag_added=_lag_added(history),
        repaired_by=REPAIR.get(window, "the next owner, by the fence and the frontier in the effect store"),
        seconds=round(seconds, 2),
        violations=list(violations),
        note="; ".join(part for part in (note, _unasked(history)) if part),
        kept=kept,
    )


def _unasked(history: Sequence[Event]) -> str:
    """A word on records that the application itself could not settle."""
    entries = [event for event in history if event.what == "entry" and not event.note.startswith(OWN_REJECT)]
    if not entries:
        return ""
    return f"{len(entries)} records went to quarantine by the application's own fault, the first for {entries[0].note}"


def resumes(history: Sequence[Event]) -> list[Event]:
    """For each death after which nobody else died before work went on: how long it took until a record that had been
    accepted before, in a partition that the dead worker owned, was run by another."""
    accepted = {event.id: event.t for event in history if event.what == "publish" and event.step == "ok"}
    owned: dict[int, set[int]] = {}
    waiting: Event | None = None
    leaderless: dict[int, Event] = {}  # partition -> the death of the broker that led it
    found: list[Event] = []
    for event in sorted(history, key=lambda event: event.t):
        if event.what == "owner":
            mine = owned.setdefault(event.pid, set())
            (mine.add if event.outcome == "assigned" else mine.discard)(event.partition)
        elif event.what == "death" and event.partition >= 0:
            leaderless[event.partition] = event
        elif event.what == "deliver" and event.partition in leaderless:
            death = leaderless[event.partition]
            if accepted.get(event.id, 0.0) > death.t:
                found.append(Event(what="resume", pid=death.pid, t=event.t, seconds=event.t - death.t))
                del leaderless[event.partition]
        elif event.what == "death":
            waiting = event if owned.get(event.pid) else None
        elif event.what == "deliver" and waiting is not None and event.pid != waiting.pid:
            before = accepted.get(event.id, event.t) < waiting.t
            if before and event.partition in owned[waiting.pid]:
                found.append(Event(what="resume", pid=waiting.pid, t=event.t, seconds=event.t - waiting.t))
                waiting = None
    return found


def _lag_added(history: Iterable[Event]) -> int:
    """The highest lag (accepted, not yet run) minus the median, both over the instants of acceptance."""
    waiting: set[str] = set()
    run: set[str] = set()
    seen: list[int] = []
    for event in sorted(history, key=lambda event: event.t):
        if event.what == "publish" and event.step == "ok":
            if event.id not in run:
                waiting.add(event.id)
            seen.append(len(waiting))
        elif event.what == "deliver":
            run.add(event.id)
            waiting.discard(event.id)
    return max(seen) - sorted(seen)[len(seen) // 2] if seen else 0


def text(report: Report) -> Iterable[str]:
    """The report for people, line by line."""
    names = (
        "window",
        "kills",
        "redelivered",
        "duplicates",
        "lost",
        "doubled",
        "order",
        "other",
        "p50 ms",
        "p99 ms",
        "lag",
    )
    lines: list[tuple[str, ...]] = [names]
    for each in report.windows:
        counts = (each.kills, each.redelivered, each.duplicates, each.lost, each.doubled, each.order_violations)
        lines.append(
            (
                each.window,
                *map(str, counts),
                str(each.other),
                _ms(each.resume_p50_ms),
                _ms(each.resume_p99_ms),
                str(each.lag_added),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    for number, line in enumerate(lines):
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        yield "  ".join(cells)
        if number:
            yield from remarks(report.windows[number - 1])
    kills = sum(each.kills for each in report.windows)
    yield f"verdict: {report.verdict}  ({kills} kills, seed {report.seed}, {report.seconds:.0f} s)"


def remarks(each: Row) -> Iterable[str]:
    """What is to be said of a row beside its numbers."""
    if each.note:
        yield f"    {each.note}"
    for violation in each.violations[:SHOWN]:
        yield f"    {violation.invariant} {violation.kind}: {violation.what}"
    if len(each.violations) > SHOWN:
        yield f"    and {len(each.violations) - SHOWN} more"
    if each.kept:
        yield f"    kept in {each.kept}"


def _percentile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    return round(values[min(len(values) - 1, int(share * len(values)))] * 1000, 1)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
