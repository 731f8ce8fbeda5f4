"""settled topic: what the log holds."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from settled.cli.options import ContractOption, DryRunOption, EngineOption, OutputOption, YesOption
from settled.cli.output import Output, chosen, emit, flush, grid, line, line_json, say, write
from settled.cli.text import json_bytes, shown, shown_bytes
from settled.cli.times import age, at, moment, size

if TYPE_CHECKING:
    from settled.engine import TopicInfo
    from settled.operations.topics import Difference
    from settled.record import Record

verbs = typer.Typer(help="What the log holds.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@verbs.command("ls")
def ls(engine: EngineOption = None, output: OutputOption = None) -> None:
    """List all topics with their sizes."""
    from settled.cli.opening import engine_address, opened_engine

    with opened_engine(engine_address(engine)) as log:
        rows = [_summary(info) for info in log.topics()]

    def draw() -> Iterator[Any]:
        yield grid(
            ("topic", ">partitions", ">records", ">bytes", ">stored", "oldest"),
            [
                (*list(row.values())[:3], size(row["bytes"]), size(row["stored_bytes"]), row["oldest"] or "")
                for row in rows
            ],
        )

    emit(output, "topics", {"topics": rows}, draw=draw, rows="topics")


@verbs.command("describe")
def describe(
    topic: Topic,
    contract: ContractOption = None,
    engine: EngineOption = None,
    output: OutputOption = None,
) -> None:
    """Positions and sizes of each partition, and the topic's settings. With a contract: exit 1 where they differ."""
    from settled.cli.opening import engine_address, opened_engine, source
    from settled.contract import specs
    from settled.operations import topics

    stated = source(contract) if contract is not None else None
    with opened_engine(engine_address(engine, stated.app if stated else None)) as log:
        info = topics.topic(log, topic)
    differences = topics.compare(specs.topic_spec(stated.contract), info) if stated else []
    document = {**_summary(info), "identity": info.identity, "spec": info.spec, "positions": info.partitions}
    document |= {"queue": info.queue, "notes": info.notes, "differences": differences}
    emit(output, "topic", document, draw=lambda: _described(info, differences), rows="positions")
    if differences:
        raise typer.Exit(1)


def _described(info: TopicInfo, differences: list[Difference]) -> Iterator[Any]:
    spec = info.spec
    keeps = "for ever" if spec.retention_s is None else age(spec.retention_s)
    most = "any size" if spec.retention_bytes is None else size(spec.retention_bytes)
    compacted = f", compacted by key (tombstones stay {age(spec.tombstone_s)})" if spec.compact else ""
    copies = f", {spec.replicas} replicas of which {spec.min_isr} must hold a record" if spec.replicas else ""
    if not info.partitions:
        yield line(f"{spec.name}: a {spec.form}")
    elif info.queue is None:
        yield line(f"{spec.name}: {spec.partitions} partitions, kept {keeps} and up to {most}{compacted}{copies}")
    elif spec.form == "pubsub":
        yield line(f"{spec.name}: each subscription has a queue with {spec.partitions} slots{copies}")
    else:
        waiting = "" if info.queue.scheduled is None else f", {info.queue.scheduled:,} scheduled"
        yield line(f"{spec.name}: a queue with {spec.partitions} slots, {info.queue.ready:,} ready{waiting}{copies}")
    for note in info.notes:
        yield line(f"note: {note}")
    if differences:
        yield line("not as the contract wants it:", "bold red")
        yield grid(
            ("field", "contract", "topic", "what to do"), [(d.field, d.wanted, d.found, d.remedy) for d in differences]
        )
    yield grid(
        (">partition", ">begin", ">end", ">records", ">bytes", ">stored", "oldest"),
        [
            (p.partition, p.begin, p.end, p.records, size(p.bytes), size(p.stored_bytes), at(p.oldest_us))
            for p in info.partitions
        ],
    )


