"""Keys, order and identity."""

from __future__ import annotations

from settled.contract.model import Contract
from settled.contract.rules.rule import Told, rule
from settled.engine import Capabilities


@rule("ordering-without-key", "error", "delivery.ordering", "Order by key is asked for, and records have no key.")
def _ordering(contract: Contract, _: Capabilities | None) -> Told:
    if contract.delivery.ordering != "key" or contract.transport.key is not None:
        return None
    return "delivery.ordering is key, transport.key is null", "name the field in transport.key, or set ordering: none"


@rule("version-without-key", "error", "transport.version", "Versions rise per key, and records have no key.")
def _version(contract: Contract, _: Capabilities | None) -> Told:
    if contract.transport.version is None or contract.transport.key is not None:
        return None
    return (
        f"transport.version is {contract.transport.version}, transport.key is null",
        "name the field that the version belongs to in transport.key, or remove transport.version",
    )


@rule("park-without-ordering", "error", "poison.then", "Parking holds a key's later records, and no order is kept.")
def _park(contract: Contract, _: Capabilities | None) -> Told:
    if contract.poison.then != "park" or contract.delivery.ordering == "key":
        return None
    return "poison.then is park, delivery.ordering is none", "set delivery.ordering: key, or poison.then: continue"


@rule(
    "park-on-slots",
    "error",
    "poison.then",
    "Parking holds later records of a key in its partition, and a queue of several slots may claim them into another.",
)
def _park_on_slots(contract: Contract, _: Capabilities | None) -> Told:
    transport = contract.transport
    if contract.poison.then != "park" or transport.form != "queue" or transport.partitions == 1:
        return None
    return (
        f"poison.then is park, form is queue, partitions is {transport.partitions}",
        "set poison.then: continue, give the queue one slot (partitions: 1), or choose the form log",
    )


@rule(
    "effect-identity-empty",
    "error",
    "effect.identity",
    "An effect is named, and nothing says when two of them are the same one.",
)
def _identity(contract: Contract, _: Capabilities | None) -> Told:
    if contract.effect.name is None or contract.effect.identity:
        return None
    return (
        f"effect.name is {contract.effect.name}, effect.identity is empty",
        "list the fields that make it one effect, e.g. identity: [order_id, version]",
    )
