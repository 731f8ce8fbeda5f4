"""Each rule: a contract that breaks it, with its numbers, and the worked example, which keeps them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract_values import contracts
from hypothesis import HealthCheck, given, settings

from settled.contract.check import ENFORCED, NOT_ENFORCED, WORKER_MAY_START, check, not_enforced
from settled.contract.load import from_mapping, load
from settled.contract.model import Backoff, Contract
from settled.contract.rules import RULES
from settled.contract.rules.failure import waits
from settled.contract.shape import leaves
from settled.engine import Capabilities

MERCURY = Path(__file__).parents[2] / "examples" / "mercury" / "contract.yaml"
EMBEDDED = Capabilities(durability=frozenset({"memory", "local"}))
OTHERS = {"at-most-once-not-kept": Capabilities(durability=frozenset({"local"}), renumbers=True)}  # for these rules

# rule -> (a breaking change, a keeping change next to it, what the message must say)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "dedupe-shorter-than-retention": (
        {"delivery": {"dedupe": {"horizon": "6d"}}},
        {"delivery": {"dedupe": {"horizon": "7d"}}},
        ["6d", "7d"],
    ),
    "dedupe-shorter-than-replay": (
        {"recovery": {"replay_horizon": "15d"}},
        {"recovery": {"replay_horizon": "14d"}},
        ["14d", "15d"],
    ),
    "retry-deadline-above-dedupe-horizon": (
        {"poison": {"deadline": "15d"}},
        {"poison": {"deadline": "14d"}},
        ["15d", "14d"],
    ),
    "retry-deadline-above-retention": ({"poison": {"deadline": "8d"}}, {"poison": {"deadline": "7d"}}, ["8d", "7d"]),
    "replay-horizon-above-retention": (
        {"recovery": {"replay_horizon": "8d"}},
        {"recovery": {"replay_horizon": "7d"}},
        ["8d", "7d"],
    ),
    "lease-not-above-effect-tail": (
        {"delivery": {"lease": "2s"}},
        {"delivery": {"lease": "2001ms"}},
        ["lease is 2s", "may take 2s"],
    ),
    "grace-shorter-than-effect-tail": ({"delivery": {"grace": "1s"}}, {"delivery": {"grace": "2s"}}, ["1s", "2s"]),
    "linger-above-objective": (
        {"delivery": {"group_size": {"linger": "30s"}}, "objectives": {"oldest_age": "30s"}},
        {"delivery": {"group_size": {"linger": "30s"}}, "objectives": {"oldest_age": "31s"}},
        ["30s"],
    ),
    "batch-time-above-objective": (
        {"producer": {"batch": {"time": "20ms"}}, "objectives": {"publish_p99": "15ms"}},
        {"producer": {"batch": {"time": "14ms"}}, "objectives": {"publish_p99": "15ms"}},
        ["20ms", "15ms"],
    ),
    "effect-tail-below-objective": (
        {"objectives": {"effect_p99": "3s"}},
        {"objectives": {"effect_p99": "2s"}},
        ["2s", "3s"],
    ),
    "ordering-without-key": (
        {"transport": {"key": None}},
        {"transport": {"key": None}, "delivery": {"ordering": "none"}},
        ["key"],
    ),
    "version-without-key": (
        {"transport": {"key": None, "version": "v"}, "delivery": {"ordering": "none"}},
        {"transport": {"key": "k", "version": "v"}},
        ["version is v"],
    ),
    "park-without-ordering": (
        {"poison": {"then": "park"}, "delivery": {"ordering": "none"}},
        {"poison": {"then": "park"}},
        ["park", "none"],
    ),
    "park-on-slots": (
        {"poison": {"then": "park"}, "transport": {"form": "queue", "partitions": 4}},
        {"poison": {"then": "park"}, "transport": {"form": "queue", "partitions": 1}},
        ["park", "queue", "4"],
    ),
    "effect-identity-empty": (
        {"effect": {"name": "reservation"}},
        {"effect": {"name": "reservation", "identity": ["order_id"]}},
        ["reservation"],
    ),
    "in-flight-above-process-budget": (
        {"delivery": {"in_flight": {"bytes": "257MiB"}}},
        {"delivery": {"in_flight": {"bytes": "256MiB"}}},
        ["257MiB", "256MiB"],
    ),
    "group-above-in-flight": (
        {"delivery": {"group_size": {"records": 10_001, "bytes": "65MiB"}}},
        {"delivery": {"group_size": {"records": 10_000, "bytes": "64MiB"}}},
        ["10001", "10000", "65MiB", "64MiB"],
    ),
    "concurrency-above-in-flight": (
        {"delivery": {"concurrency": 10_001}},
        {"delivery": {"concurrency": 10_000}},
        ["10001", "10000"],
    ),
    "batch-above-in-flight": (
        {"producer": {"batch": {"bytes": "65MiB"}}},
        {"producer": {"batch": {"bytes": "64MiB"}}},
        ["65MiB", "64MiB"],
    ),
    "more-consumers-than-partitions": (
        {"delivery": {"consumers": 13}},
        {"delivery": {"consumers": 12}},
        ["13 consumers", "12 partitions", "1 would"],
    ),
    "quarantine-without-owner": ({"poison": {"owner": None}}, {"poison": {"owner": "me"}}, ["poison.owner"]),
    "deadline-shorter-than-backoff": (
        {"poison": {"deadline": "2999ms", "attempts": 5}},  # 200 + 400 + 800 + 1600 ms
        {"poison": {"deadline": "3s", "attempts": 5}},
        ["5 attempts", "3s", "2999ms"],
    ),
    "backoff-first-above-most": (
        {"poison": {"backoff": {"first": "31s"}}},
        {"poison": {"backoff": {"first": "30s"}}},
        ["31s", "30s"],
    ),
    "class-listed-twice": (
        {"poison": {"classes": {"transient": ["OSError"], "permanent": ["OSError", "ValueError"]}}},
        {"poison": {"classes": {"transient": ["OSError", "OSError"], "permanent": ["ValueError"]}}},
        ["OSError"],
    ),
    "call-listed-twice": (
        {"external": {"repeat": ["charge"], "reconcile": ["mail", "charge"]}},
        {"external": {"repeat": ["charge", "charge"], "reconcile": ["mail"]}},
        ["charge"],
    ),
    "envelope-exceeded": (
        {"recovery": {"envelope": "3299/s", "live": "2,400/s", "headroom": "300/s", "replay_rate": "600/s"}},
        {"recovery": {"envelope": "3300/s", "live": "2,400/s", "headroom": "300/s", "replay_rate": "600/s"}},
        ["live 2400/s + headroom 300/s + replay 600/s = 3300/s", "3299/s"],
    ),
    "replay-rate-above-envelope": (
        {"recovery": {"envelope": "600/s", "replay_rate": "601/s"}},
        {"recovery": {"envelope": "600/s", "replay_rate": "600/s"}},
        ["601/s", "600/s"],
    ),
    "abort-within-objective": (
        {"recovery": {"abort": [{"signal": "oldest_age", "above": "29s"}]}, "objectives": {"oldest_age": "30s"}},
        {"recovery": {"abort": [{"signal": "oldest_age", "above": "30s"}]}, "objectives": {"oldest_age": "30s"}},
        ["29s", "30s"],
    ),
    "durability-not-kept": (
        {"producer": {"durability": "committed"}},
        {"producer": {"durability": "local"}},
        ["committed", "memory, local"],
    ),
    "durability-below-mode": (
        {"producer": {"durability": "memory"}},
        {"producer": {"durability": "memory"}, "delivery": {"mode": "at-most-once"}},
        ["memory", "effectively-once"],
    ),
    "replicas-below-durability": (
        {"producer": {"durability": "committed"}, "transport": {"replicas": 3, "min_isr": 1}},
        {"producer": {"durability": "local"}, "transport": {"replicas": 1, "min_isr": 1}},
        ["committed", "min_isr is 1"],
    ),
    "min-isr-above-replicas": (
        {"transport": {"replicas": 2, "min_isr": 3}},
        {"transport": {"replicas": 3, "min_isr": 2}},
        ["3", "2"],
    ),
    "min-isr-equals-replicas": (
        {"transport": {"replicas": 3, "min_isr": 3}},
        {"transport": {"replicas": 1, "min_isr": 1}},
        ["both 3"],
    ),
    "at-most-once-not-kept": (
        {"delivery": {"mode": "at-most-once"}},
        {"delivery": {"mode": "at-least-once"}},
        ["at-most-once"],
    ),
    "form-not-kept": ({"transport": {"form": "queue"}}, {"transport": {"form": "log"}}, ["queue", "log"]),
    "compaction-not-kept": (
        {"retention": {"compact": True}},
        {"retention": {"compact": False}},
        ["compact is true"],
    ),
    "compaction-passes-groups": (
        {"retention": {"compact": True}},
        {"retention": {"compact": True, "pass_groups": True}},
        ["pass_groups is false"],
    ),
    "compaction-without-key": (
        {"transport": {"key": None}, "delivery": {"ordering": "none"}, "retention": {"compact": True}},
        {"transport": {"key": "k"}, "retention": {"compact": True}},
        ["key is null"],
    ),
    "compaction-of-a-queue": (
        {"transport": {"form": "queue"}, "retention": {"compact": True}},
        {"transport": {"form": "log"}, "retention": {"compact": True}},
        ["form is queue"],
    ),
    "batch-above-record-limit": (
        {"producer": {"batch": {"bytes": 1_000_001}}},
        {"producer": {"batch": {"bytes": "1MB"}}},
        ["1000001B", "1MB"],
    ),
    "hints-lost-under-mode": (
        {"transport": {"form": "notification"}, "delivery": {"mode": "at-least-once"}},
        {"transport": {"form": "notification"}, "delivery": {"mode": "at-most-once"}},
        ["at-least-once"],
    ),
    "hint-without-version": (
        {"transport": {"form": "notification", "version": None}},
        {"transport": {"form": "notification", "version": "version"}},
        ["null"],
    ),
    "hints-kept-long": (
        {"transport": {"form": "notification"}, "retention": {"age": "25h"}},
        {"transport": {"form": "notification"}, "retention": {"age": "1d"}},
        ["25h"],
    ),
    "record-limit-above-engine": (
        {"transport": {"record_limit": "2MB"}},
        {"transport": {"record_limit": "1MB"}},
        ["2MB", "1MB"],
    ),
}


def contract(change: dict[str, Any]) -> Contract:
    mapping = {"name": "x", **change}
    mapping["poison"] = {"owner": "x-oncall", **change.get("poison", {})}
    return from_mapping(mapping)


def broken(change: dict[str, Any]) -> set[str]:
    return {finding.rule for finding in check(contract(change), capabilities=EMBEDDED)}


def test_every_rule_has_a_case() -> None:
    names = [rule.name for rule in RULES]
    assert sorted(CASES) == sorted(names)
    assert set(names) >= WORKER_MAY_START


@pytest.mark.parametrize("rule", CASES)
def test_a_contract_that_breaks_the_rule_is_told_the_numbers_and_the_remedy(rule: str) -> None:
    change, _, numbers = CASES[rule]
    finding = next(
        finding for finding in check(contract(change), capabilities=OTHERS.get(rule, EMBEDDED)) if finding.rule == rule
    )
    for number in numbers:
        assert number in finding.message
    assert finding.remedy
    paths = [path for path, _ in leaves(Contract)]
    assert any(path == finding.field or path.startswith(finding.field + ".") for path in paths)


@pytest.mark.parametrize("rule", CASES)
def test_a_contract_next_to_it_keeps_the_rule(rule: str) -> None:
    found = check(contract(CASES[rule][1]), capabilities=OTHERS.get(rule, EMBEDDED))
    assert rule not in {finding.rule for finding in found}


def test_the_worked_example_keeps_every_rule_on_the_embedded_engine() -> None:
    assert check(load(MERCURY), capabilities=EMBEDDED) == []


def test_the_defaults_lack_nothing_but_an_owner() -> None:
    assert [finding.rule for finding in check(Contract(name="x"), capabilities=EMBEDDED)] == [
        "quarantine-without-owner"
    ]


def test_records_kept_for_ever_need_marks_for_ever_where_marks_matter() -> None:
    for_ever = {"retention": {"age": None}}
    assert "dedupe-shorter-than-retention" in broken(for_ever)
    assert broken({**for_ever, "delivery": {"dedupe": {"horizon": None}}}) == set()
    assert broken({**for_ever, "delivery": {"mode": "at-least-once"}}) == set()


def test_the_engine_is_asked_only_where_it_is_known() -> None:
    assert check(contract({"producer": {"durability": "committed"}, "transport": {"form": "queue"}})) == []


def test_errors_come_first() -> None:
    found = check(contract({"producer": {"durability": "memory"}, "delivery": {"consumers": 99}}))
    assert [finding.severity for finding in found] == ["error", "warning"]


def test_the_longest_wait_is_the_sum_of_the_capped_steps() -> None:
    assert waits(Backoff(first=0.2, factor=2.0, most=30.0), 0) == 0.0
    assert waits(Backoff(first=0.2, factor=2.0, most=30.0), 4) == pytest.approx(3.0)
    assert waits(Backoff(first=10.0, factor=3.0, most=30.0), 4) == pytest.approx(10 + 30 + 30 + 30)
    assert waits(Backoff(first=10.0, factor=4.0, most=30.0), 2) == pytest.approx(10 + 30)
    assert waits(Backoff(first=5.0, factor=1.0, most=30.0), 10**9) == 5.0 * 10**9
    assert waits(Backoff(first=1e-6, factor=1.0000001, most=1e9), 10**9) > 1e9


def test_every_field_is_enforced_or_reported() -> None:
    full = load(MERCURY)
    reported = {finding.field for finding in not_enforced(full)}
    paths = {path for path, _ in leaves(Contract)}
    assert set(ENFORCED) | reported == paths
    assert set(ENFORCED) & reported == set()
    assert {finding.rule for finding in not_enforced(full)} == {NOT_ENFORCED}
    assert {finding.severity for finding in not_enforced(full)} == {"note"}


def test_what_is_not_declared_is_not_reported() -> None:
    assert not_enforced(Contract(name="x")) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(contracts())
def test_any_contract_can_be_checked(any_contract: Contract) -> None:
    found = check(any_contract, capabilities=EMBEDDED)
    assert len({finding.rule for finding in found}) == len(found)
    assert all(finding.message and finding.remedy for finding in found)
