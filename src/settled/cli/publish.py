"""settled publish: a file of events into the log."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from settled.cli.options import ContractOption, EngineOption, OutputOption
from settled.cli.output import Output, emit, line, say
from settled.cli.text import shown

if TYPE_CHECKING:
    from settled.contract.model import Contract
    from settled.operations.mapping import Mapping
    from settled.operations.publish import Published
    from settled.operations.rows import BadRow
    from settled.record import Headers

NAMED_FAULTS = 20  # bad lines that are told one by one; all are counted


def _column(name: str, words: str) -> Any:
    return typer.Option(name, metavar="COLUMN", help=words)


def publish(
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="JSON lines or CSV, also .gz; - is a pipe.")] = "-",
    contract: ContractOption = None,
    form: Annotated[str | None, typer.Option("--format", help="jsonl, csv, jsonl.gz or csv.gz; else by name.")] = None,
    id_template: Annotated[
        str | None, typer.Option("--id", metavar="TEMPLATE", help="Event id, e.g. '{file}:{key}:{version}'.")
    ] = None,
    id_column: Annotated[str | None, _column("--id-column", "Event id; else made from file, line and content.")] = None,
    key_column: Annotated[str | None, _column("--key-column", "Key; else the contract's; '' for none.")] = None,
    version_column: Annotated[str | None, _column("--version-column", "Version; else the contract's.")] = None,
    time_column: Annotated[str | None, _column("--time-column", "Event time, ISO 8601.")] = None,
    time_zone: Annotated[
        str | None, typer.Option("--time-zone", metavar="NAME", help="Of times that state none, e.g. UTC.")
    ] = None,
    type_column: Annotated[str | None, _column("--type-column", "Event type.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=COLUMN", help="A header; repeatable.")
    ] = None,
    value: Annotated[
        str, typer.Option("--value", metavar="all|rest|COLUMN", help="All columns, the unmapped, or one.")
    ] = "all",
    skip_bad: Annotated[
        Path | None, typer.Option("--skip-bad", metavar="FILE", help="Collect bad lines here, and exit 0.")
    ] = None,
    not_before: Annotated[
        str | None,
        typer.Option("--not-before", metavar="TIME", help="Of a queue: when it is due, e.g. 2030-01-31T12:00Z."),
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Of a queue: 0 to 9, higher first.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Of a queue: whose work; tenants take turns.")] = None,
    producer: Annotated[
        str | None, typer.Option("--producer", metavar="NAME", help="Who publishes; else derived from the file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    engine: EngineOption = None,
    output: OutputOption = None,
) -> None:
    """Publish events from a file or a pipe. Started again after a kill, it goes on where it came to."""
    from settled.cli.opening import engine_address, opened_engine, stated_source
    from settled.operations import publish as operation
    from settled.operations.mapping import header_pairs
    from settled.operations.rows import Reader, format_of, opened
    from settled.signals import interruptible

    source = stated_source(contract)
    mapping = _mapping(
        source.contract,
        file="stdin" if file == "-" else Path(file).name,
        key=key_column,
        version=version_column,
        id=id_template,
        id_column=id_column,
        time=time_column,
        zone=time_zone,
        type=type_column,
        headers=header_pairs(header or []),
        scheduled=_scheduled(source.contract, not_before, priority, tenant),
        value=value,
    )
    known_format = format_of(file, form)
    with ExitStack() as stack:
        interrupts = stack.enter_context(interruptible())
        stream = opened(file, interrupts.reads(sys.stdin.buffer))
        if file != "-":
            stack.enter_context(stream)
        identity = producer
        if identity is None and file != "-":
            identity = operation.file_identity(stream, file, mapping)
        faults = stack.enter_context(_Faults(skip_bad))
        reader = Reader(stream, known_format)
        log = stack.enter_context(opened_engine(engine_address(engine, source.app), create=True))
        try:
            with _telling(file, reader, quiet) as tell:
                counts = operation.publish(
                    log,
                    source.contract,
                    reader,
                    mapping,
                    identity=identity,
                    bad=faults.add,
                    progress=tell,
                    check=interrupts.check,
                )
        except KeyboardInterrupt:
            say(
                "settled: stopped; what was sent is kept"
                + (", the same command goes on from there" if identity else "")
            )
            raise
    _report(counts, source.contract.transport.topic, output)
    if counts.refused and skip_bad is None:
        raise typer.Exit(1)


def _scheduled(contract: Contract, not_before: str | None, priority: int | None, tenant: str | None) -> Headers:
    from settled import scheduling
    from settled.cli.times import moment
    from settled.contract import specs
    from settled.record import from_us

    due = None if not_before is None else from_us(moment(not_before, "--not-before"))
    headers = scheduling.headers(not_before=due, priority=priority, tenant=tenant)
    if headers:
        specs.require_scheduling(contract, headers)
    return headers


def _mapping(contract: Contract, *, key: str | None, version: str | None, zone: str | None, **rest: Any) -> Mapping:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    from settled.errors import ContractError
    from settled.operations.mapping import Mapping

    try:
        found = None if zone is None else ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ContractError(
            f"{zone!r} is no time zone", field="--time-zone", value=zone, hint="e.g. UTC or Europe/Berlin"
        ) from None
    transport = contract.transport
    return Mapping(
        topic=transport.topic,
        key=transport.key if key is None else key or None,
        version=transport.version if version is None else version or None,
        zone=found,
        **rest,
    )


class _Faults:
    """Bad lines: told by number, and with `--skip-bad` collected, one JSON object a line."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._count = path, 0
        self._file: Any = None

    def __enter__(self) -> _Faults:
        from settled.errors import ContractError

        if self._path is not None:
            try:
                self._file = self._path.open("w", encoding="utf-8")
            except OSError as error:
                raise ContractError(
                    f"{self._path} cannot be written: {error.strerror}", field="--skip-bad", hint="give another path"
                ) from None
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()
        elif self._count > NAMED_FAULTS:
            say(f"and {self._count - NAMED_FAULTS} bad lines more; --skip-bad FILE collects them all")

    def add(self, bad: BadRow) -> None:
        self._count += 1
        if self._file is not None:
            self._file.write(json.dumps({"line": bad.line, "reason": bad.reason, **_raw(bad.raw)}) + "\n")
        elif self._count <= NAMED_FAULTS:
            say(f"line {bad.line}: {shown(bad.reason)}")


