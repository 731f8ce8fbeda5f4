"""settled status and settled group: how far every consumer is, and who works on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from settled.cli.confirm import confirm, required_reason, who
from settled.cli.options import ContractOption, DryRunOption, EngineOption, OutputOption, StoreOption, YesOption
from settled.cli.output import Output, emit, grid, line, say
from settled.cli.text import shown
from settled.cli.times import age, at, size

if TYPE_CHECKING:
    from settled.operations.status import ConsumerStatus, Status

group_verbs = typer.Typer(help="Consumer groups: members, partitions, lag.", no_args_is_help=True)

BAD = "bold red"
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
Places = Annotated[
    list[str], typer.Argument(metavar="PLACE...", help="TOPIC/PARTITION, or TOPIC for all of its partitions.")
]


def status(
    contract: ContractOption = None,
    engine: EngineOption = None,
    store: StoreOption = None,
    ready: Annotated[
        bool,
        typer.Option("--ready", help="Exit 75, with the reason, unless all workers are at work."),
    ] = False,
    output: OutputOption = None,
) -> None:
    """How far every consumer is, how records ended, what its workers say, what waits for people."""
    found = _look(contract, None, engine, store)

    def draw() -> Iterator[Any]:
        if not found.consumers:
            yield line("no group has ever joined this log")
        for one in found.consumers:
            yield from _screen(one)

    emit(output, "status", {"read": at(found.read_us), "consumers": found.consumers}, draw=draw, rows="consumers")
    if ready:
        reasons = [f"{one.consumer}: {one.unready}" for one in found.consumers if one.unready]
        for reason in reasons or ([] if found.consumers else ["no group has ever joined this log"]):
            say(f"not ready: {reason}")
        if reasons or not found.consumers:
            raise typer.Exit(75)


@group_verbs.command("ls")
def ls(engine: EngineOption = None, store: StoreOption = None, output: OutputOption = None) -> None:
    """List all groups with their lag."""
    found = _look(None, None, engine, store)

    def draw() -> Iterator[Any]:
        yield grid(
            ("group", "consumer", "state", ">members", ">idle", ">lag", "oldest"),
            [
                (
                    *(one.group, one.consumer, one.state, len(one.members), sum(m.idle for m in one.members)),
                    *(f"{one.lag_records:,}", age(one.oldest_age_s)),
                )
                for one in found.consumers
            ],
        )

    emit(output, "groups", {"groups": [_summary(one) for one in found.consumers]}, draw=draw, rows="groups")


@group_verbs.command("describe")
def describe(
    group: Group,
    engine: EngineOption = None,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """Members, and each partition's epoch, frontier, end, lag and age."""
    from settled.errors import ContractError
    from settled.record import checked_name

    checked_name("group", group)
    found = _look(None, group, engine, store)
    if not found.consumers:
        raise ContractError(f"there is no group {group!r}", field="group", value=group, hint="settled group ls")

    def draw() -> Iterator[Any]:
        for one in found.consumers:
            yield line(f"{one.consumer}: {one.state}, {one.lag_records:,} records behind")
            yield from _pauses(one)
            yield from _queues(one)
            yield from _partitions(one)
            yield from _members(one)

    emit(output, "group", {"group": group, "consumers": found.consumers}, draw=draw, rows="consumers")


