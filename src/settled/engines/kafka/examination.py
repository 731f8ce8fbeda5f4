"""What can be seen of a cluster's health, for people: brokers, rights, and whether a topic keeps what is promised."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka

from settled.engine import Durability, Examined, TopicSpec
from settled.engines.kafka.admin import Admin
from settled.errors import ContractError

NEEDED = {"READ": "a worker reads", "WRITE": "publishing writes", "DESCRIBE_CONFIGS": "settings are compared"}
USEFUL = {"ALTER_CONFIGS": "retention follows the contract"}


def examine(admin: Admin, spec: TopicSpec | None, durability: Durability) -> list[Examined]:
    """Changes nothing. Raises Unavailable, and ContractError for rights without which nothing can be looked at."""
    found = [_cluster(admin)]
    if spec is not None and admin.topics([spec.name]):
        found += _topic(admin, spec.name, durability)
    return found


def _cluster(admin: Admin) -> Examined:
    brokers = admin.brokers()
    client = f"librdkafka {confluent_kafka.libversion()[0]}"
    told = f"{len(brokers)} brokers ({', '.join(brokers)}), cluster {admin.connect()}, {client}"
    return Examined(name="brokers", state="ok" if len(brokers) > 2 else "note", told=told)


def _topic(admin: Admin, name: str, durability: Durability) -> Iterator[Examined]:
    rights = admin.rights(name)
    for wanted, state in ((NEEDED, "bad"), (USEFUL, "note")):
        for operation, why in wanted.items():
            if operation not in rights:
                flag = operation.replace("_", " ").title().replace(" ", "")
                yield Examined(
                    name="rights",
                    state="bad" if state == "bad" else "note",
                    told=f"no right to {flag} on topic {name}: {why}",
                    remedy=f"kafka-acls --add --allow-principal User:NAME --operation {flag} --topic {name}",
                )
    try:
        admin.require_durability(name, durability)
    except ContractError as error:
        yield Examined(name="durability", state="bad", told=error.message, remedy=error.hint)
    else:
        yield Examined(name="durability", state="ok", told=f"topic {name} keeps {durability}")
