"""settled quarantine: records that could not be settled, with their evidence, and what people do with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from settled.cli.confirm import confirm, required_reason, who
from settled.cli.options import DryRunOption, OutputOption, ReasonOption, StoreOption, YesOption
from settled.cli.output import Output, emit, grid, line, say
from settled.cli.text import shown_bytes
from settled.cli.times import at
from settled.cli.topic import record_json, record_lines

if TYPE_CHECKING:
    from settled.operations.quarantine import Plan
    from settled.store import QuarantineEntry, Selection

verbs = typer.Typer(help="Records that could not be settled.", no_args_is_help=True)

Numbers = Annotated[list[int] | None, typer.Argument(metavar="[NUMBER]...", help="Entries by number.")]
Number = Annotated[int, typer.Argument(metavar="NUMBER", help="The entry's number.")]
Consumer = Annotated[str | None, typer.Option("--consumer", metavar="NAME", help="Of this consumer.")]
TopicName = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Of this topic.")]
Fingerprint = Annotated[str | None, typer.Option("--group-of", metavar="FINGERPRINT", help="With this failure.")]
EventId = Annotated[str | None, typer.Option("--id", metavar="EVENT_ID", help="With this event id.")]
Everything = Annotated[bool, typer.Option("--all", help="All that are held.")]


@verbs.command("ls")
def ls(
    numbers: Numbers = None,
    consumer: Consumer = None,
    topic: TopicName = None,
    group_of: Fingerprint = None,
    event_id: EventId = None,
    state: Annotated[
        str, typer.Option("--state", help="held, requested, settled, discarded; several with commas; or all.")
    ] = "held,requested",
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """List entries, oldest first."""
    from settled.cli.opening import opened_store, store_address
    from settled.operations.quarantine import chosen

    selection = _selection(numbers, consumer, topic, group_of, event_id, states=_states(state))
    with opened_store(store_address(store)) as effects:
        entries = effects.quarantine.entries(chosen(effects.quarantine, selection))

    def draw() -> Iterator[Any]:
        yield grid(
            (">number", "state", "consumer", "record", "key", "id", "error", "message", "since"),
            [
                (
                    *(one.number, one.state + (" (parked)" if one.parked else ""), one.consumer, _place(one)),
                    *(shown_bytes(one.record.key), one.record.id, one.failure.error),
                    *(one.failure.message[:80], at(one.quarantined_us)),
                )
                for one in entries
            ],
        )

    document = {"entries": [entry_json(one, value=False) for one in entries]}
    emit(output, "quarantine", document, draw=draw, rows="entries")


@verbs.command("groups")
def groups(consumer: Consumer = None, store: StoreOption = None, output: OutputOption = None) -> None:
    """Held entries grouped by equal failure, largest first."""
    from settled.cli.opening import opened_store, store_address

    with opened_store(store_address(store)) as effects:
        found = effects.quarantine.groups(consumer)

    def draw() -> Iterator[Any]:
        yield grid(
            (">count", "fingerprint", "consumer", "error", "newest message", "from", "to"),
            [
                (g.count, g.fingerprint, g.consumer, g.error, g.message[:80], at(g.oldest_us), at(g.newest_us))
                for g in found
            ],
        )

    emit(output, "quarantine-groups", {"groups": found}, draw=draw, rows="groups")


@verbs.command("show")
def show(number: Number, store: StoreOption = None, output: OutputOption = None) -> None:
    """One entry, whole: the record byte for byte, the first and the last failure, the notes."""
    from settled.cli.opening import opened_store, store_address

    with opened_store(store_address(store)) as effects:
        entry = effects.quarantine.entry(number)

    def draw() -> Iterator[Any]:
        yield line(
            f"entry {entry.number} of {entry.consumer}: {entry.state}{', parked' if entry.parked else ''}", "bold"
        )
        yield line(
            f"owner {entry.owner or 'nobody'}, since {at(entry.quarantined_us)}, code {entry.code_version or '-'}"
        )
        for text in record_lines(entry.record):
            yield line(text)
        yield line(f"attempts: {entry.attempts.count}, the first at {at(entry.attempts.first_us)}")
        yield line(
            f"{entry.failure.kind}: {entry.failure.error}: {entry.failure.message}  [{entry.failure.fingerprint}]"
        )
        for text in entry.failure.trace.splitlines():
            yield line(f"  {text}")
        for note in entry.notes:
            yield line(f"note: {note}")

    emit(output, "quarantine-entry", entry_json(entry, value=True), draw=draw)


@verbs.command("redrive")
def redrive(
    numbers: Numbers = None,
    consumer: Consumer = None,
    topic: TopicName = None,
    group_of: Fingerprint = None,
    event_id: EventId = None,
    everything: Everything = False,
    reason: ReasonOption = None,
    rate: Annotated[str | None, typer.Option("--rate", metavar="N/s", help="At most so many a second.")] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """Let entries run again: in their key's order, through the inbox, by the worker that owns their partition."""
    from settled.cli.opening import opened_store, store_address
    from settled.operations import quarantine as operation

    selection = _selected(numbers, consumer, topic, group_of, event_id, everything, states=("held", "requested"))
    per_second = None if rate is None else _rate(rate)
    with opened_store(store_address(store)) as effects:
        plan = operation.redrive_plan(effects.quarantine, selection)
        _tell(plan, "redrive")
        if dry_run:
            _report(plan, {}, "redrive", output)
            return
        why = required_reason(reason)
        if plan.numbers:
            confirm(f"redrive {len(plan.numbers)} entries?", yes=yes)
        counts = operation.redrive(effects.quarantine, plan.numbers, reason=why, who=who(), per_second=per_second)
    _report(plan, counts, "redrive", output)


