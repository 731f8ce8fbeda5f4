"""The contract's fields, their units and their defaults. `Contract` is the whole; each other class is one section.

Durations are held in seconds, sizes in bytes, rates per second. Build a Contract with `load.load` (a file) or
`load.from_mapping` (keywords): they check every value and name what is wrong.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from settled.contract import kinds, show
from settled.engine import Compression, Durability, Form, Start
from settled.errors import ContractError
from settled.record import checked_name

FORMAT = 1  # the version of the contract format that this release reads
HINTS_KEPT_S = 3600.0  # retention.age of a notification, unless stated

Duration = Annotated[float, kinds.DURATION]
Pause = Annotated[float, kinds.PAUSE]
Size = Annotated[int, kinds.SIZE]
Bytes = Annotated[int, kinds.BYTES]
Rate = Annotated[float, kinds.RATE]
Spare = Annotated[float, kinds.SPARE]
Count = Annotated[int, kinds.COUNT]
Allowance = Annotated[int, kinds.ALLOWANCE]
Partitions = Annotated[int, kinds.PARTITIONS]
Factor = Annotated[float, kinds.FACTOR]
Truth = Annotated[bool, kinds.TRUTH]
Name = Annotated[str, kinds.NAME]
Text = Annotated[str, kinds.TEXT]
TypeName = Annotated[str, kinds.TYPE_NAME]

Mode = Literal["at-most-once", "at-least-once", "effectively-once"]
Signal = Literal["oldest_age", "effect_p99", "publish_p99"]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The durable result that the interaction is for.

    name        what it is called, e.g. reservation
    identity    the fields that make two effects the same one
    authority   the service whose word on this data counts
    """

    name: Text | None = None
    identity: tuple[Text, ...] = ()
    authority: Text | None = None


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """How records travel.

    form          queue, pubsub, log or notification: who owns a record, who may read it, whether history is kept
    topic         where they are; the contract's name unless stated
    partitions    how many; it decides where a key lives, so choose it once
    key           the field of the event that becomes the record's key; none: records have no key
    version       the field that becomes the record's version, rising per key; none: records carry no version
    start         where a new group begins: earliest or latest
    record_limit  bytes; the largest record that the topic takes; none: the engine's own limit
    replicas      copies that a replicating engine keeps of each partition; none: its own choice
    min_isr       how many of them must hold a record before it is accepted; none: the engine's own choice
    """

    form: Form = "log"
    topic: Name = ""
    partitions: Partitions = 12
    key: Text | None = "key"
    version: Text | None = None
    start: Start = "earliest"
    record_limit: Size | None = None
    replicas: Count | None = None
    min_isr: Count | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A producer's batch closes at whichever bound is met first: `records` (count), `bytes`, `time` (seconds)."""

    records: Count = 400
    bytes: Bytes = 600_000
    time: Pause = 0.008


class Producer(msgspec.Struct, frozen=True, kw_only=True):
    """How records are published.

    identity      a name under which sequences are durable; one running producer at a time; none: this process only
    durability    where a record must be before it counts as accepted: memory, local (synced) or committed (a quorum)
    compression   none or zstd
    """

    identity: Text | None = None
    durability: Durability = "local"
    batch: Batch = Batch()
    compression: Compression = "zstd"


