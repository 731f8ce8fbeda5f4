"""The port to the log: topics, producers and consumers of records. Implementations live in `engines/`.

Every method's docstring says what is durable when it returns, which thread may call it, what it raises beyond
Unavailable (which any may raise: nothing happened, trying again is safe), and which capability it needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import msgspec

from settled.record import Message, Record

Durability = Literal["memory", "local", "committed"]
DURABILITIES: tuple[Durability, ...] = get_args(Durability)  # each loses less than those before
Compression = Literal["none", "zstd"]
Start = Literal["earliest", "latest"]
Form = Literal["queue", "pubsub", "log", "notification"]
Partition = tuple[str, int]  # topic, number
NONE_AGAIN: Mapping[int, int] = MappingProxyType({})


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine can keep. Read by the runtime, and tested both ways by the conformance suite."""

    durability: frozenset[Durability]
    forms: frozenset[Form] = frozenset({"log"})
    scheduling: bool = False  # a queue obeys not-before, priority and tenant, see `settled.scheduling`
    compaction: bool = False  # a log can keep the newest record of each key
    tails: bool = False  # `tail` reads without a group
    counts_passed: bool = True  # and counts all that passes it
    null_headers: bool = True  # header values may be none
    repeated_headers: bool = True  # header names may repeat
    producer_resume: bool = False  # a named producer can ask how far it came
    renumbers: bool = False  # a record that comes again has another offset: a frontier does not keep it from coming
    witness: bool = False  # marks show whether a log went back or was replaced
    maintains: bool = False  # `maintain` applies retention; else the brokers do so themselves
    max_message_bytes: int = 1_000_000
    differing: Mapping[Form, Mapping[str, Any]] = MappingProxyType({})  # fields with another value in a form

    def of(self, form: Form) -> Capabilities:
        """What is kept in this form."""
        return msgspec.structs.replace(self, **self.differing.get(form, {}))

    @property
    def most_durable(self) -> Durability:
        """The durability that loses least, of those that are kept."""
        return max(self.durability, key=DURABILITIES.index)


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as the contract wants it. `retention_s` and `retention_bytes` none keep for ever (bytes: per topic).

    `replicas` and `min_isr` (how many of them must hold a record before it is accepted) none: the engine's own choice.
    An engine with one copy of the log reads neither.

    form         who owns a record. In a queue one of the members does, whichever is free, and a partition is a slot:
                 the work that one member has claimed. Offsets number the claims of a slot, and the frontier passes what
                 is settled of them; the pool of what nobody has claimed is told by `TopicInfo.queue`
    compact      keep the newest record of each key at least; older ones may go once all active groups are past them
    tombstone_s  how long a record without a value, the newest of its key, stays after that; then the key is forgotten
    pass_groups  compaction need not wait for groups: those that are behind see what is left
    """

    name: str
    form: Form = "log"
    compact: bool = False
    tombstone_s: float = 86_400.0
    pass_groups: bool = False
    partitions: int = 1
    retention_s: float | None = None
    retention_bytes: int | None = None
    max_message_bytes: int | None = None  # none: the engine's own limit
    replicas: int | None = None
    min_isr: int | None = None


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`begin` is the first offset still held, `end` the next to be given out; `records` and `bytes` are held now.

    Sizes are none where the engine does not tell them. `exact` is false where `records` may count holes, too.
    """

    partition: int
    begin: int
    end: int
    records: int
    bytes: int | None  # expanded
    stored_bytes: int | None  # as held, compressed
    oldest_us: int | None = None  # accepted time of the first record held
    exact: bool = True


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue holds. Ready: free to be claimed; scheduled: not due yet; claimed: in a slot and not settled, as far
    as the engine was told. None where the engine does not tell."""

    ready: int
    scheduled: int | None
    claimed: int
    bytes: int | None = None  # expanded, of what is ready or scheduled
    oldest_us: int | None = None  # accepted time of the oldest that is ready
    next_due_us: int | None = None  # when the first of the scheduled is due


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`spec` is the topic as it is. `notes` say in words what of it weakens a promise and is no part of a spec."""

    spec: TopicSpec
    identity: str  # names this incarnation of the topic; another after it was deleted and made anew
    partitions: list[PartitionInfo]
    notes: tuple[str, ...] = ()
    queue: QueueInfo | None = None  # of a queue


class MemberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`pid` and `lease_left_s` are none where the engine does not tell them."""

    member: str
    host: str
    pid: int | None
    partitions: list[Partition]
    lease_left_s: float | None


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`committed` is the engine's cache of each frontier; it may lag behind the store and never leads."""

    group: str
    members: list[MemberInfo]
    committed: dict[Partition, int]
    epochs: dict[Partition, int]


class ProducerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer batches. A batch closes at whichever of the three bounds is met first.

    identity         a name makes sequences durable, so that a restarted producer stores nothing twice; none: this
                     process only
    linger_s         at most this long after its first record a batch is sent
    buffer_bytes     `send` waits (back-pressure) while this much is not yet accepted
    """

    identity: str | None = None
    durability: Durability = "local"
    compression: Compression = "zstd"
    batch_records: int = 400
    batch_bytes: int = 600_000
    linger_s: float = 0.008
    buffer_bytes: int = 32 * 1024 * 1024


class Receipt(msgspec.Struct, frozen=True):
    """Where an accepted message stands. `stored` is false when its sequence had been stored before (a retry). `offset`
    is -1 where the engine recognised a repeat and does not tell its place.
    `token` names the place for readers, see `settled.tokens`; `App.publish` fills it in."""

    topic: str
    partition: int
    offset: int
    id: str
    stored: bool = True
    token: str = ""


class Pending(Protocol):
    """A message on its way."""

    def done(self) -> bool:
        """Any thread. Whether `result` returns (or raises) at once."""
        ...

    def result(self, timeout: float | None = None) -> Receipt:
        """Any thread. The receipt, once accepted at the declared durability point.

        Raises TimeoutError when not yet known, or the error that the batch met (the message is then not stored, or
        for Unavailable not known to be; sending it again under its id is safe).
        """
        ...


class Producer(Protocol):
    """Any thread may call it. Closed by `close`, which sends what is buffered."""

    def send(self, message: Message, *, sequence: int | None = None) -> Pending:
        """Buffer a message. Nothing is durable yet: `result()` or `flush()` says when.

        `sequence` (named producers only) must rise from call to call; a sequence not above `resume_point()` is
        dropped as stored before. Raises InvalidMessage or TooLarge with nothing buffered. Waits while the buffer is
        full.
        """
        ...

    def flush(self, timeout: float | None = None) -> None:
        """Return when all that was sent before is accepted at the declared durability point.

        Raises the first error met since the last flush, its message counting the unconfirmed; TimeoutError.
        """
        ...

    def resume_point(self) -> int | None:
        """The last sequence durably accepted from this identity, none if there is none. Needs `producer_resume`."""
        ...

    def close(self) -> None:
        """Flush, then release. A second call does nothing. Raises what `flush` raises, after releasing."""
        ...


# What a consumer's poll brings, in the order in which it must be handled.


class Assigned(msgspec.Struct, frozen=True, kw_only=True):
    """The partition is this member's from now on, under `epoch`. Nothing is fetched until `start` is called.

    `renumbered`: what the owner before had claimed and not settled comes again to any member, under new numbers.
    """

    topic: str
    partition: int
    epoch: int
    clean: bool  # the owner before gave it back in good order (or there was none)
    identity: str  # the topic's incarnation, see TopicInfo.identity
    begin: int
    end: int
    original: bool  # the partition was there when the group began: `start: latest` may apply to it
    renumbered: bool = False


class Revoking(msgspec.Struct, frozen=True, kw_only=True):
    """Another member needs the partition. Take no more of it, end what runs, save the frontier, then `release`."""

    topic: str
    partition: int


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """The partition is already another's. Commit nothing of it."""

    topic: str
    partition: int


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one partition, offsets rising. Offsets missing below `next_offset` are holes and never come.

    `gap_from` is set when the offsets from there to the first record (or `next_offset`) were wanted and are gone.
    `witness` fingerprints the log's content up to `next_offset`; see `Consumer.start`.
    `again` names offsets of records that were claimed before, under other numbers, and did not end; and how many of
    those claims ended with a process that may have died of the record. 0: with none.
    """

    topic: str
    partition: int
    records: list[Record]
    next_offset: int
    size: int  # expanded bytes: the sum of Record.size
    witness: bytes = b""
    gap_from: int | None = None
    again: Mapping[int, int] = NONE_AGAIN


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The partition cannot be read further (Damaged, HistoryLost). Others go on; this one stays where it is."""

    topic: str
    partition: int
    error: Exception


