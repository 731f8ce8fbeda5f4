"""Topics of form log, made, compared, grown, looked at. Each call has a connection of its own while it lasts."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pika
from pika.adapters.blocking_connection import BlockingChannel

from settled.engine import PartitionInfo, TopicInfo, TopicSpec
from settled.engines.rabbitmq import faults
from settled.engines.rabbitmq.board import BOARD, Board, board_of, note_of
from settled.engines.rabbitmq.facts import (
    MOST_PARTITIONS,
    Facts,
    Joined,
    Known,
    arguments,
    check,
    compare,
    facts_in,
    stream_of,
)
from settled.engines.rabbitmq.looking import waited_for
from settled.engines.rabbitmq.records import record_of
from settled.engines.rabbitmq.stream_steps import T, bounds, entries, first_since
from settled.engines.rabbitmq.topology import Channels, Topology, facts_of, other_form
from settled.errors import ContractError, Unavailable
from settled.record import Record

ALL = 1_000_000_000
_PASSING = (faults.INTERNAL_ERROR, faults.RESOURCE_ERROR, faults.PRECONDITION_FAILED, faults.NOT_FOUND)
PAUSE_S = 0.2
NOTES = (
    "retention: the brokers remove whole files of a partition, when a new one begins",
    "begin and end are exact; between them may be numbers without a record",
)


class Streams:
    """Any thread may call it. A stream can be read on nodes that have a copy of it: others are passed over."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def known(self, topic: str) -> Known | None:
        """None: there is no such log."""
        return self._asked(f"looking at topic {topic!r}", topic, lambda channels: _known(channels, topic))

    def ensure(self, spec: TopicSpec) -> None:
        """Make the topic, or compare it. What differs is told, and nothing is changed but the limit of a message."""
        check(spec)
        self._asked(f"making topic {spec.name!r}", spec.name, lambda channels: self._ensure(channels, spec))

    def _ensure(self, channels: Channels, spec: TopicSpec) -> None:
        known = _known(channels, spec.name) or self._make(channels, spec)
        compare(known.facts, spec)
        _declare(channels, spec.name, known.facts.stream, range(known.facts.partitions))
        if known.facts.max_message_bytes != spec.max_message_bytes:
            changed = msgspec.structs.replace(known.facts, max_message_bytes=spec.max_message_bytes)
            _write(channels, facts_of(spec.name), changed)

    def _make(self, channels: Channels, spec: TopicSpec) -> Known:
        """Its facts are written last: what is made in part is not there, and made again. Of several that are written at
        the same time the first holds."""
        there = self._topology.form_of(channels, spec.name)
        if there is not None and there.form != "log":
            raise other_form(spec.name, there.form, "log")
        facts = Facts(
            identity=uuid.uuid4().hex,
            partitions=spec.partitions,
            stream=arguments(spec),
            retention_s=spec.retention_s,
            retention_bytes=spec.retention_bytes,
            max_message_bytes=spec.max_message_bytes,
        )
        _declare(channels, spec.name, facts.stream, range(spec.partitions))
        name = facts_of(spec.name)
        _declare_one(channels, spec.name, name, {"x-queue-type": "stream"})
        _write(channels, name, facts)
        deadline = time.monotonic() + self._topology.settings.connect_s
        while (known := _known(channels, spec.name)) is None:
            if time.monotonic() > deadline:
                raise Unavailable(f"topic {spec.name!r}: this node's copy of its facts lags", hint="try again")
        return known

    def is_there(self, spec: TopicSpec) -> bool:
        """False: it is not there. Raises as `ensure` does, makes nothing."""
        check(spec)
        known = self.known(spec.name)
        if known is None:
            there = self._topology.there(spec.name)
            if there is not None and there.form != "log":
                raise other_form(spec.name, there.form, "log")
            return False
        compare(known.facts, spec)
        return True

    def grow(self, topic: str, partitions: int) -> None:
        self._asked(f"growing topic {topic!r}", topic, lambda channels: self._grow(channels, topic, partitions))

    def _grow(self, channels: Channels, topic: str, partitions: int) -> None:
        known = _require(channels, topic)
        there = known.facts.partitions
        if not there <= partitions <= MOST_PARTITIONS:
            raise ContractError(
                f"topic {topic!r} has {there} partitions: it cannot have {partitions}",
                field="partitions",
                value=partitions,
                hint=f"name a number from {there} to {MOST_PARTITIONS}",
            )
        if partitions > there:
            _declare(channels, topic, known.facts.stream, range(there, partitions))
            _write(channels, facts_of(topic), msgspec.structs.replace(known.facts, partitions=partitions))

    def join(self, topic: str, group: str) -> Facts:
        """The topic's facts, for a member that joins: the group is on record, its board is there."""

        def asked(channels: Channels) -> Facts:
            known = _require(channels, topic)
            channels(lambda ch: ch.queue_declare(board_of(topic, group), durable=True, arguments=BOARD))
            if group not in known.groups:
                _write(channels, facts_of(topic), Joined(group=group))
            return known.facts

        return self._asked(f"joining topic {topic!r}", topic, asked)

    def info(self, topic: str) -> TopicInfo | None:
        def asked(channels: Channels) -> TopicInfo | None:
            known = _known(channels, topic)
            if known is None:
                return None
            facts = known.facts
            parts = [_part(channels, topic, number) for number in range(facts.partitions)]
            return TopicInfo(spec=facts.spec(topic), identity=facts.identity, partitions=parts, notes=NOTES)

        return self._asked(f"looking at topic {topic!r}", topic, asked)

    def boards(self, topic: str, group: str | None) -> dict[str, Board]:
        """The boards of the topic's groups, or of the one named, as far as there are any."""

        def asked(channels: Channels) -> dict[str, Board]:
            known = _known(channels, topic)
            names = [] if known is None else [name for name in known.groups if group in (None, name)]
            return {name: _board(channels, board_of(topic, name)) for name in names}

        return self._asked(f"looking at groups of topic {topic!r}", topic, asked)

    def read(self, topic: str, partition: int, offset: int, records: int) -> list[Record]:
        def asked(channels: Channels) -> list[Record]:
            _require_place(channels, topic, partition)
            found = _run(channels, stream_of(topic, partition), entries, max(0, offset), records)
            return [record_of(topic, partition, one.offset, one.properties, one.body)[0] for one in found]

        return self._asked(f"reading {topic}/{partition}", topic, asked)

    def offset_at(self, topic: str, partition: int, us: int) -> int:
        def asked(channels: Channels) -> int:
            _require_place(channels, topic, partition)
            stream = stream_of(topic, partition)
            found: int | None = _run(channels, stream, first_since, us)
            if found is None:
                found = int(_run(channels, stream, bounds)[1])
            return found

        return self._asked(f"reading {topic}/{partition}", topic, asked)

    def _asked(self, what: str, topic: str, asked: Callable[[Channels], T]) -> T:
        """On one address after the other, and again for a while where that is all it takes."""
        count = len(self._topology.settings.addresses)
        deadline = time.monotonic() + self._topology.settings.connect_s
        for turn in itertools.count():
            try:
                with self._topology.channels(what, topic, turn % count) as channels:
                    return asked(channels)
            except Unavailable as error:
                passes = _passes(error) and time.monotonic() < deadline
                if turn + 1 >= count and not passes:
                    raise
            if turn + 1 >= count:
                time.sleep(PAUSE_S)
        raise AssertionError


