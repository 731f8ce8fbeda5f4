"""settled outbox: the relay that publishes what was committed with an effect, and what people do with its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from settled.cli.options import DryRunOption, EngineOption, OutputOption, ReasonOption, StoreOption, YesOption
from settled.cli.output import Output, emit, grid, line, say
from settled.cli.text import json_bytes, shown_bytes
from settled.cli.times import age, at

if TYPE_CHECKING:
    from settled.events import Event
    from settled.store import Outbox, OutboxRow, OutboxStatus

verbs = typer.Typer(help="Messages written with an effect, and their relay.", no_args_is_help=True)

Numbers = Annotated[list[int] | None, typer.Argument(metavar="[NUMBER]...", help="Rows by number, as `ls` has them.")]


@verbs.command("relay")
def relay(
    rate: Annotated[str | None, typer.Option("--rate", metavar="N/s", help="At most so many rows a second.")] = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left that could be sent now.")] = False,
    attempts: Annotated[int, typer.Option(min=1, help="Refusals by the log after which a row is parked.")] = 8,
    first: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Delay after the first refusal.")] = 1.0,
    most: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="The longest such delay.")] = 60.0,
    lease: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long others wait for a silent relay.")
    ] = 10.0,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="FROM=TO", help="Publish rows of FROM to topic TO.")
    ] = None,
    durability: Annotated[
        Literal["memory", "local", "committed"] | None,
        typer.Option("--durability", help="Where a row must be before it is removed; unless stated, the log's utmost."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="This relay's name, for people.")] = None,
    engine: EngineOption = None,
    store: StoreOption = None,
) -> None:
    """Publish the outbox's rows to the log, in order per key, until SIGTERM or Ctrl-C. Several may run."""
    import logging
    import sys

    from settled.cli.opening import engine_address, opened_engine, opened_store, store_address
    from settled.outbox.policy import RelayPolicy
    from settled.outbox.relay import Relay
    from settled.signals import on_signals

    policy = RelayPolicy(
        rate=None if rate is None else _rate(rate),
        attempts=attempts,
        first_s=first,
        most_s=most,
        lease_s=lease,
        topics=dict(map(_mapping, topic or ())),
        durability=durability,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    to, of = engine_address(engine), store_address(store)
    with opened_store(of) as effects, opened_engine(to) as found:
        relay = Relay(effects, found, policy, name=name, events=_narrated())
        say(f"{relay.name}: from {of.shown} to {to.shown}")
        with on_signals(relay.stop):
            relay.run(drain=drain)
        say(f"{relay.name}: relayed {relay.relayed:,}, refused {relay.refused:,}")


@verbs.command("status")
def status(store: StoreOption = None, output: OutputOption = None) -> None:
    """How many rows wait, since when, how many are parked, and who relays."""
    from settled.cli.opening import opened_store, store_address

    with opened_store(store_address(store)) as effects:
        found = effects.outbox.status()

    def draw() -> Iterator[Any]:
        yield from _status_lines(found)

    emit(output, "outbox-status", _status_json(found), draw=draw)


@verbs.command("ls")
def ls(
    state: Annotated[
        str, typer.Option("--state", help="pending, failing, parked, discarded; several with commas; or all.")
    ] = "failing,parked",
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 100,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """List rows, oldest first: by default those that the log refused."""
    from settled.cli.opening import opened_store, store_address

    states = () if state == "all" else tuple(state.split(","))
    with opened_store(store_address(store)) as effects:
        rows = effects.outbox.rows(states=states, limit=limit)

    def draw() -> Iterator[Any]:
        yield grid(
            (">number", "state", "topic", "key", "id", ">bytes", ">attempts", "error", "since"),
            [
                (
                    *(row.seq, row.state, row.message.topic, shown_bytes(row.message.key), row.message.id),
                    *(row.value_bytes, row.attempts, row.error[:120], at(row.created_us)),
                )
                for row in rows
            ],
        )

    emit(output, "outbox", {"rows": [_row_json(row) for row in rows]}, draw=draw, rows="rows")


@verbs.command("retry")
def retry(
    numbers: Numbers = None,
    everything: Annotated[bool, typer.Option("--all", help="All that failed or are parked.")] = False,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """Let parked and failing rows be sent again, with their attempts counted anew. Later rows of a parked row's key may
    have been published before it."""
    from settled.cli.opening import opened_store, store_address

    with opened_store(store_address(store)) as effects:
        chosen = _chosen(effects.outbox, numbers, ("failing", "parked") if everything else ())
        _report(chosen, effects.outbox.retry(chosen), "retried", output)


@verbs.command("park")
def park(
    numbers: Numbers = None,
    reason: ReasonOption = None,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """Set rows aside: they are not sent, and later rows of their keys go on."""
    from settled.cli.confirm import required_reason
    from settled.cli.opening import opened_store, store_address

    why = required_reason(reason)
    with opened_store(store_address(store)) as effects:
        chosen = _chosen(effects.outbox, numbers, ())
        _report(chosen, effects.outbox.park(chosen, reason=why), "parked", output)


@verbs.command("discard")
def discard(
    numbers: Numbers = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are parked.")] = False,
    reason: ReasonOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    output: OutputOption = None,
) -> None:
    """Decide that parked rows are never sent. They stay as evidence, with who and why."""
    from settled.cli.confirm import confirm, required_reason, who
    from settled.cli.opening import opened_store, store_address

    with opened_store(store_address(store)) as effects:
        chosen = _chosen(effects.outbox, numbers, ("parked",) if everything else ())
        plan = [row for row in _parked(effects.outbox) if row.seq in set(chosen)]
        say(f"discard: {len(plan)} parked rows of {len(chosen)} that were named")
        for row in plan:
            say(f"  {row.seq}: event {row.message.id} for {row.message.topic}: {row.error[:120]}")
        if dry_run:
            emit(output, "outbox-plan", {"discard": [_row_json(row) for row in plan]}, draw=lambda: iter(()))
            return
        why = required_reason(reason)
        if plan:
            confirm(f"discard {len(plan)} rows for good?", yes=yes)
        _report(chosen, effects.outbox.discard([row.seq for row in plan], reason=why, who=who()), "discarded", output)


def _parked(outbox: Outbox) -> list[OutboxRow]:
    return outbox.rows(states=("parked",), limit=outbox.status().parked + 1000)


def _chosen(outbox: Outbox, numbers: list[int] | None, states: tuple[str, ...]) -> list[int]:
    """The numbers that were named, or those of all rows in these states as they stand now."""
    from settled.errors import ContractError

    if bool(numbers) == bool(states):
        raise ContractError("name rows by number, or take --all", field="NUMBER", hint="settled outbox ls lists them")
    if numbers:
        return numbers
    found = outbox.status()
    return [row.seq for row in outbox.rows(states=states, limit=found.failing + found.parked + 1000)]


def _report(chosen: list[int], changed: list[int], done: str, output: Output | None) -> None:
    left = sorted(set(chosen) - set(changed))
    document = {done: changed, "unchanged": left}

    def draw() -> Iterator[Any]:
        yield line(
            f"{done}: {len(changed)}" + (f"; unchanged (sent, gone or in another state): {left}" if left else "")
        )

    emit(output, f"outbox-{done}", document, draw=draw)


def _status_json(found: OutboxStatus) -> dict[str, Any]:
    return {
        "pending": found.pending,
        "failing": found.failing,
        "parked": found.parked,
        "discarded": found.discarded,
        "oldest_age_s": found.oldest_age_s,
        "relays": found.relays,
    }


def _status_lines(found: OutboxStatus) -> Iterator[Any]:
    oldest = "" if found.oldest_age_s is None else f", the oldest {age(found.oldest_age_s)} old"
    yield line(f"{found.pending:,} pending, {found.failing:,} failing, {found.parked:,} parked{oldest}", "bold")
    if found.pending and not found.relays:
        yield line("no relay runs: start one with `settled outbox relay`", "red")
    if found.relays:
        yield grid(
            ("relay", "host", ">pid", "buckets", "waits for", ">lease left"),
            [
                (each.relay, each.host, each.pid, len(each.buckets), each.why, age(each.lease_left_s))
                for each in found.relays
            ],
        )


def _row_json(row: OutboxRow) -> dict[str, Any]:
    message = row.message
    return {
        "number": row.seq,
        "state": row.state,
        "id": message.id,
        "topic": message.topic,
        "key": json_bytes(message.key),
        "type": message.type,
        "value_bytes": row.value_bytes,
        "attempts": row.attempts,
        "error": row.error,
        "created": at(row.created_us),
        "due": at(row.due_us) if row.state == "failing" else None,
    }


def _narrated() -> Any:
    from settled.events import Events, RelayStateChanged, RowRefused

    events = Events()

    def hear(event: Event) -> None:
        match event:
            case RelayStateChanged(state=("waiting" | "running") as state, why=why):
                say(f"{state}: {why}" if why else state)
            case RowRefused(parked=True):
                say(f"parked after {event.count} attempts: event {event.event_id} for {event.topic}: {event.error}")
            case RowRefused(count=1):
                say(f"refused, tried again later: event {event.event_id} for {event.topic}: {event.error}")

    events.listen(hear)
    return events


def _rate(text: str) -> float:
    try:
        found = float(text.removesuffix("/s"))
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise typer.BadParameter(f"--rate {text!r}: write it as 500/s")
    return found


def _mapping(text: str) -> tuple[str, str]:
    source, _, target = text.partition("=")
    if not source or not target:
        raise typer.BadParameter(f"--topic {text!r}: write it as FROM=TO")
    return source, target