def _raw(raw: bytes) -> dict[str, str]:
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}


def _telling(file: str, reader: Any, quiet: bool) -> Any:
    """A context that gives a function to tell the counts."""
    from contextlib import contextmanager

    from settled.cli.progress import progress

    @contextmanager
    def telling() -> Iterator[Any]:
        if quiet:
            yield lambda counts: None
            return
        total = None if file == "-" else Path(file).stat().st_size
        with progress(f"publishing {file}", total) as tell:

            def told(counts: Published) -> None:
                words = f"{counts.published:,} published, {counts.per_second:,.0f}/s"
                tell(reader.position or 0, words + (f", {counts.refused:,} refused" if counts.refused else ""))

            yield told

    return telling()


def _report(counts: Published, topic: str, output: Output | None) -> None:
    def draw() -> Iterator[Any]:
        if counts.before:
            yield line(f"{counts.before:,} were published before, up to line {counts.resumed_after}")
        yield line(
            f"{counts.published:,} messages published to {topic} in {counts.seconds:.1f} s ({counts.per_second:,.0f}/s)"
        )
        if counts.refused:
            yield line(f"{counts.refused:,} lines were refused", "bold red")
        if counts.before and not counts.published:
            yield line("Nothing was left to publish; to publish the file again on purpose, name another --producer.")

    document = {
        "topic": topic,
        "lines": counts.lines,
        "published": counts.published,
        "published_before": counts.before,
        "refused": counts.refused,
        "bytes": counts.bytes,
        "seconds": round(counts.seconds, 3),
        "per_second": round(counts.per_second, 1),
        "producer": counts.producer,
        "resumed_after_line": counts.resumed_after,
    }
    emit(output, "publish", document, draw=draw)