@verbs.command("discard")
def discard(
    numbers: Numbers = None,
    consumer: Consumer = None,
    topic: TopicName = None,
    group_of: Fingerprint = None,
    event_id: EventId = None,
    everything: Everything = False,
    reason: ReasonOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """Decide that entries will never be applied. Their evidence stays."""
    from settled.cli.opening import opened_store, store_address
    from settled.operations import quarantine as operation

    selection = _selected(numbers, consumer, topic, group_of, event_id, everything, states=("held",))
    with opened_store(store_address(store)) as effects:
        plan = operation.discard_plan(effects.quarantine, selection)
        _tell(plan, "discard")
        if dry_run:
            _report(plan, {}, "discard", output)
            return
        why = required_reason(reason)
        if plan.numbers:
            confirm(f"discard {plan.states.get('held', 0)} entries?", yes=yes)
        changed = effects.quarantine.discard(plan.numbers, reason=why, who=who())
    _report(plan, {"discarded": changed, "not_held": len(plan.numbers) - changed}, "discard", output)


@verbs.command("note")
def note(
    number: Number,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to remember.")],
    store: StoreOption = None,
) -> None:
    """Add a note to an entry."""
    from settled.cli.opening import opened_store, store_address

    with opened_store(store_address(store)) as effects:
        effects.quarantine.note(number, text, who=who())
    say(f"noted on entry {number}")


def entry_json(entry: QuarantineEntry, *, value: bool) -> dict[str, Any]:
    """An entry for JSON; lists leave values out, since they may be large."""
    record = record_json(entry.record)
    if not value:
        del record["value"]
    return {
        "number": entry.number,
        "consumer": entry.consumer,
        "state": entry.state,
        "parked": entry.parked,
        "owner": entry.owner,
        "code_version": entry.code_version,
        "quarantined": at(entry.quarantined_us),
        "value_bytes": entry.value_bytes,
        "record": record,
        "failure": entry.failure,
        "attempts": entry.attempts,
        "notes": list(entry.notes),
    }


def _tell(plan: Plan, verb: str) -> None:
    """The frozen selection, before anything happens."""
    states = ", ".join(f"{count} {state}" for state, count in plan.states.items())
    say(f"{verb}: {len(plan.numbers)} entries ({states or 'nothing matches'})")
    for error, count in plan.groups.items():
        say(f"  {count} x {error}")
    if plan.numbers:
        say(f"  numbers: {_ranges(plan.numbers)}")
    if plan.behind:
        say(f"  {len(plan.behind)} of them are parked behind these and run after them: {_ranges(plan.behind)}")
    if plan.left:
        say(f"  parked behind these and left: {_ranges(plan.left)}; redrive or discard those, so that their keys go on")


def _report(plan: Plan, counts: dict[str, int], verb: str, output: Output | None) -> None:
    def draw() -> Iterator[Any]:
        told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
        yield line(told or "nothing was changed")

    document = {"numbers": plan.numbers, "parked_behind": plan.behind, "states": plan.states, "counts": counts}
    emit(output, f"quarantine-{verb}", document, draw=draw)


def _selected(
    numbers: Sequence[int] | None,
    consumer: str | None,
    topic: str | None,
    group_of: str | None,
    event_id: str | None,
    everything: bool,
    *,
    states: tuple[str, ...],
) -> Selection:
    """As `_selection`; something must be said: no verb works on everything by default."""
    if not (numbers or everything or any(one is not None for one in (consumer, topic, group_of, event_id))):
        raise typer.BadParameter("name entries by number or by an option, or say --all")
    return _selection(numbers, consumer, topic, group_of, event_id, states=() if numbers or event_id else states)


def _selection(
    numbers: Sequence[int] | None,
    consumer: str | None,
    topic: str | None,
    group_of: str | None,
    event_id: str | None,
    *,
    states: tuple[str, ...],
) -> Selection:
    from settled.store import Selection

    return Selection(
        consumer=consumer,
        numbers=tuple(numbers or ()),
        fingerprint=group_of,
        topic=topic,
        event_id=event_id,
        states=() if numbers else states,
    )


def _states(text: str) -> tuple[str, ...]:
    from settled.operations.quarantine import ALL_STATES

    if text == "all":
        return ()
    states = tuple(text.split(","))
    if not set(states) <= set(ALL_STATES):
        raise typer.BadParameter(f"--state is all, or of {', '.join(ALL_STATES)}")
    return states


def _rate(text: str) -> float:
    number = text.removesuffix("/s")
    try:
        found = float(number)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise typer.BadParameter(f"--rate {text!r}: write it as 50/s")
    return found


def _ranges(numbers: Sequence[int]) -> str:
    """1-5, 7, 9; at most 12 parts."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    told = ["-".join(map(str, part)) for part in parts[:12]]
    return ", ".join(told) + (", ..." if len(parts) > 12 else "")


def _place(entry: QuarantineEntry) -> str:
    return f"{entry.record.topic}/{entry.record.partition}@{entry.record.offset}"
