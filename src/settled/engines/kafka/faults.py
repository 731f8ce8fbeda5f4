"""From librdkafka's errors to settled's, by code alone: who must act, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException

from settled.engines.kafka.config import Settings
from settled.errors import (
    ContractError,
    Damaged,
    Fenced,
    HistoryLost,
    InvalidMessage,
    SettledError,
    TooLarge,
    Unavailable,
    Unsupported,
)

_E = KafkaError


class Context(NamedTuple):
    """What was being done, to whom: the parts that a remedy names. `operation` is the right that it needs."""

    what: str
    settings: Settings | None = None
    topic: str = ""
    group: str = ""
    operation: str = "Describe"


def translate(
    error: KafkaError | KafkaException,
    what: str,
    *,
    settings: Settings | None = None,
    topic: str = "",
    group: str = "",
    operation: str = "Describe",
) -> SettledError:
    """The error to raise. `what` says in a few words what failed, e.g. "reading topic 'orders'".

    `operation` is the access right that was needed (Kafka's word: Read, Write, Create, Describe, Alter, ...); with
    `settings` the brokers that were asked and the user are named.
    """
    found: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    context = Context(what, settings, topic, group, operation)
    make = _BY_CODE.get(found.code())
    if make is not None:
        return make(found, context)
    if found.retriable():
        return _unavailable(found, context)
    return SettledError(_said(found, context), hint="see Kafka's protocol guide for this error, and the broker's log")


_NEWS = frozenset(  # who leads is on its way to this broker, or came to it before the client knew
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)


def is_absent(error: KafkaError | KafkaException) -> bool:
    """Whether it says that a topic, a partition or a group is not there."""
    found: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    return found.code() in _ABSENT


def passes(answer: object) -> bool:
    """Whether it is an error that passes within a moment: a topic or a leader that this broker does not know yet."""
    return isinstance(answer, KafkaException) and (is_absent(answer) or answer.args[0].code() in _NEWS)


def _said(error: KafkaError, context: Context) -> str:
    text = error.str()
    if context.settings is not None:
        text = context.settings.log.cleaned(text)
    return f"{context.what}: {error.name()} ({text.strip()})"


def _asked(context: Context) -> str:
    return f" (brokers asked: {', '.join(context.settings.addresses)})" if context.settings is not None else ""


def _unavailable(error: KafkaError, context: Context) -> SettledError:
    return Unavailable(
        f"{context.what}: {error.name()}{_asked(context)}",
        hint="look whether the brokers run; it is tried again and goes on by itself",
    )


def _unreachable(error: KafkaError, context: Context) -> SettledError:
    return Unavailable(
        f"{context.what}: no broker answers, {error.name()}{_asked(context)}",
        hint="look whether the brokers run and listen there, and whether they advertise addresses that this machine "
        "reaches; for TLS or SASL state security.protocol",
    )


def _too_few(error: KafkaError, context: Context) -> SettledError:
    return Unavailable(
        f"{context.what}: fewer replicas are in sync than min.insync.replicas asks for ({error.name()})",
        hint="bring the brokers back; nothing was accepted, and it is tried again",
    )


def _absent(error: KafkaError, context: Context) -> SettledError:
    name = f"there is no topic {context.topic!r}" if context.topic else f"no such topic, partition or group: {error}"
    return ContractError(
        f"{context.what}: {name}" if context.what else name,
        field="topic",
        value=context.topic,
        hint="create it first: `settled publish --contract` and a worker do, from the contract",
    )


def _forbidden(kind: str, flag: str) -> Callable[[KafkaError, Context], SettledError]:
    def make(error: KafkaError, context: Context) -> SettledError:
        name = {"topic": context.topic, "group": context.group}.get(kind, "")
        user = (context.settings.stated("sasl.username") if context.settings is not None else None) or "NAME"
        servers = ",".join(context.settings.addresses) if context.settings is not None else "HOST:PORT"
        operation = _operation(kind, context.operation)
        target = flag if kind == "cluster" else f"{flag} {name or 'NAME'}"
        return ContractError(
            f"{context.what}: the cluster gives no right to {operation} on the {kind}{f' {name!r}' if name else ''} "
            f"({error.name()})",
            field="acl",
            value=operation,
            hint=f"kafka-acls --bootstrap-server {servers} --add --allow-principal User:{user} "
            f"--operation {operation} {target} (docs/kafka.md lists all that are needed)",
        )

    return make


def _operation(kind: str, wanted: str) -> str:
    """The right that was missing. To write with idempotence takes a right on some topic, or this one on the cluster."""
    if kind == "group":
        return "Read"
    return "IdempotentWrite" if kind == "cluster" and wanted == "Write" else wanted


def _authentication(error: KafkaError, context: Context) -> SettledError:
    return ContractError(
        f"{context.what}: the cluster does not accept this login or certificate ({error.name()}){_asked(context)}",
        field="sasl",
        hint="check security.protocol, sasl.mechanism, sasl.username and its password, and ssl.ca.location",
    )


def _too_large(error: KafkaError, context: Context) -> SettledError:
    return TooLarge(
        _said(error, context), field="value", hint="raise transport.record_limit (max.message.bytes), or send less"
    )


def _unsupported(error: KafkaError, context: Context) -> SettledError:
    return Unsupported(
        f"{context.what}: these brokers are too old, or lack it ({error.name()})",
        field="engine",
        hint="settled needs brokers of Apache Kafka 2.8 or newer",
    )


def _fenced(error: KafkaError, context: Context) -> SettledError:
    return Fenced(f"{context.what}: another one has taken over ({error.name()})", hint="stop; the new owner goes on")


def _history(error: KafkaError, context: Context) -> SettledError:
    return HistoryLost(
        f"{context.what}: the log does not hold that position ({error.name()})",
        hint="the topic was made anew, or records were lost in an unclean leader election: compare it with the store",
    )


def _damaged(error: KafkaError, context: Context) -> SettledError:
    return Damaged(_said(error, context), hint="a replica holds damaged bytes: let another one lead, then repair it")


def _invalid(error: KafkaError, context: Context) -> SettledError:
    return InvalidMessage(_said(error, context), field="message", hint="the broker refuses this record as it is")


def _contract(error: KafkaError, context: Context) -> SettledError:
    return ContractError(
        _said(error, context), field="engine", hint="change what the message names; the broker's policy decides"
    )


_ABSENT = frozenset(
    {
        _E.UNKNOWN_TOPIC_OR_PART,
        _E.UNKNOWN_TOPIC_ID,
        _E._UNKNOWN_TOPIC,
        _E._UNKNOWN_PARTITION,
        _E.GROUP_ID_NOT_FOUND,
        _E._UNKNOWN_GROUP,
    }
)
_KINDS: list[tuple[Callable[[KafkaError, Context], SettledError], tuple[int, ...]]] = [
    (
        _unreachable,
        (_E._ALL_BROKERS_DOWN, _E._TRANSPORT, _E._RESOLVE, _E._TIMED_OUT, _E._TIMED_OUT_QUEUE, _E.BROKER_NOT_AVAILABLE),
    ),
    (
        _unavailable,
        (
            *(_E._MSG_TIMED_OUT, _E._WAIT_COORD, _E._WAIT_CACHE, _E._QUEUE_FULL, _E._NODE_UPDATE, _E._UNKNOWN_BROKER),
            *(_E._RETRY, _E._IN_PROGRESS, _E._PREV_IN_PROGRESS, _E._DESTROY, _E._PURGE_QUEUE, _E._PURGE_INFLIGHT),
            *(_E._STATE, _E._FATAL, _E._GAPLESS_GUARANTEE, _E.LEADER_NOT_AVAILABLE, _E.NOT_LEADER_FOR_PARTITION),
            *(_E.REQUEST_TIMED_OUT, _E.REPLICA_NOT_AVAILABLE, _E.NETWORK_EXCEPTION, _E.COORDINATOR_LOAD_IN_PROGRESS),
            *(_E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR, _E.NOT_CONTROLLER, _E.KAFKA_STORAGE_ERROR),
            *(_E.REBALANCE_IN_PROGRESS, _E.OFFSET_NOT_AVAILABLE, _E.FENCED_LEADER_EPOCH, _E.UNKNOWN_LEADER_EPOCH),
            *(_E.PREFERRED_LEADER_NOT_AVAILABLE, _E.ELIGIBLE_LEADERS_NOT_AVAILABLE, _E.THROTTLING_QUOTA_EXCEEDED),
            *(_E.UNSTABLE_OFFSET_COMMIT, _E.REASSIGNMENT_IN_PROGRESS, _E.STALE_BROKER_EPOCH, _E.LISTENER_NOT_FOUND),
            *(_E.OUT_OF_ORDER_SEQUENCE_NUMBER, _E.UNKNOWN_PRODUCER_ID, _E.INVALID_PRODUCER_ID_MAPPING),
            *(_E.DUPLICATE_SEQUENCE_NUMBER, _E.REBOOTSTRAP_REQUIRED, _E._MAX_POLL_EXCEEDED),
        ),
    ),
    (_too_few, (_E.NOT_ENOUGH_REPLICAS, _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, _E._ISR_INSUFF)),
    (_absent, tuple(_ABSENT)),
    (_forbidden("topic", "--topic"), (_E.TOPIC_AUTHORIZATION_FAILED,)),
    (_forbidden("group", "--group"), (_E.GROUP_AUTHORIZATION_FAILED,)),
    (_forbidden("cluster", "--cluster"), (_E.CLUSTER_AUTHORIZATION_FAILED,)),
    (_forbidden("transactional id", "--transactional-id"), (_E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,)),
    (
        _authentication,
        (
            *(_E._AUTHENTICATION, _E._SSL, _E.SASL_AUTHENTICATION_FAILED, _E.UNSUPPORTED_SASL_MECHANISM),
            *(_E.ILLEGAL_SASL_STATE, _E.DELEGATION_TOKEN_EXPIRED, _E.UNACCEPTABLE_CREDENTIAL),
        ),
    ),
    (_too_large, (_E.MSG_SIZE_TOO_LARGE, _E.INVALID_MSG_SIZE, _E.RECORD_LIST_TOO_LARGE)),
    (
        _unsupported,
        (
            *(_E.UNSUPPORTED_VERSION, _E._UNSUPPORTED_FEATURE, _E.UNSUPPORTED_FOR_MESSAGE_FORMAT),
            *(_E.UNSUPPORTED_COMPRESSION_TYPE, _E._NOT_IMPLEMENTED, _E.UNSUPPORTED_ASSIGNOR),
        ),
    ),
    (
        _fenced,
        (
            *(_E.PRODUCER_FENCED, _E._FENCED, _E.INVALID_PRODUCER_EPOCH, _E.FENCED_INSTANCE_ID, _E.FENCED_MEMBER_EPOCH),
            *(_E.STALE_MEMBER_EPOCH, _E.ILLEGAL_GENERATION, _E.UNKNOWN_MEMBER_ID, _E._ASSIGNMENT_LOST),
            _E.UNRELEASED_INSTANCE_ID,
        ),
    ),
    (_history, (_E.OFFSET_OUT_OF_RANGE, _E._AUTO_OFFSET_RESET, _E._NO_OFFSET, _E._LOG_TRUNCATION)),
    (_damaged, (_E._BAD_MSG, _E.INVALID_MSG, _E._BAD_COMPRESSION)),
    (_invalid, (_E.INVALID_RECORD, _E.INVALID_TIMESTAMP)),
    (
        _contract,
        (
            *(_E._INVALID_ARG, _E.INVALID_CONFIG, _E.INVALID_REPLICATION_FACTOR, _E.INVALID_PARTITIONS),
            *(_E.POLICY_VIOLATION, _E.TOPIC_EXCEPTION, _E.INVALID_REQUEST, _E.INVALID_GROUP_ID, _E._CONFLICT),
            *(_E.INVALID_SESSION_TIMEOUT, _E.GROUP_MAX_SIZE_REACHED, _E.INCONSISTENT_GROUP_PROTOCOL),
            *(_E.TOPIC_ALREADY_EXISTS, _E.INVALID_REPLICA_ASSIGNMENT, _E.INVALID_REQUIRED_ACKS),
        ),
    ),
]
_BY_CODE = {code: make for make, codes in _KINDS for code in codes}
