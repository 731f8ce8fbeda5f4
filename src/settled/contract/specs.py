"""From the contract to what the two ports take."""

from __future__ import annotations

from datetime import timedelta

from settled.contract import units
from settled.contract.model import Contract
from settled.delivery.retry import RetryPolicy
from settled.delivery.subscription import Subscription
from settled.engine import ConsumerGroup, ProducerSpec, TopicSpec
from settled.errors import ContractError, Unsupported
from settled.outcome import FailureClass
from settled.record import Headers
from settled.scheduling import PRIORITY
from settled.store import ConsumerSpec


def topic_spec(contract: Contract) -> TopicSpec:
    """The topic, as `Engine.ensure_topic` takes it."""
    return TopicSpec(
        name=contract.transport.topic,
        form=contract.transport.form,
        compact=contract.retention.compact,
        tombstone_s=contract.retention.tombstones,
        pass_groups=contract.retention.pass_groups,
        partitions=contract.transport.partitions,
        retention_s=contract.retention.age,
        retention_bytes=contract.retention.bytes,
        max_message_bytes=contract.transport.record_limit,
        replicas=contract.transport.replicas,
        min_isr=contract.transport.min_isr,
    )


def producer_spec(contract: Contract, identity: str | None = None) -> ProducerSpec:
    """The producer. `identity` takes the place of the contract's; a name belongs to one running producer at a time."""
    producer = contract.producer
    return ProducerSpec(
        identity=producer.identity if identity is None else identity,
        durability=producer.durability,
        compression=producer.compression,
        batch_records=producer.batch.records,
        batch_bytes=producer.batch.bytes,
        linger_s=producer.batch.time,
    )


def consumer_group(contract: Contract, member: str | None = None) -> ConsumerGroup:
    """The group, as a member joins it."""
    return ConsumerGroup(
        group=contract.delivery.group,
        topics=(contract.transport.topic,),
        lease_s=contract.delivery.lease,
        ordered=contract.delivery.ordering == "key",
        member=member,
    )


def consumer_spec(contract: Contract, code_version: str = "") -> ConsumerSpec:
    """Who consumes, as the effect store knows it."""
    group, topic = contract.delivery.group, contract.transport.topic
    return ConsumerSpec(
        consumer=f"{group}/{topic}" if contract.delivery.dedupe.scope == "topic" else group,
        inbox=contract.delivery.mode == "effectively-once",
        versioned=contract.transport.version is not None,
        owner=contract.poison.owner or "",
        code_version=code_version,
        external=tuple(
            (name, policy)
            for policy in ("repeat", "reconcile", "quarantine")
            for name in getattr(contract.external, policy)
        ),
    )


def subscription(contract: Contract, *, member: str | None = None, code_version: str = "") -> Subscription:
    """All that a worker must know."""
    delivery = contract.delivery
    return Subscription(
        group=consumer_group(contract, member),
        consumer=consumer_spec(contract, code_version),
        mode=delivery.mode,
        start=contract.transport.start,
        ordered=delivery.ordering == "key",
        shared=contract.transport.form == "queue",
        concurrency=delivery.concurrency,
        group_records=delivery.group_size.records,
        group_bytes=delivery.group_size.bytes,
        target_s=delivery.group_size.target,
        linger_s=delivery.group_size.linger,
        in_flight_records=delivery.in_flight.records,
        in_flight_bytes=delivery.in_flight.bytes,
        on_gap=contract.retention.on_gap,
        grace_s=delivery.grace,
        horizon_s=delivery.dedupe.horizon,
        retry=retry_policy(contract),
    )


def seconds(every: float | str | timedelta | None) -> float | None:
    """A span as it is given in Python: seconds, a duration as in the file, a timedelta; none stays none."""
    if isinstance(every, str):
        every = units.duration(every)
    found = every.total_seconds() if isinstance(every, timedelta) else every
    if found is not None and not 0 < found < 10**9:
        raise ContractError(f"{every!r} is no span above 0", field="every", value=every, hint='e.g. 30 or "30s"')
    return found


def require_form(contract: Contract, *, hints: bool) -> None:
    """Raises ContractError where hints are worked on as records, or records as hints."""
    if (contract.transport.form == "notification") != hints:
        raise ContractError(
            f"the form is {contract.transport.form}",
            field="transport.form",
            hint="a notification has a watcher (`App.watcher`), every other form a worker (`App.worker`); `App.run` "
            "takes the right one",
        )
    if hints and contract.delivery.mode != "at-most-once":
        raise ContractError(
            f"hints are lost with a reader that dies, and the mode is {contract.delivery.mode}",
            field="delivery.mode",
            hint="leave delivery.mode out (a notification is at-most-once), or choose the form log",
        )


def retry_policy(contract: Contract) -> RetryPolicy:
    """What follows a failed run."""
    poison = contract.poison
    classes = {
        name: kind
        for kind, names in (
            (FailureClass.TRANSIENT, poison.classes.transient),
            (FailureClass.PERMANENT, poison.classes.permanent),
            (FailureClass.DEFECT, poison.classes.defect),
        )
        for name in names
    }
    return RetryPolicy(
        transient=poison.attempts.transient,
        defect=poison.attempts.defect,
        worker_lost=poison.attempts.worker_lost,
        first_s=poison.backoff.first,
        factor=poison.backoff.factor,
        most_s=poison.backoff.most,
        deadline_s=poison.deadline,
        classes=classes,
        then=poison.then,
        eviction_burst=poison.eviction.burst,
        eviction_per_successes=poison.eviction.per_successes,
    )


def require_scheduling(contract: Contract, asked: Headers) -> None:
    """Raises Unsupported, naming what a message asks for that the contract's form does not obey."""
    names = {name for name, _ in asked}
    if contract.transport.form != "queue":
        raise Unsupported(
            f"{', '.join(sorted(names))}: only a queue obeys it, and the form is {contract.transport.form}",
            field="transport.form",
            value=contract.transport.form,
            hint="declare transport.form: queue, or publish without it",
        )
    if PRIORITY in names and contract.delivery.ordering == "key":
        raise Unsupported(
            "a priority would overtake earlier records of its key, and the order of keys is declared",
            field="delivery.ordering",
            value="key",
            hint="declare delivery.ordering: none, or publish without a priority",
        )
