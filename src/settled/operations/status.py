"""One look at everything: per consumer how far it is, how records ended, what its workers say, what waits for people.

Consumers are those that the store knows, those of the engine's groups that settled worked in and the store does not
know, and the one of the contract that was named, also when nothing of it ever ran. Groups of others on shared brokers
are shown only by name.
"""

from __future__ import annotations

import msgspec

from settled import clock
from settled.contract import specs
from settled.contract.model import Contract
from settled.engine import Engine, GroupInfo, Introduced, TopicInfo
from settled.errors import ContractError
from settled.operations.lag import PartitionLag, lags
from settled.store import Gap, Pause, Position, Selection, Store, WorkerReport


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group, as the engine sees it. `idle`: it has no partition, since others have them all."""

    member: str
    host: str
    pid: int | None
    partitions: list[tuple[str, int]]
    lease_left_s: float | None
    idle: bool


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue holds that no slot has claimed; none is what the engine does not tell. `due_in_s`: until the first
    of the scheduled is due."""

    topic: str
    ready: int
    scheduled: int | None
    bytes: int | None
    oldest_age_s: float | None
    due_in_s: float | None


class ConsumerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer as a whole.

    state      never-started, settled, behind, unreadable, ahead or other-log: the worst of its partitions; a queue in
               which something is ready is behind
    outcomes   how many records ended how (marks that are still held)
    outage     what a worker waits for, in its words; empty: nothing
    """

    consumer: str
    group: str
    state: str
    lag_records: int
    oldest_age_s: float | None
    partitions: list[PartitionLag]
    queues: list[Depth]
    outcomes: dict[str, int]
    held: int  # in quarantine
    requested: int  # redrives asked for and not done
    gaps: list[Gap]
    paused: list[Pause]
    members: list[Member]
    workers: list[WorkerReport]
    outage: str

    @property
    def unready(self) -> str:
        """Why nobody should count on it now; empty while its workers are at work."""
        if not self.members:
            return "no member is running"
        stuck = [worker for worker in self.workers if worker.state in {"waiting", "paused", "stopping"}]
        return f"{stuck[0].state}: {stuck[0].why}" if stuck else ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`read_us` is when it was read; `store` is false when nothing was ever settled there."""

    read_us: int
    store: bool
    consumers: list[ConsumerStatus]


_WORST = ("other-log", "ahead", "unreadable", "behind", "never-started", "settled")


def status(engine: Engine, store: Store | None, contract: Contract | None = None, group: str | None = None) -> Status:
    """All consumers, or the contract's, or those of one group. Raises ContractError for a notification."""
    if contract is not None and contract.transport.form == "notification":
        raise ContractError(
            "readers of hints have no progress to show: nothing of a hint is kept",
            field="transport.form",
            value="notification",
            hint="`settled run` tells what is lost and which sweeps fail; `settled topic describe` what the log holds",
        )
    positions: dict[str, list[Position]] = {}
    for consumer, position in store.positions() if store is not None else ():
        positions.setdefault(consumer, []).append(position)
    named = contract.delivery.group if contract is not None else group
    if isinstance(engine, Introduced):
        held = {position.topic for places in positions.values() for position in places}
        engine.introduce(held if contract is None else {contract.transport.topic})
    groups = {info.group: info for info in engine.groups(named)}
    wanted = {
        name: (of_group, topics)
        for name, (of_group, topics) in _wanted(positions, groups, contract, named).items()
        if group in (None, of_group)
    }
    asked = {topic for _, topics in wanted.values() for topic in topics}
    infos = {info.spec.name: info for info in engine.topics(asked)}  # after the positions: frontiers before ends
    found = [
        _consumer(engine, store, name, of_group, topics, positions.get(name, []), groups.get(of_group), infos)
        for name, (of_group, topics) in sorted(wanted.items())
    ]
    return Status(read_us=clock.wall_us(), store=store is not None, consumers=found)


