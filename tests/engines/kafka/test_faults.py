"""Each of librdkafka's errors becomes one of settled's that says who must act. By code: no text is looked at."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from settled.engines.kafka.config import parse
from settled.engines.kafka.faults import is_absent, passes, translate
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

SETTINGS = parse("kafka://ann:hunter2@one:1,two:2", {})


def codes() -> dict[str, int]:
    """All codes that the client knows, by name."""
    named = {name: getattr(KafkaError, name) for name in dir(KafkaError) if name.isupper()}
    return {name: code for name, code in named.items() if isinstance(code, int)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_ALL_BROKERS_DOWN", Unavailable),
        ("_TRANSPORT", Unavailable),
        ("_TIMED_OUT", Unavailable),
        ("_MSG_TIMED_OUT", Unavailable),
        ("NOT_ENOUGH_REPLICAS", Unavailable),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Unavailable),
        ("NOT_LEADER_FOR_PARTITION", Unavailable),
        ("COORDINATOR_NOT_AVAILABLE", Unavailable),
        ("REBALANCE_IN_PROGRESS", Unavailable),
        ("KAFKA_STORAGE_ERROR", Unavailable),
        ("UNKNOWN_TOPIC_OR_PART", ContractError),
        ("_UNKNOWN_TOPIC", ContractError),
        ("TOPIC_AUTHORIZATION_FAILED", ContractError),
        ("GROUP_AUTHORIZATION_FAILED", ContractError),
        ("CLUSTER_AUTHORIZATION_FAILED", ContractError),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", ContractError),
        ("SASL_AUTHENTICATION_FAILED", ContractError),
        ("_AUTHENTICATION", ContractError),
        ("INVALID_REPLICATION_FACTOR", ContractError),
        ("POLICY_VIOLATION", ContractError),
        ("MSG_SIZE_TOO_LARGE", TooLarge),
        ("RECORD_LIST_TOO_LARGE", TooLarge),
        ("UNSUPPORTED_VERSION", Unsupported),
        ("_UNSUPPORTED_FEATURE", Unsupported),
        ("_FENCED", Fenced),
        ("ILLEGAL_GENERATION", Fenced),
        ("FENCED_INSTANCE_ID", Fenced),
        ("OFFSET_OUT_OF_RANGE", HistoryLost),
        ("_LOG_TRUNCATION", HistoryLost),
        ("_BAD_MSG", Damaged),
        ("INVALID_RECORD", InvalidMessage),
    ],
)
def test_who_must_act(name: str, kind: type[SettledError]) -> None:
    error = KafkaError(codes()[name])
    for each in (error, KafkaException(error)):
        found = translate(each, "publishing", settings=SETTINGS, topic="orders")
        assert type(found) is kind
        assert found.message.startswith("publishing: ")
        assert found.hint


def test_no_code_is_without_an_error_of_ours() -> None:
    for name, code in codes().items():
        found = translate(KafkaError(code), "doing it", settings=SETTINGS)
        assert isinstance(found, SettledError), name
        assert found.hint, name
        assert "hunter2" not in str(found), name


def test_an_outage_names_the_brokers_that_were_asked() -> None:
    found = translate(KafkaError(KafkaError._TRANSPORT), "connecting", settings=SETTINGS)
    assert "one:1, two:2" in found.message
    assert found.exit_code == 69


@pytest.mark.parametrize(
    ("name", "operation", "line"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", "Write", "--operation Write --topic orders"),
        ("GROUP_AUTHORIZATION_FAILED", "Describe", "--operation Read --group stock"),
        ("CLUSTER_AUTHORIZATION_FAILED", "Create", "--operation Create --cluster"),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "Write", "--operation Write --transactional-id NAME"),
    ],
)
def test_a_missing_right_comes_with_the_acl_that_gives_it(name: str, operation: str, line: str) -> None:
    found = translate(
        KafkaError(codes()[name]), "x", settings=SETTINGS, topic="orders", group="stock", operation=operation
    )
    assert "kafka-acls --bootstrap-server one:1,two:2 --add --allow-principal User:ann" in found.hint
    assert line in found.hint
    assert found.exit_code == 2


def test_the_text_of_an_error_does_not_decide() -> None:
    misleading = KafkaError(KafkaError._TRANSPORT, "Broker: Topic authorization failed")
    assert type(translate(misleading, "x")) is Unavailable


def test_a_secret_in_an_error_is_not_passed_on() -> None:
    found = translate(KafkaError(KafkaError.INVALID_CONFIG, "bad value hunter2"), "x", settings=SETTINGS)
    assert "hunter2" not in str(found)
    assert "***" in str(found)


def test_what_is_absent() -> None:
    assert is_absent(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    assert is_absent(KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND)))
    assert not is_absent(KafkaError(KafkaError._TRANSPORT))


@pytest.mark.parametrize(
    "name",
    [
        "UNKNOWN_TOPIC_OR_PART",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "UNKNOWN_LEADER_EPOCH",
        "FENCED_LEADER_EPOCH",
        "OFFSET_NOT_AVAILABLE",
    ],
)
def test_what_brokers_do_not_know_yet_is_asked_again(name: str) -> None:
    assert passes(KafkaException(KafkaError(getattr(KafkaError, name))))


@pytest.mark.parametrize("name", ["TOPIC_AUTHORIZATION_FAILED", "INVALID_CONFIG", "UNSUPPORTED_VERSION"])
def test_what_asking_again_does_not_mend_is_told(name: str) -> None:
    assert not passes(KafkaException(KafkaError(getattr(KafkaError, name))))
