"""The port to the effects: inbox, fence, frontier, versions, attempts and quarantine, in the user's database.
Implementations live in `stores/`.

Law 1: an effect, its inbox mark and the frontier commit in one transaction. Law 2: the epoch is checked inside it.
Every method may raise Unavailable: nothing was committed, trying again is safe, no attempt is burnt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, Protocol

import msgspec

from settled.outcome import Attempts, Ending, Failure, Outcome
from settled.record import Message, Record


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who consumes, and what of the contract the store must keep.

    consumer         the inbox's first column; the group, or group and topic where dedupe scope is `topic`
    inbox            effectively-once: screen and mark; otherwise neither is done
    versioned        refuse versions not above the last one applied for the key
    owner            who answers for quarantined records; code_version: what ran, both kept as evidence
    external         (name, policy) of calls outside the transaction, see `settled.external`
    """

    consumer: str
    inbox: bool = True
    versioned: bool = False
    owner: str = ""
    code_version: str = ""
    external: tuple[tuple[str, str], ...] = ()


class Progress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A partition's frontier as it will stand when the transaction commits, and the epoch that may move it.

    `witness` is (offset, fingerprint) of the log's content at or below the frontier, see `engine.Fetched`.
    """

    topic: str
    partition: int
    epoch: int
    frontier: int
    witness: tuple[int, bytes] | None = None


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a consumer stands in a partition, as the store holds it. `identity` is the topic's incarnation."""

    topic: str
    partition: int
    epoch: int
    frontier: int
    identity: str
    witness: tuple[int, bytes] | None = None
    updated_us: int = 0


class QuarantineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A quarantined record with its evidence.

    state            held; requested (a redrive was asked for and its owner will run it); settled (a redrive ended it);
                     discarded. A redrive that fails goes back to held with its attempts added.
    parked           held only because an earlier record of its key is: it runs after that one, in offset order
    value_bytes      the size of the original value; a value above the store's evidence limit is kept once, whole, in a
                     table of its own and comes back with `entry`, never with a list
    """

    number: int  # the entry's id, what people type
    consumer: str
    record: Record
    failure: Failure
    attempts: Attempts
    owner: str
    state: str
    quarantined_us: int
    parked: bool = False  # held only because an earlier record of its key is
    code_version: str = ""
    value_bytes: int = 0
    notes: tuple[str, ...] = ()


class QuarantineGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Equal failures: same consumer, error class and fingerprint."""

    consumer: str
    fingerprint: str
    error: str
    message: str  # of the newest
    count: int
    oldest_us: int
    newest_us: int


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries; all that are given must hold. Empty tuples and none mean: any."""

    consumer: str | None = None
    numbers: tuple[int, ...] = ()
    fingerprint: str | None = None
    topic: str | None = None
    event_id: str | None = None
    states: tuple[str, ...] = ("held",)


class Quarantine(Protocol):
    """The shelf of quarantined records, for people. Any thread. Selections are frozen into numbers by `select`: what
    arrives later is never included."""

    def select(self, selection: Selection) -> list[int]:
        """The numbers of the entries, oldest first."""
        ...

    def entries(self, numbers: Sequence[int]) -> list[QuarantineEntry]:
        """The entries without values above the evidence limit. Raises ContractError naming a number not there."""
        ...

    def entry(self, number: int) -> QuarantineEntry:
        """One entry, whole: key, value and headers byte for byte as they came."""
        ...

    def groups(self, consumer: str | None = None) -> list[QuarantineGroup]:
        """Held entries grouped by equal failure, largest first."""
        ...

    def request(self, numbers: Sequence[int], *, reason: str, who: str) -> dict[str, int]:
        """Ask for a redrive. held -> requested, each guarded by its state, so that two calls at once ask once.
        Returns counts: requested, already_requested, settled, discarded. Raises Refused for an entry whose inbox mark
        is gone (law 9), with nothing changed."""
        ...

    def discard(self, numbers: Sequence[int], *, reason: str, who: str) -> int:
        """held -> discarded; the inbox mark becomes DISCARDED. Returns how many changed."""
        ...

    def note(self, number: int, text: str, *, who: str) -> None:
        """Add a note for people."""
        ...


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """`state`: starting, running, idle, paused, waiting, stopping; `why` in words."""

    consumer: str
    member: str
    host: str
    pid: int
    state: str
    why: str = ""
    updated_us: int = 0


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets `first` to `next_offset` - 1 were gone when the consumer wanted them: retention passed its frontier."""

    consumer: str
    topic: str
    partition: int
    first: int
    next_offset: int
    found_us: int


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of which a person wants nothing settled for now."""

    consumer: str
    topic: str
    partition: int
    reason: str
    who: str
    paused_us: int


class OutboxRow(msgspec.Struct, frozen=True, gc=False):
    """A message in the outbox.

    state            pending; failing (it was refused and is tried again at `due_us`); parked (kept for people);
                     discarded (a person decided that it is never sent; kept as evidence)
    value_bytes      the size of the value; lists for people leave the value itself out
    Rows for relays may leave out `created_us` (0) and `due_us`.
    """

    seq: int  # the row's number: rows of one key are published in its order
    bucket: int  # -1: the store finds it by the number alone
    message: Message
    created_us: int = 0
    state: str = "pending"
    attempts: int = 0
    due_us: int = 0
    error: str = ""
    value_bytes: int = 0


class RowFailure(msgspec.Struct, frozen=True):
    """A row that the engine refused: again at `due_us` (store's clock), or parked."""

    row: OutboxRow
    error: str
    due_us: int
    parked: bool = False


class RelayReport(msgspec.Struct, frozen=True, kw_only=True):
    """A relay that lives, by the store's clock; `why` says what it waits for, empty: nothing."""

    relay: str
    host: str
    pid: int
    buckets: tuple[int, ...]
    why: str
    lease_left_s: float


class OutboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`oldest_age_s` is the age of the oldest row that is to be sent. `by_bucket` counts the pending rows."""

    pending: int
    failing: int
    parked: int
    discarded: int
    oldest_age_s: float | None
    by_bucket: dict[int, int]
    relays: list[RelayReport]


class Holding(msgspec.Struct, frozen=True):
    """What a relay holds: buckets, each with its epoch. `awaited`: so many more are its share, and will be given up by
    relays that hold more than theirs."""

    buckets: dict[int, int]
    awaited: int = 0


class Outbox(Protocol):
    """Rows that wait to be published: for relays and for people. Any thread; it has a connection of its own.

    Keys are divided into buckets. A relay holds some under an epoch, for as long as it says so often enough by the
    store's clock; what it writes down is checked against the epoch in the same transaction.
    """

    def hold(self, relay: str, *, lease_s: float, why: str = "", keep: bool = False) -> Holding:
        """Say that `relay` lives, take or give up buckets so that living relays share them evenly. A bucket is given
        up by its owner, or taken when the owner's lease has run out; relays that come at once take turns. While rows
        are under way use `keep`: nothing is taken or given up."""
        ...

    def leave(self, relay: str) -> None:
        """Give up all buckets."""
        ...

    def pending(self, held: Mapping[int, int], *, rows: int, bytes: int, but: Sequence[int] = ()) -> list[OutboxRow]:
        """Rows of the buckets that may be published now, by rising number within each key: not parked, not behind a
        failing row of their key that is not due. At most `rows`; about `bytes`, but at least one. `but`: numbers that
        are under way already."""
        ...

    def sent(self, held: Mapping[int, int], rows: Sequence[OutboxRow]) -> int:
        """Remove rows that the engine has accepted, in one transaction with a look at the epochs. Returns how many were
        removed: those of buckets that are another's by now stay. A power cut may bring rows back, to be published
        again under their ids: the removal is not synced, which halves the syncs of a relay."""
        ...

    def failed(self, held: Mapping[int, int], failures: Sequence[RowFailure]) -> int:
        """Write down refusals, as `sent` does."""
        ...

    def wait(self, relay: str, seconds: float) -> None:
        """Return when rows may have come, at the latest after `seconds`. Look at `pending` after it, always."""
        ...

    def wakeup(self) -> None:
        """End the present or the next `wait`."""
        ...

    def status(self) -> OutboxStatus:
        """Depth and age, counted, and who relays."""
        ...

    def rows(self, *, states: Sequence[str] = (), limit: int = 100) -> list[OutboxRow]:
        """Rows for people, oldest first, without their values. No states: all."""
        ...

    def retry(self, seqs: Sequence[int]) -> list[int]:
        """Failing and parked rows become pending, with no attempts behind them. Returns those that changed."""
        ...

    def park(self, seqs: Sequence[int], *, reason: str) -> list[int]:
        """Rows that are to be sent become parked; later rows of their keys go on. Returns those that changed."""
        ...

    def discard(self, seqs: Sequence[int], *, reason: str, who: str) -> list[int]:
        """Parked rows become discarded, for good; reason, person and last error stay. Returns those that changed."""
        ...


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A record whose ending somebody waits for. Without a place (`partition` and `offset` none) any mark of its event
    id ends the wait."""

    consumer: str
    topic: str
    event_id: str
    partition: int | None = None
    offset: int | None = None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at the store showed, all of one moment.

    identity         the topic's incarnation, none: the consumer has no row for the partition
    frontier         none: not begun
    outcome          that of the event id's mark, none: it has none
    own              the mark is this very record's; else it is of another record with the same event id
    quarantined      an entry of this very record is held or requested
    why              the store could not be looked at, and why
    """

    identity: str | None = None
    frontier: int | None = None
    outcome: Outcome | None = None
    own: bool = False
    quarantined: bool = False
    why: str = ""

    def ended(self, asked: Asked) -> bool:
        """Whether the record's ending is committed."""
        passed = asked.offset is not None and self.frontier is not None and self.frontier > asked.offset
        return self.outcome is not None or passed


class Intent(msgspec.Struct, frozen=True):
    """What is durable about a call outside the transaction. `runs` counts how often it was about to be made, without
    those that were taken back; `result` is what was recorded of it, none: not known whether it was made."""

    runs: int
    intended_us: int
    result: bytes | None = None


class Calls(Protocol):
    """Calls outside the transaction, by consumer, event id and name. Each method is durable by itself when it returns,
    whatever becomes of the unit. One thread."""

    def intend(self, consumer: str, event_id: str, name: str) -> Intent:
        """Write down that the call is about to be made, or that it is about to be again."""
        ...

    def found(self, consumer: str, event_id: str, name: str) -> Intent | None:
        """What is written down, none: nothing. Writes nothing."""
        ...

    def keep(self, consumer: str, event_id: str, name: str, result: bytes) -> Intent:
        """Record the result, unless one is recorded already; what is recorded comes back."""
        ...

    def withdraw(self, consumer: str, event_id: str, name: str) -> None:
        """The run that was written down last made no call. A recorded result stays."""
        ...


class AtHand:
    """What is known around a handler's run, for what goes beyond its transaction (`settled.external`).

    calls            what is durable about calls outside; raises Fenced, see `Session.calls`
    record           the record that runs, none: the handler was given several at once
    redrive          a person asked for this run
    live             not a replay: calls outside may be made
    policies         the contract's word on an ambiguous call, by the call's name
    """

    redrive: bool = False
    live: bool = True

    def __init__(self, spec: ConsumerSpec, calls: Callable[[], Calls]) -> None:
        self.consumer, self.policies, self.calls = spec.consumer, dict(spec.external), calls
        self.record: Callable[[], Record | None] = lambda: None


class Tx(Protocol):
    """What a handler writes through. Statements run in the transaction that also holds the inbox mark; committing or
    rolling back is not the handler's to do and is refused. `at_hand` is set in a worker's sessions."""

    dialect: Literal["sqlite", "postgresql"]  # which SQL it takes: ? or %s for parameters
    at_hand: AtHand | None

    def execute(self, sql: str, params: Any = ()) -> Any:
        """Run one statement with the store's own placeholders; returns its cursor, to fetch from."""
        ...

    def executemany(self, sql: str, rows: Iterable[Any]) -> Any:
        """Run one statement for each row of parameters."""
        ...

    def publish(
        self,
        value: Any = None,
        *,
        topic: str,
        key: bytes | str | None = None,
        id: str | None = None,
        type: str | None = None,
        version: int | None = None,
        event_time: datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> str:
        """Put a message into the outbox: it is published if and only if the effect commits. Returns its event id.

        Without an id it gets one made of the handled record's, so that another run of the handler gives it the same;
        correlation and causation come from the record too. Raises InvalidMessage or TooLarge.
        """
        ...


Applied = Mapping[tuple[str, int], Sequence[Record]]  # records by topic and partition
NONE_APPLIED: Applied = MappingProxyType({})


class Session(Protocol):
    """One thread's way into the store, for one consumer. One unit of work at a time, in this order:

    `begin` -> `screen` -> handlers write through `tx` -> `settle` (or `rollback`).
    """

    tx: Tx

    def causes(self, current: Callable[[], Record | None]) -> None:
        """Say how to learn which record is being handled: messages that a handler publishes name it as their cause.
        Holds for the units that follow."""
        ...

    def begin(self, fence: Sequence[Progress], *, redrive: bool = False) -> None:
        """Start a unit for the partitions in `fence`. The fence is checked before the first write and again with the
        commit. A store whose write lock is global takes it no earlier than the first use of `tx`.

        For a redrive a mark QUARANTINED counts as not settled and is replaced by the new ending (guarded), and the
        quarantine entry is settled, or goes back to held with its attempts added.
        """
        ...

    def screen(self, records: Sequence[Record]) -> list[Outcome | None]:
        """For each record, in order: DUPLICATE or STALE if it is one (duplicates within the list count), else none."""
        ...

    def save(self) -> None:
        """Set a savepoint in the unit (replacing the one before): `undo` comes back to it."""
        ...

    def undo(self) -> None:
        """Undo what was written through `tx` since `save`; the unit goes on."""
        ...

    def check(self) -> None:
        """Raises what makes the unit unfit to commit although the handler returned: a statement's error that it
        swallowed and that spoiled the transaction, or a refused COMMIT. Cheap; no round trip."""
        ...

    def settle(
        self,
        endings: Sequence[Ending],
        progress: Sequence[Progress],
        charges: Sequence[tuple[Record, Attempts]] = (),
        applied: Applied = NONE_APPLIED,
    ) -> None:
        """Mark the endings, keep the charges (see `charge`), store the frontiers, commit: all durable when it
        returns, or nothing is. An Ending with QUARANTINED also writes the quarantine entry (its `failure` and
        `attempts` are set). `applied` are records by partition, as if each came with an ending APPLIED: the form for
        the usual group, which needs no object for each record.

        Raises Fenced (an epoch moved on: nothing was written), CommitUnknown (ask `settled`), or Conflict (another
        transaction settled one of these ids meanwhile: nothing was written, begin again).
        """
        ...

    def rollback(self) -> None:
        """Undo the unit. Never raises; without a unit it does nothing."""
        ...

    def charge(self, progress: Progress, charges: Sequence[tuple[Record, Attempts]]) -> None:
        """Store what is known of failing or suspected records of one partition, in one transaction of its own. Raises
        Fenced. An ending of such a record through `settle` removes it.
        """
        ...

    def calls(self) -> Calls:
        """What is durable about calls outside the transaction, on a connection of its own. Raises Fenced when an epoch
        of the unit has moved on: a call that is begun now would be another owner's to make."""
        ...

    def settled(self, records: Sequence[Record]) -> list[Outcome | None]:
        """How each record ended, as the inbox says, read afresh; none: not settled."""
        ...

    def close(self) -> None:
        """Roll back and release."""
        ...


class Conflict(Exception):
    """Another transaction settled one of these ids meanwhile; nothing was written. Begin the unit again."""


class Store(Protocol):
    """An effect store. Any thread may call it; calls may block."""

    name: str  # sqlite, postgresql
    url: str
    parallel: bool  # transactions of several sessions proceed side by side

    def migrate(self) -> None:
        """Create or bring up to date settled's own tables; safe when many processes do it at once. Raises Refused for
        a schema newer than this release."""
        ...

    def schema_sql(self) -> str:
        """What `migrate` runs on an empty database, as one script for people who run it themselves. Writes nothing."""
        ...

    def prepare(self, setup: Callable[[Tx], None]) -> None:
        """Run the user's own set-up in one transaction, one process at a time."""
        ...

    def acquire(
        self, consumer: str, topic: str, partition: int, epoch: int, identity: str, *, begin: int | None = None
    ) -> Position | None:
        """Write the fence: from now on lower epochs commit nothing. Returns the position, none for a new partition;
        with `begin` a new partition begins there, as by `settle_from`.

        Waits for a transaction of the previous owner that is about to commit. Raises Fenced when the store holds a
        higher epoch, or an equal one of another process; HistoryLost when the position is of another incarnation of
        the topic.
        """
        ...

    def epoch(self, consumer: str, topic: str, partition: int) -> int:
        """The epoch that the store holds, 0 if none."""
        ...

    def settle_from(self, consumer: str, position: Position) -> None:
        """Set where a partition begins for a consumer that has no position there yet. Raises Fenced."""
        ...

    def pause(self, consumer: str, topic: str, partitions: Sequence[int], *, reason: str, who: str) -> None:
        """From its return on nothing of these partitions is settled, whoever works on them, until `resume`: their fence
        rises. Waits for a transaction that is about to commit. A pause that is there already keeps its reason."""
        ...

    def resume(self, consumer: str, topic: str, partitions: Sequence[int]) -> list[int]:
        """End pauses; returns the partitions that were paused. Workers go on within a second or two."""
        ...

    def pauses(self, consumer: str | None = None) -> list[Pause]:
        """The pauses in force, by consumer, topic and partition."""
        ...

    def attempts(self, consumer: str, topic: str, partition: int) -> list[tuple[int, Attempts]]:
        """The (offset, attempts) of records that failed and have not ended."""
        ...

    def carry(self, consumer: str, progress: Progress, records: Sequence[Record]) -> dict[int, Attempts]:
        """What is known of these records of one partition under other places of their topic, found by event id and kept
        under their own from now on; by offset. For records that an engine numbered anew. Raises Fenced."""
        ...

    def session(self, spec: ConsumerSpec) -> Session:
        """A new session; the calling thread owns it."""
        ...

    def positions(self, consumer: str | None = None) -> list[tuple[str, Position]]:
        """(consumer, position) pairs, for people and for lag."""
        ...

    def tally(self, consumer: str) -> dict[Outcome, int]:
        """How many inbox marks of each outcome are held; counted, not remembered."""
        ...

    def parked(self, consumer: str, topic: str, partition: int) -> set[bytes]:
        """Keys of which an entry is held or requested: under `park` their later records go behind it."""
        ...

    def redrives(self, consumer: str, topic: str, partition: int) -> list[QuarantineEntry]:
        """Requested entries of the partition, whole, by offset; cheap when there are none."""
        ...

    @property
    def quarantine(self) -> Quarantine: ...

    @property
    def outbox(self) -> Outbox: ...

    on_publish: Callable[[], None]  # called when a handler puts something into the outbox, on its thread; be quick

    def prune(self, consumer: str, *, older_than_s: float, batch: int = 1000) -> int:
        """Remove up to `batch` marks that are below their partition's frontier and older than the dedupe horizon;
        returns how many were looked at, 0 when a sweep is complete. Short transactions only."""
        ...

    def note_gap(self, consumer: str, topic: str, partition: int, first: int, next_offset: int) -> None:
        """Remember that offsets first to next_offset-1 were wanted and gone. The same gap is noted once."""
        ...

    def gaps(self, consumer: str | None = None) -> list[Gap]:
        """The gaps found, oldest first."""
        ...

    def report(self, consumer: str, member: str, state: WorkerReport | None) -> None:
        """What a worker says of itself, for people (`settled status`); none removes it. Never waits for a lock."""
        ...

    def reports(self, consumer: str | None = None) -> list[WorkerReport]:
        """What workers said last; those silent for an hour are left out."""
        ...

    def watch(self, asked: Asked, timeout: float) -> Seen:
        """Wait up to `timeout` seconds for the record's ending to be committed, and return what is seen then; ask it
        whether it `ended`. Costs nothing while nobody waits. An outage of the store is waited out within the bound."""
        ...

    def clock_us(self) -> int:
        """The store's clock, microseconds since 1970 in UTC. Due times are judged by it."""
        ...

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        ...