Delivery = Assigned | Revoking | Lost | Fetched | Stopped


class Consumer(Protocol):
    """One member of a group. One thread owns it; only `wakeup` may be called from others.

    The engine keeps the membership alive on its own, however long the owner is busy.
    """

    member: str

    def poll(self, timeout: float, *, records: int, bytes: int) -> list[Delivery]:
        """Wait up to `timeout` seconds for something to do and return it; at once when `wakeup` was called.

        `records` and `bytes` (expanded) bound what is fetched; they are targets: with any room at all, one batch
        comes even if it is larger. With `records=0` nothing is fetched. Raises Unavailable.
        """
        ...

    def start(self, topic: str, partition: int, offset: int, *, witness: tuple[int, bytes] | None = None) -> None:
        """Fetch the assigned partition from `offset` on.

        `witness` is (offset, fingerprint) as a Fetched brought them before. Raises HistoryLost when the log's content
        up to there is not what it was, or the log ends before `offset`; needs `witness` to tell the former. Raises
        Fenced when the partition is not this member's, or not any more.
        """
        ...

    def release(self, topic: str, partition: int, *, clean: bool = True) -> None:
        """Give the partition back, after Revoking or when stopping. Raises nothing if it was lost meanwhile.

        `clean=False` tells the next owner that records may have been in flight (see Assigned.clean).
        """
        ...

    def raise_epoch(self, topic: str, partition: int, at_least: int) -> int:
        """A new epoch not below `at_least` for a partition that this member still owns. Raises Fenced if not.

        For a store that remembers a higher epoch than the engine does.
        """
        ...

    def commit(self, frontiers: Mapping[Partition, int]) -> None:
        """Tell the engine the frontiers: a cache for people and for retention. Never ahead of the store."""
        ...

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Fetch nothing more of these until `resume`. Forgotten when the partition is given back."""
        ...

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Fetch these again."""
        ...

    def wakeup(self) -> None:
        """Any thread. Makes a running or the next `poll` return at once."""
        ...

    def close(self) -> None:
        """Release all that is still owned (unclean unless released before), leave the group at once."""
        ...


class ConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What a member joins with. `lease_s`: how long the engine waits for a silent member before it gives its
    partitions to others, by the engine's clock. `ordered`: of a queue, the records of one key are claimed into one
    slot at a time, in order."""

    group: str
    topics: tuple[str, ...]
    lease_s: float = 10.0
    ordered: bool = True
    member: str | None = None  # a name for people; ownership never rests on it


class Tail(Protocol):
    """A reader without a group: what it was given is written down nowhere. One thread owns it; only `wakeup` may be
    called from others."""

    @property
    def missed(self) -> int:
        """How many records passed that it was not given: exact where offsets have no holes, else at most so many. Once
        there were `interruptions`, others may have passed that it does not count."""
        ...

    @property
    def interruptions(self) -> int:
        """How often it was away, or behind, so that records passed which `missed` may not count, or not yet. Always 0
        where `Capabilities.counts_passed`."""
        ...

    @property
    def position(self) -> str:
        """Where it stands, behind all that `poll` returned; opaque, for `Engine.tail(after=...)`."""
        ...

    def moved(self, position: str, records: Sequence[Record]) -> str:
        """A position of this tail's, moved behind `records`: the first of those that the last `poll` returned."""
        ...

    def poll(self, timeout: float, *, records: int, bytes: int) -> list[Record]:
        """Wait up to `timeout` seconds for records and return them, of each partition in order; none, at once, when
        `wakeup` was called, records were passed over (see `missed`) or it was interrupted. `records` and `bytes` bound
        it as in a consumer.

        Raises Damaged for what cannot be read and HistoryLost for a log that is not what it was; either is met again
        until another tail is opened.
        """
        ...

    def wakeup(self) -> None:
        """Any thread. Makes a running or the next `poll` return at once."""
        ...

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        ...


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """One thing looked at, for people. `remedy` is set when something is to be done."""

    name: str
    state: Literal["ok", "note", "bad"]
    told: str
    remedy: str = ""


