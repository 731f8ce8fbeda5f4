"""Messages that other programs put into a queue, and what settled's own look like to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from broker import channel, put

from settled.engines.rabbitmq import RabbitEngine
from settled.record import Message, Record
from settled.testing import rabbitmq
from settled.testing.engine_tools import names, publish
from settled.testing.queue_tools import QueueMember, make_queue

pytestmark = pytest.mark.xdist_group("rabbitmq")


@pytest.fixture
def engine() -> Iterator[RabbitEngine]:
    names.fresh()
    opened = RabbitEngine(rabbitmq.url())
    make_queue(opened, 2)
    yield opened
    opened.close()
    names.plain()


def received(engine: RabbitEngine, count: int = 1) -> list[Record]:
    member = QueueMember(engine)
    found = list(member.receives(count))
    member.leave()
    return found


def test_a_foreign_message_is_taken_as_it_is(engine: RabbitEngine) -> None:
    headers: dict[str, Any] = {"a": "text", "n": 7, "t": True, "none": None, "raw": b"\xff", "x-own": "theirs"}
    put(
        names.topic,
        b"\xff\xfe",
        message_id="m1",
        type="T",
        correlation_id="c",
        timestamp=1_700_000_000,
        headers=headers,
    )
    (found,) = received(engine)
    assert (found.id, found.type, found.correlation_id, found.value) == ("m1", "T", "c", b"\xff\xfe")
    assert (found.key, found.event_time_us) == (None, 1_700_000_000_000_000)
    assert set(found.headers) == {("a", b"text"), ("n", b"7"), ("t", b"true"), ("none", None), ("raw", b"\xff")}


@pytest.mark.parametrize("ident", [None, "", "e\0"])
def test_one_without_a_usable_id_gets_one_that_stays(engine: RabbitEngine, ident: str | None) -> None:
    put(names.topic, b"{", message_id=ident, headers={"h": "1"})
    put(names.topic, b"{", message_id=ident, headers={"h": "2"})
    first = [record.id for record in received(engine, 2)]
    again = [record.id for record in received(engine, 2)]
    assert first == again
    assert len(set(first)) == 2
    assert all(found.startswith(f"{names.topic}/") for found in first)


@pytest.mark.parametrize("prefix", ["cloudEvents_", "cloudEvents:", "ce-"])
def test_cloudevents_are_understood(engine: RabbitEngine, prefix: str) -> None:
    said = {"id": "ce1", "type": "T", "time": "2030-01-31T12:00:00Z", "partitionkey": "k", "correlationid": "c"}
    put(names.topic, b"v", headers={f"{prefix}{name}": value for name, value in said.items()})
    (found,) = received(engine)
    assert (found.id, found.type, found.key, found.correlation_id) == ("ce1", "T", b"k", "c")
    assert found.event_time is not None
    assert found.event_time.isoformat() == "2030-01-31T12:00:00+00:00"


def test_settleds_own_as_others_see_them(engine: RabbitEngine) -> None:
    headers = (("traceparent", b"00-1"), ("content-type", b"application/json"), ("x", b"1"), ("x", None))
    sent = Message(topic=names.topic, id="e1", key=b"k", value=b"{}", type="T", headers=headers)
    publish(engine, [sent])
    with channel() as opened:
        _, properties, body = opened.basic_get(names.topic, auto_ack=True)
    assert (properties.message_id, properties.content_type, properties.delivery_mode, body) == (
        "e1",
        "application/json",
        2,
        b"{}",
    )
    table = properties.headers
    assert (table["cloudEvents_type"], table["cloudEvents_source"]) == ("T", f"/{names.topic}")
    assert (table["traceparent"], table["settled-key"]) == ("00-1", b"k")
    assert {name for name in table if name.startswith("x-")} <= {"x-delivery-count"}  # the broker's
