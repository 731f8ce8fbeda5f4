"""What is told of a contract on an engine: the facts, not their wording as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from settled.contract.check import check
from settled.contract.explain import TITLES, Fact
from settled.contract.load import from_mapping, with_changes
from settled.engine import Capabilities
from settled.engines.kafka import KafkaEngine
from settled.engines.rabbitmq import RabbitEngine
from settled.engines.sqlite import SqliteEngine
from settled.errors import Unsupported
from settled.operations.explaining import REASONS, explained

EVERYTHING = Capabilities(
    durability=frozenset({"memory", "local", "committed"}), forms=frozenset({"queue", "pubsub", "log", "notification"})
)
KEPT = {
    "sqlite": SqliteEngine.capabilities,
    "kafka": KafkaEngine.capabilities,
    "rabbitmq": RabbitEngine.capabilities,
}
QUEUE_OR_PUBSUB = Capabilities(durability=frozenset({"local"}), forms=frozenset({"queue", "pubsub"}))


def facts(engine: str = "sqlite", **sections: Any) -> list[Fact]:
    contract = from_mapping({"name": "t", "poison": {"owner": "ops"}, "delivery": {"group": "g"}} | sections)
    return explained(contract, engine, KEPT.get(engine, QUEUE_OR_PUBSUB))


def told(about: str, found: list[Fact]) -> str:
    return "\n".join(f"{fact.told} | {fact.by}" for fact in found if fact.about == about)


@pytest.mark.parametrize("form", ["queue", "pubsub", "log", "notification"])
@pytest.mark.parametrize("engine", ["sqlite", "kafka", "rabbitmq", "of-others"])
@pytest.mark.parametrize("mode", ["at-most-once", "at-least-once", "effectively-once"])
def test_every_question_has_an_answer(form: str, engine: str, mode: str) -> None:
    for ordering, key in (("key", "key"), ("none", "key"), ("none", None)):
        contract = from_mapping(
            {
                "name": "t",
                "transport": {"form": form, "key": key},
                "delivery": {"mode": mode, "ordering": ordering},
            }
        )
        found = explained(contract, engine, EVERYTHING)
        assert {fact.about for fact in found} == set(TITLES)
        assert [fact.about for fact in found] == sorted((fact.about for fact in found), key=list(TITLES).index)
        assert len({fact.told for fact in found}) == len(found)


def test_who_owns_a_record() -> None:
    assert "nobody" in told("owner", facts())
    queue = told("owner", facts(transport={"form": "queue"}))
    assert "one member of group" in queue
    assert "silent for 10s" in queue
    assert "leaves the queue" in queue
    assert "no authority" in told("owner", facts(transport={"form": "notification"}))
    assert "connection lives" in told("owner", facts("rabbitmq", transport={"form": "queue"}))


def test_who_may_read_it() -> None:
    assert "alone" in told("readers", facts(transport={"form": "queue"}))
    assert "subscriptions" in told("readers", facts(transport={"form": "pubsub"}))
    assert "App.tail" in told("readers", facts(transport={"form": "pubsub"}))
    assert "App.tail" in told("readers", facts("rabbitmq", transport={"form": "pubsub"}))
    assert "App.tail" not in told("readers", facts("rabbitmq", transport={"form": "queue"}))


def test_how_long_it_lives() -> None:
    assert "3d from its acceptance" in told("life", facts(retention={"age": "3d"}))
    assert "for ever" in told("life", facts(retention={"age": None}, delivery={"dedupe": {"horizon": None}}))
    assert "wait for no group" in told("life", facts("kafka"))
    assert "does not pass the frontier" in told("life", facts())
    assert "until it is settled" in told("life", facts(transport={"form": "queue"}))
    compacted = told("life", facts(retention={"compact": True, "tombstones": "2h"}))
    assert "newest record of each key stays" in compacted
    assert "stays 2h" in compacted
    assert "keeps it 1h" in told("life", facts(transport={"form": "notification"}))


def test_what_order_holds() -> None:
    usual = told("order", facts(transport={"version": "rev"}))
    for word in ("order of the log", "retry:", "quarantine: later records of its key run on", "crash:", "rebalance:"):
        assert word in usual
    assert "a rev not above" in usual
    parked = told("order", facts(poison={"owner": "ops", "then": "park"}))
    assert "go there too, behind it" in parked
    assert "its key run on" not in parked
    free = told("order", facts(delivery={"ordering": "none"}))
    assert "any order" in free
    assert "overwriting" in free
    assert "retry" not in free
    queue = told("order", facts(transport={"form": "queue"}))
    assert "all that are claimed are in one slot" in queue
    assert "not due yet does not hold its key" in queue
    assert "partitions: 1" in told("order", facts("rabbitmq", transport={"form": "queue", "partitions": 1}))
    assert "not run again" in told("order", facts(delivery={"mode": "at-most-once"}))
    assert "versions of a key rise" in told("order", facts(transport={"form": "notification", "version": "rev"}))


def test_what_may_repeat() -> None:
    usual = told("repeats", facts(delivery={"dedupe": {"horizon": "20d"}}))
    assert "one effect for each consumer and event id" in usual
    assert "(20d)" in usual
    assert "consumer and topic" in told("repeats", facts(delivery={"dedupe": {"scope": "topic"}}))
    assert "makes two effects" in told("repeats", facts(delivery={"mode": "at-least-once"}))
    assert "nothing that ran runs again" in told("repeats", facts(delivery={"mode": "at-most-once"}))
    assert "settled.external" in told("repeats", facts(external={"repeat": ["charge"]}))
    assert "settled.external" not in usual


def test_what_may_be_lost() -> None:
    assert "no accepted record" in told("losses", facts())
    assert "a gap" in told("losses", facts())
    assert "a gap" not in told("losses", facts(retention={"age": None}))
    assert "power cut" in told("losses", facts(producer={"durability": "memory"}))
    assert "quorum" in told("losses", facts("kafka", producer={"durability": "committed"}))
    assert "under way when a worker died" in told("losses", facts(delivery={"mode": "at-most-once"}))
    compacted = {"transport": {"version": "rev"}, "retention": {"compact": True}}
    assert "goes by the order of the log" in told("losses", facts(**compacted))
    assert "goes by the order of the log" not in told("losses", facts(retention={"compact": True}))
    hints = told("losses", facts(transport={"form": "notification"}, delivery={"in_flight": {"records": 70}}))
    assert "beyond 70 keys" in hints
    assert "@app.sweep" in hints


def test_what_a_reader_that_is_away_finds() -> None:
    assert "goes on with what is left" in told("offline", facts())
    assert "stops there" in told("offline", facts(retention={"on_gap": "stop"}))
    assert "does not wait" in told("offline", facts("kafka"))
    assert "finds a gap" not in told("offline", facts(retention={"age": None}))
    assert "keeps what nobody works on" in told("offline", facts(transport={"form": "queue"}))
    assert "since it subscribed" in told("offline", facts("rabbitmq", transport={"form": "pubsub"}))
    assert "interruptions" in told("offline", facts("rabbitmq", transport={"form": "pubsub"}))
    assert "interruptions" not in told("offline", facts("sqlite", transport={"form": "pubsub"}))
    assert "before it joined first" in told("losses", facts("rabbitmq", transport={"form": "pubsub"}))
    hints = {"transport": {"form": "notification"}}
    assert "keeps it nowhere" in told("life", facts("rabbitmq", **hints))
    assert "the log keeps it" in told("life", facts("sqlite", **hints))
    assert "misses what passes" in told("offline", facts(transport={"form": "notification"}))


def test_what_it_can_be_made_into() -> None:
    log = told("layers", facts(transport={"partitions": 7}))
    assert "compete for it as on a queue" in log
    assert "at most 7" in log
    assert "tx.publish" in log
    assert "fill this queue" in told("layers", facts(transport={"form": "queue"}))


@pytest.mark.parametrize(("engine", "form"), REASONS)
def test_a_form_that_an_engine_does_not_keep_is_refused_with_the_reason(engine: str, form: str) -> None:
    with pytest.raises(Unsupported) as refused:
        facts(engine, transport={"form": form})
    assert REASONS[engine, form] in str(refused.value)
    assert refused.value.field == "transport.form"
    assert refused.value.hint


def test_a_log_is_not_explained_as_a_brokers_queue() -> None:
    """RabbitMQ keeps logs otherwise than its queues: history, no tails, and no sync to disk."""
    log = {"transport": {"form": "log"}}
    assert "stays in the log" in told("owner", facts("rabbitmq", **log))
    assert "locks a partition" in told("owner", facts("rabbitmq", **log))
    assert "App.tail" not in told("readers", facts("rabbitmq", **log))
    assert "whole files" in told("life", facts("rabbitmq", **log))
    assert "does not wait" in told("offline", facts("rabbitmq", **log))
    assert "a leader that dies" in told("losses", facts("rabbitmq", producer={"durability": "memory"}, **log))
    assert "a slot" not in told("order", facts("rabbitmq", **log))


def test_what_rabbitmq_keeps_depends_on_form_and_nodes() -> None:
    one, three = (RabbitEngine.capabilities_at(f"rabbitmq://{hosts}/") for hosts in ("a", "a,b,c"))
    log = from_mapping({"name": "x", "transport": {"form": "log"}})
    queue = from_mapping({"name": "x", "transport": {"form": "queue"}, "delivery": {"ordering": "none"}})
    quorum = with_changes(queue, {"producer": {"durability": "committed"}})
    kinds = ((log, one, False), (log, three, False), (queue, one, True), (quorum, one, False), (quorum, three, True))
    for contract, capabilities, kept in kinds:
        rules = {finding.rule for finding in check(contract, capabilities=capabilities)}
        assert ("durability-not-kept" not in rules) is kept
    assert not one.of("log").renumbers
    assert one.of("queue").renumbers
    for form in ("queue", "pubsub", "log", "notification"):
        assert SqliteEngine.capabilities.of(form) == SqliteEngine.capabilities