def _wanted(
    positions: dict[str, list[Position]], groups: dict[str, GroupInfo], contract: Contract | None, named: str | None
) -> dict[str, tuple[str, set[str]]]:
    """Consumers with their group and topics. A consumer is called after its group, or group/topic."""
    if contract is not None:
        spec = specs.consumer_spec(contract)
        return {spec.consumer: (contract.delivery.group, {contract.transport.topic})}
    wanted = {name: (name.partition("/")[0], {held.topic for held in places}) for name, places in positions.items()}
    known = {of_group for of_group, _ in wanted.values()}
    for name, info in groups.items():
        if name not in known:
            if named is None and not any(info.epochs.values()):
                continue
            wanted[name] = (name, {topic for topic, _ in info.epochs})
        elif name in wanted:
            wanted[name][1].update(topic for topic, _ in info.epochs)
    return wanted


def _consumer(
    engine: Engine,
    store: Store | None,
    name: str,
    group: str,
    topics: set[str],
    positions: list[Position],
    info: GroupInfo | None,
    infos: dict[str, TopicInfo],
) -> ConsumerStatus:
    parts: list[PartitionLag] = []
    for topic in sorted(topics):
        held = {position.partition: position for position in positions if position.topic == topic}
        told = {number: offset for (of, number), offset in info.committed.items() if of == topic} if info else {}
        parts += lags(engine, infos[topic], held, told) if topic in infos else []
    queues = [_depth(infos[topic]) for topic in sorted(topics) if topic in infos and infos[topic].queue is not None]
    waited = [*(part.oldest_age_s for part in parts), *(queue.oldest_age_s for queue in queues)]
    ages = [age for age in waited if age is not None]
    ready = sum(queue.ready for queue in queues)
    workers = store.reports(name) if store is not None else []
    waiting = [worker.why for worker in workers if worker.state == "waiting"]
    return ConsumerStatus(
        consumer=name,
        group=group,
        state=_state(parts, started=bool(positions), ready=ready > 0),
        lag_records=sum(part.records for part in parts) + ready,
        oldest_age_s=max(ages, default=None),
        partitions=parts,
        queues=queues,
        outcomes=_outcomes(store, name),
        held=_count(store, name, "held"),
        requested=_count(store, name, "requested"),
        gaps=store.gaps(name) if store is not None else [],
        paused=store.pauses(name) if store is not None else [],
        members=_members(info),
        workers=workers,
        outage=waiting[0] if waiting else "",
    )


def _depth(info: TopicInfo) -> Depth:
    queue, now = info.queue, clock.wall_us()
    assert queue is not None
    return Depth(
        topic=info.spec.name,
        ready=queue.ready,
        scheduled=queue.scheduled,
        bytes=queue.bytes,
        oldest_age_s=None if queue.oldest_us is None else max(0.0, (now - queue.oldest_us) / 1e6),
        due_in_s=None if queue.next_due_us is None else max(0.0, (queue.next_due_us - now) / 1e6),
    )


def _state(parts: list[PartitionLag], *, started: bool, ready: bool) -> str:
    states = {part.state for part in parts}
    if started:
        states.discard("never-started")  # a partition of a grown topic that no worker has taken yet
        if any(part.state == "never-started" and part.records for part in parts):
            states.add("behind")
        states |= {"behind"} if ready else set()
    return next((state for state in _WORST if state in states), "settled" if started else "never-started")


def _outcomes(store: Store | None, consumer: str) -> dict[str, int]:
    tally = store.tally(consumer) if store is not None else {}
    return {outcome.name.lower(): count for outcome, count in sorted(tally.items())}


def _count(store: Store | None, consumer: str, state: str) -> int:
    if store is None:
        return 0
    return len(store.quarantine.select(Selection(consumer=consumer, states=(state,))))


def _members(info: GroupInfo | None) -> list[Member]:
    return [
        Member(**msgspec.structs.asdict(member), idle=not member.partitions)
        for member in (info.members if info is not None else [])
    ]