@group_verbs.command("pause")
def pause(
    group: Group,
    places: Places,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept and shown.")] = "",
    engine: EngineOption = None,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """Settle nothing of these partitions, whoever works on them, until `group resume`; other partitions go on."""
    from settled.cli.opening import opened_store, store_address
    from settled.operations import pausing

    why = required_reason(reason)
    chosen = pausing.chosen(_look(None, group, engine, store), group, places)
    with opened_store(store_address(store, None)) as effects:
        for (consumer, topic), numbers in chosen.items():
            effects.pause(consumer, topic, numbers, reason=why, who=who())
    _told(output, "group-pause", group, {place: numbers for (_, place), numbers in chosen.items()}, "paused")


@group_verbs.command("resume")
def resume(
    group: Group,
    places: Places,
    engine: EngineOption = None,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """End a pause: workers go on within a second or two."""
    from settled.cli.opening import opened_store, store_address
    from settled.operations import pausing

    chosen = pausing.chosen(_look(None, group, engine, store), group, places)
    with opened_store(store_address(store, None)) as effects:
        ended = {topic: effects.resume(consumer, topic, numbers) for (consumer, topic), numbers in chosen.items()}
    _told(output, "group-resume", group, ended, "resumed")


@group_verbs.command("forget")
def forget(
    group: Group,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Of this topic only; may stand several times.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also when records wait in a queue of its own: they are lost for it.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    engine: EngineOption = None,
    output: OutputOption = None,
) -> None:
    """Remove what the log keeps for a group that does not come back: retention and compaction wait for it no more."""
    from settled.cli.opening import engine_address, opened_engine
    from settled.operations import forgetting
    from settled.record import checked_name

    checked_name("group", group)
    gone: dict[str, int] = {}
    with opened_engine(engine_address(engine)) as log:
        left = forgetting.look(log, group, topic)
        for one in left:
            behind = "its position is not known" if one.behind is None else f"{one.behind:,} records behind"
            say(f"{group} on {one.topic}: {behind}. What is removed before it comes back is a gap for it.")
        say("Its frontier and marks stay in the effect store: no effect is made twice.")
        if not dry_run:
            confirm(f"forget {group}?", yes=yes)
            gone = forgetting.forget(log, group, topic, force=force)
    rows = [{"topic": name, "records": count} for name, count in gone.items()]

    def draw() -> Iterator[Any]:
        for name, count in gone.items():
            yield line(f"{group}: forgotten on {name}" + (f", with {count:,} records that waited" if count else ""))

    emit(output, "group-forget", {"group": group, "left": left, "forgotten": rows}, draw=draw, rows="forgotten")


def _told(output: Output | None, kind: str, group: str, places: dict[str, list[int]], word: str) -> None:
    told = [f"{topic}/{number}" for topic, numbers in places.items() for number in numbers]

    def draw() -> Iterator[Any]:
        yield line(f"{group}: {word} {' '.join(told)}" if told else f"{group}: nothing to be {word}")

    emit(output, kind, {"group": group, word: told}, draw=draw)


def _look(contract: str | None, group: str | None, engine: str | None, store: str | None) -> Status:
    from settled.cli.opening import engine_address, opened_engine, opened_store_or_none, source, store_address
    from settled.operations import status as operation

    stated = source(contract) if contract is not None else None
    app = stated.app if stated else None
    with (
        opened_engine(engine_address(engine, app)) as log,
        opened_store_or_none(store_address(store, app)) as effects,
    ):
        return operation.status(log, effects, stated.contract if stated else None, group)


def _screen(one: ConsumerStatus) -> Iterator[Any]:
    oldest = f", the oldest for {age(one.oldest_age_s)}" if one.oldest_age_s is not None else ""
    yield line(f"{one.consumer}: {one.state}, {one.lag_records:,} records behind{oldest}", "bold")
    if one.state in {"ahead", "other-log"}:
        yield line("  log and store do not belong together: workers will refuse; put the right file back", BAD)
    if one.outage:
        yield line(f"  waiting: {one.outage}", BAD)
    told = ", ".join(f"{count:,} {name}" for name, count in one.outcomes.items()) or "nothing yet"
    yield line(f"  settled: {told}")
    if one.held or one.requested:
        yield line(f"  quarantine: {one.held:,} held, {one.requested:,} redrives asked for", BAD if one.held else "")
    for gap in one.gaps:
        lost = gap.next_offset - gap.first
        yield line(f"  gap: {gap.topic}/{gap.partition} lost {lost:,} records from {gap.first} on", BAD)
    yield from _pauses(one)
    yield from _queues(one)
    yield from _partitions(one)
    yield from _members(one)
    if one.workers:
        yield grid(
            ("worker", "host", ">pid", "state", "why", "said"),
            [(w.member, w.host, w.pid, w.state, w.why, at(w.updated_us)) for w in one.workers],
        )


def _pauses(one: ConsumerStatus) -> Iterator[Any]:
    for pause in one.paused:
        place = f"{pause.topic}/{pause.partition}"
        yield line(f"  paused: {place} since {at(pause.paused_us)} by {pause.who}: {shown(pause.reason)}", BAD)


def _queues(one: ConsumerStatus) -> Iterator[Any]:
    for queue in one.queues:
        words = f"  queue {queue.topic}: {queue.ready:,} ready"
        words += f", the oldest for {age(queue.oldest_age_s)}" if queue.oldest_age_s is not None else ""
        words += f"; {queue.scheduled:,} scheduled" if queue.scheduled is not None else ""
        words += f", the first due in {age(queue.due_in_s)}" if queue.due_in_s is not None else ""
        yield line(words)


def _partitions(one: ConsumerStatus) -> Iterator[Any]:
    if one.partitions:
        yield grid(
            ("topic", ">partition", "state", ">epoch", ">frontier", ">committed", ">end", ">lag", ">about", "oldest"),
            [
                (
                    *(p.topic, p.partition, p.state, p.epoch),
                    *("-" if offset is None else offset for offset in (p.frontier, p.committed)),
                    p.end,
                    *(f"{p.records:,}", size(p.bytes_about), age(p.oldest_age_s)),
                )
                for p in one.partitions
            ],
        )


def _members(one: ConsumerStatus) -> Iterator[Any]:
    if one.members:
        yield grid(
            ("member", "host", ">pid", "partitions", ">lease left"),
            [
                (
                    *(m.member, m.host, m.pid),
                    "idle: others have all partitions" if m.idle else " ".join(f"{t}/{p}" for t, p in m.partitions),
                    age(m.lease_left_s),
                )
                for m in one.members
            ],
        )


def _summary(one: ConsumerStatus) -> dict[str, Any]:
    return {
        "group": one.group,
        "consumer": one.consumer,
        "state": one.state,
        "members": len(one.members),
        "idle_members": sum(member.idle for member in one.members),
        "lag_records": one.lag_records,
        "oldest_age_s": one.oldest_age_s,
    }