class GroupSize(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one effect transaction.

    records, bytes   the most that one transaction settles (count; expanded bytes)
    target           seconds that a transaction should take; the group grows and shrinks towards it
    linger           seconds to wait for a fuller group; 0 takes what is there
    """

    records: Count = 2000
    bytes: Bytes = 8 * 2**20
    target: Duration = 0.100
    linger: Pause = 0.0


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """What one process holds fetched and not settled: `records` (count) and expanded `bytes`."""

    records: Count = 10_000
    bytes: Bytes = 64 * 2**20


class Dedupe(msgspec.Struct, frozen=True, kw_only=True):
    """How a second delivery is known.

    scope     consumer: an event id counts once per group; topic: once per group and topic
    horizon   seconds for which marks are kept at least; none: for ever
    """

    scope: Literal["consumer", "topic"] = "consumer"
    horizon: Duration | None = 14 * 86_400.0


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """How records become effects.

    mode             at-most-once, at-least-once or effectively-once (effect and inbox mark in one transaction); of a
                     notification at-most-once unless stated, and nothing else is possible
    group            the group's name; `<name>-v<version>` unless stated
    ordering         key: records of one key in order, one at a time; none: no order is needed
    consumers        how many processes are meant to run
    concurrency      effects side by side in one process; none: 1, and up to 4 while handlers wait for the database,
                     where the store runs transactions in parallel
    process_budget   bytes that one process may hold in all
    lease            seconds of silence after which a member's partitions go to others, by the engine's clock
    effect_tail      seconds that an effect takes at the longest (p99.9)
    grace            seconds that a stopping process has to end what runs
    """

    mode: Mode = "effectively-once"
    group: Name = ""
    ordering: Literal["key", "none"] = "key"
    consumers: Count = 1
    concurrency: Count | None = None
    group_size: GroupSize = GroupSize()
    in_flight: InFlight = InFlight()
    process_budget: Size = 256 * 2**20
    dedupe: Dedupe = Dedupe()
    lease: Duration = 10.0
    effect_tail: Duration = 2.0
    grace: Pause = 25.0


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long the log keeps records.

    age           seconds; none: no bound by age
    bytes         per topic; none: no bound by bytes
    on_gap        what a group does whose position is gone: continue with what is left and report the gap, or stop
    compact       of each key the newest record stays at least; older ones may go
    tombstones    seconds that a record without a value, the newest of its key, stays when the topic is compacted
    pass_groups   compaction does not wait for groups that are behind: they see what is left
    """

    age: Duration | None = 7 * 86_400.0
    bytes: Bytes | None = None
    on_gap: Literal["continue", "stop"] = "continue"
    compact: Truth = False
    tombstones: Pause = 86_400.0
    pass_groups: Truth = False


class AttemptLimits(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Runs of the handler before a record is quarantined, by class of failure; a permanent failure has one.

    transient     none: bounded by the deadline alone
    defect        an exception of no known class
    worker_lost   the process died while the record ran alone (written `worker-lost`)
    """

    transient: Count | None = None
    defect: Count = 5
    worker_lost: Count = 3


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """The wait before a retry: drawn evenly from 0 to min(most, first * factor^n) (seconds; full jitter)."""

    first: Duration = 0.2
    factor: Factor = 2.0
    most: Duration = 30.0


class Classes(msgspec.Struct, frozen=True, kw_only=True):
    """Exception types (dotted names) by class of failure; a subclass counts as the nearest type that is listed."""

    transient: tuple[TypeName, ...] = ()
    permanent: tuple[TypeName, ...] = ()
    defect: tuple[TypeName, ...] = ()


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    """What quarantining costs: `burst` without any success, then one for each `per_successes` settled records."""

    burst: Allowance = 10
    per_successes: Count = 20


class Poison(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a record that cannot be settled.

    deadline   seconds from its first failure
    owner      who answers for quarantined records
    then       continue: later records of its key run on; park: they wait behind it
    """

    attempts: AttemptLimits = AttemptLimits()
    backoff: Backoff = Backoff()
    deadline: Duration = 3600.0
    classes: Classes = Classes()
    owner: Text | None = None
    then: Literal["continue", "park"] = "continue"
    eviction: Eviction = Eviction()


class External(msgspec.Struct, frozen=True, kw_only=True):
    """Names of calls outside the transaction, by what is done about one that may have been made (see `calls`)."""

    repeat: tuple[Text, ...] = ()
    reconcile: tuple[Text, ...] = ()
    quarantine: tuple[Text, ...] = ()


class Objectives(msgspec.Struct, frozen=True, kw_only=True):
    """What good service is, in seconds: the oldest unsettled record's age, an effect's p99, a publish's p99."""

    oldest_age: Duration | None = None
    effect_p99: Duration | None = None
    publish_p99: Duration | None = None


class Abort(msgspec.Struct, frozen=True, kw_only=True):
    """A replay stops while `signal` is `above` (seconds)."""

    signal: Signal
    above: Duration


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Catching up without hurting live traffic.

    envelope         per second, what the effect store is known to bear
    live, headroom   per second, kept for live traffic and for what nobody foresaw
    replay_rate      per second, for replays
    replay_horizon   seconds, how far back a replay may reach
    abort            signals that stop a replay
    """

    envelope: Rate | None = None
    live: Spare | None = None
    headroom: Spare | None = None
    replay_rate: Rate | None = None
    replay_horizon: Duration | None = None
    abort: tuple[Abort, ...] = ()


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """One interaction: who publishes what, which effect comes of it, and what is promised on the way.

    settled   the version of this format
    name      the interaction's name; the topic's unless stated
    version   the interaction's version, a whole number from 1
    """

    settled: Count = FORMAT
    name: Name = ""
    version: Count = 1
    effect: Effect = Effect()
    transport: Transport = Transport()
    producer: Producer = Producer()
    delivery: Delivery = Delivery()
    retention: Retention = Retention()
    poison: Poison = Poison()
    external: External = External()
    objectives: Objectives = Objectives()
    recovery: Recovery = Recovery()

    def __post_init__(self) -> None:
        """Derive name, topic and group from one another where one is not stated."""
        name = self.name or self.transport.topic
        if not name:
            raise ContractError(
                "a contract needs a name or a topic", field="name", hint="add `name: OrderPlaced` at the top"
            )
        fill = msgspec.structs.force_setattr
        fill(self, "name", checked_name("name", name))
        if not self.transport.topic:
            fill(self, "transport", msgspec.structs.replace(self.transport, topic=name))
        if not self.delivery.group:
            group = checked_name("group", f"{name}-v{self.version}")
            fill(self, "delivery", msgspec.structs.replace(self.delivery, group=group))

    def show(self) -> str:
        """The contract in force as YAML; lines that hold a default say so. It loads back as an equal contract."""
        plain = Contract(name=self.name, version=self.version)
        stated = ("name",) if self.version == 1 else ("name", "version")
        return show.text(self, plain, stated=stated)