@verbs.command("tail")
def tail(
    topic: Topic,
    count: Annotated[int | None, typer.Option("-n", "--count", min=0, help="How many; 10 unless stated.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Of this partition only.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="From here on; needs --partition.")] = None,
    from_time: Annotated[
        str | None, typer.Option("--from-time", metavar="ISO", help="From what was accepted then on.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as records come; Ctrl-C ends it.")] = False,
    engine: EngineOption = None,
    output: OutputOption = None,
) -> None:
    """Print records without loss: bytes that are not clean text come as hex or base64, labelled."""
    from settled.cli.opening import engine_address, opened_engine
    from settled.operations import topics

    if offset is not None and (partition is None or from_time is not None):
        raise typer.BadParameter("--offset needs --partition, and does not go with --from-time")
    form = _form(output, follow)
    with opened_engine(engine_address(engine)) as log:
        info = topics.topic(log, topic)
        if partition is not None:
            topics.require_partition(info, partition)
        listening = log.tail(topic) if follow else None
        if follow:
            info = topics.topic(log, topic)  # as it is now: what comes later is heard
        ends = {p.partition: p.end for p in info.partitions if partition in (None, p.partition)}
        if from_time is not None:
            found = topics.records_from(log, info, topics.starts_at(log, info, moment(from_time), partition))
        elif offset is not None and partition is not None:
            found = topics.records_from(log, info, {partition: offset})
        else:
            found = iter(topics.last_records(log, info, 10 if count is None else count, partition))
        shown = _print(_first(found, count), form)
        if listening is None:
            for note in () if shown else info.notes:
                say(f"note: {note}")
            return
        flush()
        if not shown:
            say(f"listening to {topic}: nothing is there to show from before")
        for record in topics.follow(listening, ends, _lost):
            if partition in (None, record.partition):
                _print([record], form)
                flush()


def _lost(passed: int, interruptions: int) -> None:
    if passed:
        say(f"{passed:,} records passed that are not shown")
    if interruptions:
        say("the connection was lost, or too slow: other records may have passed that nobody counted")


@verbs.command("grow")
def grow(
    topic: Topic,
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="How many it shall have.")],
    review: Annotated[
        bool, typer.Option("--review", help="Say which share of recent keys would move; keyed topics need it.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    engine: EngineOption = None,
    output: OutputOption = None,
) -> None:
    """Add partitions. Keys may move to other partitions: their order across the change is not kept."""
    from settled.cli.confirm import confirm
    from settled.cli.opening import engine_address, opened_engine
    from settled.operations import growing, topics

    with opened_engine(engine_address(engine)) as log:
        found = growing.review(log, topics.topic(log, topic), partitions)
        say(f"{topic} has {found.before} partitions and would have {partitions}.")
        if not dry_run:
            growing.require_reviewed(found, reviewed=review)
        for text in growing.told(found):
            say(text)
        say("Change transport.partitions in the contract, too.")
        if not dry_run:
            confirm(f"grow {topic}?", yes=yes)
            log.grow_topic(topic, partitions)
            say(f"{topic} has {partitions} partitions now")
    document = {"grown": not dry_run, "review": found, "share": found.share}
    emit(output, "growth", document, draw=lambda: ())


def record_json(record: Record) -> dict[str, Any]:
    """A record without loss, for JSON."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "id": record.id,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": [[name, json_bytes(value)] for name, value in record.headers],
        "type": record.type,
        "version": record.version,
        "event_time": at(record.event_time_us) or None,
        "accepted": at(record.accepted_us or None) or None,
        "correlation_id": record.correlation_id,
        "causation_id": record.causation_id,
    }


def record_lines(record: Record) -> list[str]:
    """A record without loss, for a terminal: its place and names, then its headers, then its value."""
    encoding = sys.stdout.encoding
    accepted = at(record.accepted_us) if record.accepted_us else "at an unknown time"
    head = [f"{record.topic}/{record.partition}@{record.offset}", accepted, f"id={shown(record.id)}"]
    head.append(f"key={shown_bytes(record.key, encoding)}")
    for name, value in (
        ("type", record.type),
        ("version", record.version),
        ("event_time", at(record.event_time_us) or None),
        ("correlation_id", record.correlation_id),
        ("causation_id", record.causation_id),
    ):
        if value is not None:
            head.append(f"{name}={shown(value)}")
    headers = [f"  {shown(name)}: {shown_bytes(value, encoding)}" for name, value in record.headers]
    return ["  ".join(head), *headers, f"  {shown_bytes(record.value, encoding)}"]


def _print(records: Iterable[Record], form: Output) -> int:
    """How many there were."""
    count = 0
    if form is Output.json:
        found = [record_json(record) for record in records]
        emit(form, "records", {"records": found}, draw=lambda: (), rows="records")
        return len(found)
    for count, record in enumerate(records, 1):  # noqa: B007 - returned
        for text in [line_json("record", record_json(record))] if form is Output.jsonl else record_lines(record):
            write(text)
    return count


def _form(output: Output | None, follow: bool) -> Output:
    if not follow:
        return chosen(output)
    if output is Output.json:
        raise typer.BadParameter("what is followed has no end, so it is no JSON document: use -o jsonl")
    form = chosen(output)
    return Output.jsonl if form is Output.json else form


def _first(records: Iterator[Record], count: int | None) -> Iterator[Record]:
    from itertools import islice

    return records if count is None else islice(records, count)


def _summary(info: TopicInfo) -> dict[str, Any]:
    """Of a queue what is ready or scheduled counts, too."""
    parts, queue = info.partitions, info.queue
    waiting = 0 if queue is None else queue.ready + (queue.scheduled or 0)
    oldest = [us for us in (queue.oldest_us if queue else None, *(part.oldest_us for part in parts)) if us is not None]
    return {
        "topic": info.spec.name,
        "partitions": len(parts),
        "records": sum(part.records for part in parts) + waiting,
        "bytes": _sum([part.bytes for part in parts] + ([queue.bytes] if queue else [])),
        "stored_bytes": _sum(part.stored_bytes for part in parts),
        "oldest": at(min(oldest)) if oldest else None,
    }


def _sum(sizes: Iterable[int | None]) -> int | None:
    """The sum, none where the engine does not tell sizes."""
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)