def _passes(error: BaseException | None) -> bool:
    """A stream that somebody else is just making, whose leader is being chosen, or of which a copy is not up yet."""
    while error is not None:
        if faults.code_of(error) in _PASSING:
            return True
        error = error.__cause__
    return False


def _require_place(channels: Channels, topic: str, partition: int) -> None:
    there = _require(channels, topic).facts.partitions
    if not 0 <= partition < there:
        raise ContractError(
            f"topic {topic!r} has no partition {partition}",
            field="partition",
            value=partition,
            hint=f"there are 0 to {there - 1}",
        )


def _board(channels: Channels, stream: str) -> Board:
    board = Board()
    for entry in _run(channels, stream, entries, "first", ALL):
        note = note_of(entry.body)
        if note is not None:
            board.take(note, entry.offset)
    return board


def _declare(channels: Channels, topic: str, arguments: dict[str, Any], numbers: Iterable[int]) -> None:
    for number in numbers:
        _declare_one(channels, topic, stream_of(topic, number), arguments)


def _declare_one(channels: Channels, topic: str, name: str, arguments: dict[str, Any]) -> None:
    """What is made cannot be absent: the broker says so of a stream whose node does not run it yet."""
    try:
        channels(lambda ch: ch.queue_declare(name, durable=True, arguments=arguments))
    except ContractError as error:
        if faults.code_of(error.__cause__) != faults.NOT_FOUND:
            raise
        raise Unavailable(f"topic {topic!r}: stream {name!r} is not up yet", hint="try again") from error.__cause__


def _write(channels: Channels, stream: str, said: Facts | Joined) -> None:
    """Durable when it returns."""

    def step(channel: BlockingChannel) -> None:
        own = channel.connection.channel()
        own.confirm_delivery()
        own.basic_publish("", stream, msgspec.json.encode(said), pika.BasicProperties(delivery_mode=2), mandatory=True)
        own.close()

    channels(step)


def _known(channels: Channels, topic: str) -> Known | None:
    name = facts_of(topic)
    if channels.code(lambda ch: ch.queue_declare(name, passive=True)) == faults.NOT_FOUND:
        return None
    return facts_in(entry.body for entry in _run(channels, name, entries, "first", ALL))


def _require(channels: Channels, topic: str) -> Known:
    known = _known(channels, topic)
    if known is None:
        raise faults.absent(topic)
    return known


def _part(channels: Channels, topic: str, number: int) -> PartitionInfo:
    begin, end = _run(channels, stream_of(topic, number), bounds)
    return PartitionInfo(
        partition=number, begin=begin, end=end, records=end - begin, bytes=None, stored_bytes=None, exact=False
    )


def _run(channels: Channels, stream: str, asked: Any, *given: Any) -> Any:
    """Take the steps on a channel of their own; what they return."""
    found: list[Any] = []
    try:
        channels(lambda channel: found.append(waited_for(channel.connection, stream, asked, *given)))
    except ContractError as error:
        if faults.code_of(error.__cause__) != faults.PRECONDITION_FAILED:
            raise
        raise Unavailable(f"stream {stream!r}: this node has no copy of it now", hint="others are asked") from error
    return found[0]
