"""A contract from a file or from keywords: defaults, the worked example, and faults named with place and remedy."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from settled.contract.load import ContractErrors, from_mapping, load, load_with_places, loads
from settled.contract.model import Abort, AttemptLimits, Contract
from settled.errors import ContractError, InvalidMessage

MERCURY = Path(__file__).parents[2] / "examples" / "mercury" / "contract.yaml"


def read(text: str) -> Contract:
    return loads(text)[0]


def faults(text: str) -> list[ContractError]:
    with pytest.raises(ContractErrors) as caught:
        loads(text, source="c.yaml")
    return list(caught.value.errors)


def test_the_worked_example_says_what_mercury_needs() -> None:
    contract = load(MERCURY)
    assert (contract.name, contract.version) == ("FulfillmentRequested", 3)
    assert contract.effect.identity == ("order_id", "reservation_version")
    assert (contract.transport.form, contract.transport.partitions, contract.transport.key) == ("log", 12, "order_id")
    batch = contract.producer.batch
    assert (batch.records, batch.bytes, batch.time) == (400, 600_000, 0.008)
    assert contract.delivery.group == "inventory-reservation-v3"
    assert (contract.delivery.mode, contract.delivery.dedupe.scope) == ("effectively-once", "consumer")
    assert contract.poison.attempts.defect == 5
    recovery = contract.recovery
    assert (recovery.envelope, recovery.live, recovery.headroom, recovery.replay_rate) == (3300, 2400, 300, 600)
    assert recovery.abort == (Abort(signal="oldest_age", above=60.0),)


def test_a_name_alone_is_a_contract() -> None:
    contract = read("name: OrderPlaced\n")
    assert contract == Contract(name="OrderPlaced")
    assert (contract.transport.topic, contract.delivery.group) == ("OrderPlaced", "OrderPlaced-v1")


def test_a_topic_alone_is_a_contract() -> None:
    contract = read("version: 2\ntransport: {topic: orders}\n")
    assert (contract.name, contract.delivery.group) == ("orders", "orders-v2")


def test_a_section_with_nothing_under_it_has_its_defaults() -> None:
    assert read("name: x\npoison:\nretention:\n  # age: 3d\n") == Contract(name="x")


def test_null_turns_off_what_is_optional() -> None:
    contract = read("name: x\nretention: {age: null}\ntransport: {key: ~}\n")
    assert contract.retention.age is None
    assert contract.transport.key is None


@pytest.mark.parametrize(("limit", "lost"), [("5", 3), ("2", 2), ("'1'", 1)])
def test_one_number_of_attempts_bounds_defects_and_lost_workers(limit: str, lost: int) -> None:
    attempts = read(f"name: x\npoison: {{attempts: {limit}}}").poison.attempts
    assert attempts == AttemptLimits(defect=int(limit.strip("'")), worker_lost=lost)


def test_keywords_are_shaped_as_the_file_is() -> None:
    contract = from_mapping(
        {
            "name": "x",
            "delivery": {"lease": timedelta(seconds=30), "group_size": {"records": 50}},
            "poison": {"attempts": 4, "backoff": {"factor": 1.5}, "classes": {"permanent": ["ValueError"]}},
        }
    )
    text = (
        "name: x\ndelivery: {lease: 30s, group_size: {records: 50}}\n"
        "poison: {attempts: 4, backoff: {factor: 1.5}, classes: {permanent: [ValueError]}}"
    )
    assert contract == read(text)


def test_keywords_that_are_wrong_are_named() -> None:
    with pytest.raises(ContractErrors) as caught:
        from_mapping(
            {"name": "x", "delivery": {"lease": 10, "grace": object(), "consumers": True, "concurrency": 10**6000}}
        )
    told = [(error.source, error.line, error.field) for error in caught.value.errors]
    fields = ["delivery.lease", "delivery.grace", "delivery.consumers", "delivery.concurrency"]
    assert told == [("App(...)", None, field) for field in fields]


def test_every_fault_is_named_at_once_with_its_place() -> None:
    found = faults("name: x\ndelivery:\n  leese: 5s\n  mode: exactly-once\n  lease: 5\n")
    assert [(error.line, error.column, error.field) for error in found] == [
        (3, 3, "delivery.leese"),
        (4, 9, "delivery.mode"),
        (5, 10, "delivery.lease"),
    ]
    assert "did you mean lease?" in found[0].hint
    assert "effectively-once" in found[1].hint
    assert "at-most-once, at-least-once" in found[1].hint
    assert found[2].value == "5"
    assert str(found[2]).startswith("c.yaml:5:10: delivery.lease: '5' has no unit\n  hint: write a number and")


def test_the_error_carries_the_first_fault_and_shows_all() -> None:
    with pytest.raises(ContractError) as caught:
        loads("name: x\nversion: 0\nfoo: 1\n", source="c.yaml")
    assert (caught.value.line, caught.value.field, caught.value.exit_code) == (2, "version", 2)
    assert "c.yaml:3:1: foo: there is no such field" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("name: x\nlease: 5s", "lease", "delivery.lease"),
        ("name: x\nname: y", "name", "keep one"),
        ("name: x\ndelivery: {lease: 1s, lease: 2s}", "delivery.lease", "keep one"),
        ("name: ../x", "name", "A-Z a-z"),
        ('name: "a\\0b"', "name", "A-Z a-z"),
        ('transport: {topic: "..", key: k}', "transport.topic", "A-Z a-z"),
        ("name: x\ndelivery: {group: a b}", "delivery.group", "A-Z a-z"),
        ('name: x\npoison: {owner: "a\\0b"}', "poison.owner", "ordinary text"),
        ('name: x\npoison: {owner: ""}', "poison.owner", "ordinary text"),
        ("name: true", "name", '"true"'),
        ("name: x\npoison: {owner: 7}", "poison.owner", '"7"'),
        ("name: x\npoison: {owner: }", "poison.owner", "null"),
        ("name: x\ndelivery: {lease: }", "delivery.lease", "remove the line"),
        ("name: x\ndelivery: {lease: on}", "delivery.lease", "us, ms, s"),
        ("name: x\ndelivery: {lease: [1s]}", "delivery.lease", "one duration"),
        ("name: x\ndelivery: {lease: 0s}", "delivery.lease", "or more"),
        ("name: x\ndelivery: {lease: 999999d}", "delivery.lease", "or less"),
        ("name: x\ndelivery: {consumers: 0}", "delivery.consumers", "1 or more"),
        ("name: x\ndelivery: {consumers: -3}", "delivery.consumers", "whole number"),
        ("name: x\ndelivery: {consumers: 99999999999}", "delivery.consumers", "or less"),
        ("name: x\ndelivery: {ordering: false}", "delivery.ordering", "key, none"),
        ("name: x\nretention: {compact: yes}", "retention.compact", "true or false"),
        ('name: x\nretention: {compact: "true"}', "retention.compact", "without quotes"),
        ("name: x\nretention: {compact: 1}", "retention.compact", "true or false"),
        ("name: x\nretention: {compact: }", "retention.compact", "remove the line"),
        ("name: x\ndelivery: {in_flight: 7}", "delivery.in_flight", "records, bytes"),
        ("name: x\ndelivery: null", "delivery", "mode, group"),
        ("name: x\neffect: {identity: order_id}", "effect.identity", "[order_id]"),
        ("name: x\npoison: {classes: {permanent: [a b]}}", "poison.classes.permanent[0]", "ValueError"),
        ("name: x\npoison: {attempts: {worker_lost: 2}}", "poison.attempts.worker_lost", "worker-lost"),
        ("name: x\nrecovery: {abort: [{above: 3s}]}", "recovery.abort[0].signal", "add"),
        ("name: x\nrecovery: {abort: [{signal: oldest_ag, above: 3s}]}", "recovery.abort[0].signal", "oldest_age"),
        ("settled: 2\nname: x", "settled", "settled: 1"),
        ("version: 2", "name", "name: OrderPlaced"),
        ("name: !!python/name:os.system x", "name", "one name"),
        ("name: x\n<<: {version: 2}", "<<", "merge keys"),
        ("name: x\n1: 2", "", "version"),
        ("name: x\neffect: &e {identity: *e}", "effect.identity", "[]"),
        ("name: " + "x" * 199, "delivery.group", "delivery.group"),
    ],
)
def test_a_fault_names_its_field_and_the_remedy(text: str, field: str, hint: str) -> None:
    found = faults(text)
    assert found[0].field == field
    assert hint in found[0].hint
    assert found[0].line is not None or field == "delivery.group"


def test_a_comma_that_cut_a_number_is_explained() -> None:
    found = faults("name: x\nrecovery: {live: 2,400/s}")
    assert "in quotes" in found[1].hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("- a\n", "not a list"),
        ("OrderPlaced", "not the text"),
        ("name: [", "not YAML"),
        ("name: x\n\tversion: 2\n", "not YAML"),
        ("name: x\n---\nname: y\n", "not YAML"),
        ("name: a\0b\n", "U+0000"),
        ("[" * 600, "nested too deep"),
    ],
)
def test_what_is_not_a_contract_at_all_is_refused(text: str, message: str) -> None:
    with pytest.raises(ContractError) as caught:
        loads(text, source="c.yaml")
    assert message in caught.value.message
    assert caught.value.source == "c.yaml"
    assert caught.value.hint


def test_words_that_older_yaml_turned_into_booleans_stay_words() -> None:
    assert read("name: x\npoison: {owner: no}").poison.owner == "no"
    assert read("name: x\neffect: {identity: [on, y]}").effect.identity == ("on", "y")


def test_a_missing_file_a_directory_and_a_pipe_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "no.yaml", "no such file"),
        (tmp_path, "directory"),
        (tmp_path / "pipe", "not a file"),
    ):
        with pytest.raises(ContractError, match=message) as caught:
            load(path)
        assert caught.value.source == str(path)
    with pytest.raises(ContractError, match="cannot be a path"):
        load("a\0b")


def test_a_file_that_is_too_large_or_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(ContractError, match="more than 1,000,000 bytes"):
        load(path)
    path.write_bytes(b"name: x\nowner: \xff\n")
    with pytest.raises(ContractError, match="not UTF-8") as caught:
        load(path)
    assert (caught.value.line, caught.value.column) == (2, 8)


def test_places_say_where_each_stated_field_stands(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("\ufeffname: x\ndelivery:\n  lease: 20s\n", encoding="utf-8")
    contract, places = load_with_places(path)
    assert contract.delivery.lease == 20.0
    assert places["delivery.lease"] == (3, 10)
    assert "delivery.grace" not in places


def test_a_contract_made_by_hand_needs_a_name_that_engines_take() -> None:
    with pytest.raises(ContractError, match="needs a name"):
        Contract()
    with pytest.raises(InvalidMessage):
        Contract(name="a/b")
