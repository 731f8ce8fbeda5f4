"""Messages as AMQP properties and back, whatever stands in them; and what the settings and faults say. No broker."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import exceptions as amqp
from pika import frame
from pika.spec import BasicProperties

from settled.engines.rabbitmq import faults, settings
from settled.engines.rabbitmq.records import deliveries_before, properties_of, record_of
from settled.errors import ContractError, SettledError, TooLarge, Unavailable, Unsupported
from settled.record import Message

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
NUMBER = st.none() | st.integers(-(2**63), 2**63 - 1)
HEADERS = st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=20)), max_size=6).map(tuple)


def over_the_wire(properties: BasicProperties) -> BasicProperties:
    decoded = BasicProperties()
    decoded.decode(b"".join(properties.encode()))
    return decoded


@given(
    st.builds(
        Message,
        topic=st.just("t"),
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=20),
        headers=HEADERS,
        id=TEXT.filter(bool),
        type=st.none() | TEXT,
        version=NUMBER,
        event_time_us=NUMBER,
        correlation_id=st.none() | TEXT,
        causation_id=st.none() | TEXT,
    )
)
def test_every_field_comes_back(message: Message) -> None:
    properties = over_the_wire(properties_of(message))
    record, size = record_of("t", 3, 17, properties, message.value or b"")
    for field in Message.__struct_fields__:
        assert getattr(record, field) == getattr(message, field), field
    assert (record.place, record.offset, size) == (("t", 3), 17, record.size)
    assert not [name for name in properties.headers or {} if name.startswith("x-")]


@given(st.dictionaries(TEXT.filter(lambda name: len(name.encode()) < 200), st.binary(max_size=5) | st.none()))
def test_a_foreign_table_is_never_too_much(table: dict[str, Any]) -> None:
    record, size = record_of("t", 0, 0, over_the_wire(BasicProperties(headers=table)), b"")
    assert record.id
    assert size == record.size


def test_header_frames_hold_what_is_made_of_a_message() -> None:
    """Ids and types of the most bytes that are allowed."""
    made = properties_of(Message(topic="t" * 200, id="i" * 256, type="t" * 256, correlation_id="c" * 256))
    frame.Header(1, 0, made).marshal()


@pytest.mark.parametrize(
    ("headers", "redelivered", "count"), [(None, False, 0), ({}, True, 1), ({"x-delivery-count": 3}, True, 3)]
)
def test_the_brokers_count_is_taken(headers: dict[str, int] | None, redelivered: bool, count: int) -> None:
    assert deliveries_before(BasicProperties(headers=headers), redelivered) == count


def test_a_url_says_where_and_shows_no_secret() -> None:
    found = settings.parse("rabbitmq://me:s3cret%2F@a,b:5673,[::1]:5674/v%2Fh?prefetch=7&publish_timeout=3", {})
    assert found.addresses == ("a:5672", "b:5673", "[::1]:5674")
    assert (found.vhost, found.user, found.prefetch, found.publish_s) == ("v/h", "me", 7, 3.0)
    assert found.parameters(0, "n").credentials.password == "s3cret/"
    assert [found.parameters(turn, "n").host for turn in range(4)] == ["a", "b", "::1", "a"]
    assert "s3cret" not in f"{found!r} {found.shown}"
    with pytest.raises(TypeError):
        pickle.dumps(found)


def test_a_password_may_come_from_the_environment() -> None:
    found = settings.parse("rabbitmq://me@a", {settings.PASSWORD: "p"})
    assert found.parameters(0, "n").credentials.password == "p"
    assert settings.parse("rabbitmqs://a", {}).addresses == ("a:5671",)


@pytest.mark.parametrize(
    "url",
    [
        "amqp://a",
        "rabbitmq://a/v/h",
        "rabbitmq://a:0",
        "rabbitmq://a:70000",
        "rabbitmq://a,,b",
        "rabbitmq://a?prefetch=0",
        "rabbitmq://a?prefetch=many",
        "rabbitmq://a?prefetch=1&prefetch=2",
        "rabbitmq://a?colour=red",
        "rabbitmq://a?ca_file=/x",
        "rabbitmqs://a?ca_file=/nosuch",
        "rabbitmq://a?delivery_limit=3",
    ],
)
def test_urls_that_say_nothing_good(url: str) -> None:
    with pytest.raises(ContractError) as refused:
        settings.parse(url, {})
    assert refused.value.hint


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (amqp.ChannelClosedByBroker(404, "no"), ContractError),
        (amqp.ChannelClosedByBroker(403, "no"), ContractError),
        (amqp.ChannelClosedByBroker(406, "no"), ContractError),
        (amqp.ChannelClosedByBroker(311, "no"), TooLarge),
        (amqp.ConnectionClosedByBroker(540, "no"), Unsupported),
        (amqp.ConnectionClosedByBroker(530, "no"), ContractError),
        (amqp.ConnectionClosedByBroker(403, "no"), ContractError),
        (amqp.ConnectionClosedByBroker(320, "no"), Unavailable),
        (amqp.ProbableAuthenticationError(), Unavailable),  # a guess: the connection ended early
        (amqp.ProbableAccessDeniedError(), Unavailable),
        (amqp.ProbableAccessDeniedError(repr(amqp.ConnectionClosedByBroker(530, "no"))), ContractError),
        (amqp.ProbableAuthenticationError(repr(amqp.ConnectionClosedByBroker(403, "no"))), ContractError),
        (amqp.ProbableAuthenticationError(repr(amqp.StreamLostError("403"))), Unavailable),
        (amqp.IncompatibleProtocolError(), Unavailable),
        (amqp.StreamLostError(), Unavailable),
        (amqp.AMQPHeartbeatTimeout(), Unavailable),
        (ConnectionRefusedError(), Unavailable),
    ],
)
def test_faults_say_who_must_act(error: BaseException, kind: type[SettledError]) -> None:
    found = faults.translate(error, "trying", settings.parse("rabbitmq://me:s3cret@a", {}), topic="orders")
    assert type(found) is kind
    assert found.hint
    assert "s3cret" not in str(found)


@pytest.mark.parametrize(
    ("product", "version", "good"),
    [
        ("RabbitMQ", "3.10.8", True),
        ("RabbitMQ", "4.1.0-rc.1", True),
        ("RabbitMQ", "3.9.29", False),
        ("RabbitMQ", "", False),
        ("LavinMQ", "9.0", False),
    ],
)
def test_brokers_without_quorum_queues_are_refused(product: str, version: str, good: bool) -> None:
    if good:
        faults.require_broker({"product": product, "version": version})
        return
    with pytest.raises(Unsupported):
        faults.require_broker({"product": product, "version": version})