class Engine(Protocol):
    """A log engine. Any thread may call it."""

    name: str  # sqlite, kafka: what `messaging.system` and labels say
    url: str
    capabilities: Capabilities

    def ensure_topic(self, spec: TopicSpec) -> TopicInfo:
        """Create the topic unless it exists; durable when it returns. An existing topic takes on the spec's retention
        and limit. Raises ContractError when it exists with another number of partitions."""
        ...

    def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Add partitions to a topic; durable when it returns. Groups take them up from offset 0. Keys may map to other
        partitions from now on, so the order of a key's records across the change is not kept. Raises ContractError
        for fewer partitions than there are, Unsupported where topics do not grow."""
        ...

    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        """All topics, or those of the named ones that are there, with their positions; each read as one consistent
        snapshot."""
        ...

    def groups(self, group: str | None = None) -> list[GroupInfo]:
        """All groups, or the one named."""
        ...

    def offset_at(self, topic: str, partition: int, us: int) -> int:
        """The first offset whose record was accepted at or after `us` (engine's clock); the end if there is none."""
        ...

    def read(self, topic: str, partition: int, offset: int, *, records: int = 100) -> list[Record]:
        """Up to `records` records from `offset` on, without joining a group. Raises Damaged."""
        ...

    def producer(self, spec: ProducerSpec) -> Producer:
        """Raises Unsupported when the engine cannot keep the durability asked for."""
        ...

    def consumer(self, group: ConsumerGroup) -> Consumer:
        """Join a group. Partitions come through `poll`. Raises ContractError for an unknown topic."""
        ...

    def tail(self, topic: str, *, after: str | None = None, behind: int = 100_000) -> Tail:
        """Read what is accepted from the return of this call on, without a group; nothing is written for it.

        With `after`, another tail's position, what passed since then counts as missed. A tail that is more than
        `behind` records behind passes over them all, and counts them. Needs `tails`, else raises Unsupported; raises
        ContractError for an unknown topic, a queue, or a text that is no position of this topic; HistoryLost for a
        position in a topic that was made anew since, or went back.
        """
        ...

    def maintain(self, *, force: bool = False) -> dict[str, int]:
        """Apply retention once, and compact what is worth it; returns records removed per topic. Never passes the
        committed frontier of a group that is active (has members, or had within the topic's retention) unless `force`,
        or for compaction `TopicSpec.pass_groups`. With `force` all is worth it."""
        ...

    def examine(self, spec: TopicSpec | None = None, durability: Durability = "memory") -> list[Examined]:
        """What can be seen of the log's health, and whether the topic can keep the durability. Changes nothing."""
        ...

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        ...


@runtime_checkable
class Counting(Protocol):
    """An engine that counts records without reading them, also where compaction left holes between them."""

    def held(self, topic: str, partition: int, first: int, following: int) -> int:
        """How many records are held at offsets from `first` to `following` - 1. Any thread. Raises Damaged."""
        ...


@runtime_checkable
class Introduced(Protocol):
    """An engine whose broker lists no topics: it looks for groups at those that it knows."""

    def introduce(self, topics: Collection[str]) -> None:
        """Know these topics, as far as they are there. Any thread."""
        ...
