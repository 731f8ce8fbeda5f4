"""What is wrong with a contract that loads: contradictions (`check`), and fields that nothing enforces yet
(`not_enforced`). The rules themselves are in `rules`.
"""

from __future__ import annotations

import msgspec

from settled.contract.model import Contract
from settled.contract.rules import RULES, Severity
from settled.contract.shape import leaves, value_at
from settled.engine import Capabilities


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing found. `message` holds the numbers, `remedy` what to change, `field` where (dotted)."""

    rule: str
    severity: Severity
    field: str
    message: str
    remedy: str


# Broken, these leave work undone or unowned, but no promise: a worker may start all the same.
WORKER_MAY_START = frozenset({"quarantine-without-owner", "more-consumers-than-partitions"})

NOT_ENFORCED = "declared-not-enforced"

# Every field that is enforced, and where: a file of the package, as people find it.
ENFORCED: dict[str, str] = {
    "settled": "contract/build.py",
    "name": "contract/model.py",
    "version": "contract/model.py",
    "transport.form": "contract/rules/keeping.py",
    "transport.topic": "contract/specs.py",
    "transport.partitions": "contract/specs.py",
    "transport.key": "app.py",
    "transport.version": "contract/specs.py",
    "transport.start": "delivery/assignment.py",
    "transport.record_limit": "contract/specs.py",
    "transport.replicas": "contract/specs.py",
    "transport.min_isr": "contract/specs.py",
    "producer.identity": "contract/specs.py",
    "producer.durability": "contract/specs.py",
    "producer.batch.records": "contract/specs.py",
    "producer.batch.bytes": "contract/specs.py",
    "producer.batch.time": "contract/specs.py",
    "producer.compression": "contract/specs.py",
    "delivery.mode": "contract/specs.py",
    "delivery.group": "contract/specs.py",
    "delivery.ordering": "delivery/lanes.py",
    "delivery.consumers": "contract/rules/room.py",
    "delivery.concurrency": "delivery/worker.py",
    "delivery.group_size.records": "delivery/flow.py",
    "delivery.group_size.bytes": "delivery/flow.py",
    "delivery.group_size.target": "delivery/flow.py",
    "delivery.group_size.linger": "delivery/flow.py",
    "delivery.in_flight.records": "delivery/flow.py",
    "delivery.in_flight.bytes": "delivery/flow.py",
    "delivery.process_budget": "contract/rules/room.py",
    "delivery.dedupe.scope": "contract/specs.py",
    "delivery.dedupe.horizon": "delivery/worker.py",
    "delivery.lease": "contract/specs.py",
    "delivery.effect_tail": "contract/rules/times.py",
    "delivery.grace": "delivery/worker.py",
    "retention.age": "contract/specs.py",
    "retention.bytes": "contract/specs.py",
    "retention.on_gap": "delivery/worker.py",
    "retention.compact": "contract/specs.py",
    "retention.tombstones": "contract/specs.py",
    "retention.pass_groups": "contract/specs.py",
    "poison.attempts.transient": "delivery/retry.py",
    "poison.attempts.defect": "delivery/retry.py",
    "poison.attempts.worker-lost": "delivery/retry.py",
    "poison.backoff.first": "delivery/retry.py",
    "poison.backoff.factor": "delivery/retry.py",
    "poison.backoff.most": "delivery/retry.py",
    "poison.deadline": "delivery/retry.py",
    "poison.classes.transient": "delivery/retry.py",
    "poison.classes.permanent": "delivery/retry.py",
    "poison.classes.defect": "delivery/retry.py",
    "poison.owner": "contract/specs.py",
    "poison.then": "delivery/lanes.py",
    "poison.eviction.burst": "delivery/retry.py",
    "poison.eviction.per_successes": "delivery/retry.py",
    "external.repeat": "calls.py",
    "external.reconcile": "calls.py",
    "external.quarantine": "calls.py",
    "recovery.envelope": "contract/rules/rates.py",
    "recovery.live": "contract/rules/rates.py",
    "recovery.headroom": "contract/rules/rates.py",
    "recovery.replay_rate": "contract/rules/rates.py",
    "recovery.replay_horizon": "contract/rules/marks.py",
}


def check(contract: Contract, *, capabilities: Capabilities | None = None) -> list[Finding]:
    """The rules that the contract breaks, errors first. Rules about the engine need its `capabilities`."""
    found = []
    kept = None if capabilities is None else capabilities.of(contract.transport.form)
    for rule in RULES:
        told = rule.test(contract, kept)
        if told is not None:
            message, remedy = told
            found.append(
                Finding(rule=rule.name, severity=rule.severity, field=rule.field, message=message, remedy=remedy)
            )
    return sorted(found, key=lambda finding: ("error", "warning", "note").index(finding.severity))


def not_enforced(contract: Contract) -> list[Finding]:
    """A note for every field that the contract declares and nothing enforces yet."""
    return [
        Finding(
            rule=NOT_ENFORCED,
            severity="note",
            field=path,
            message=f"{path} is declared, and nothing enforces it yet",
            remedy="keep it for people to read, and do not rely on it",
        )
        for path, member in leaves(Contract)
        if path not in ENFORCED and value_at(contract, path) != member.default
    ]
