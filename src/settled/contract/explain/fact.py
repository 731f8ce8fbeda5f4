"""A fact, and what facts are made from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from settled.contract.model import Contract
from settled.contract.units import show_duration
from settled.engine import Capabilities

About = Literal["owner", "readers", "life", "order", "repeats", "losses", "offline", "layers"]

TITLES: dict[About, str] = {
    "owner": "Who owns a record",
    "readers": "Who may read it",
    "life": "How long it lives",
    "order": "What order holds",
    "repeats": "What may repeat",
    "losses": "What may be lost",
    "offline": "A reader that is away",
    "layers": "What it can be made into",
}


class Fact(msgspec.Struct, frozen=True):
    """One thing that holds. `by` names what enforces it, empty: nothing has to."""

    about: About
    told: str
    by: str = ""


Facts = Iterator[Fact]


class Ground:
    """A contract on an engine, with the questions that several facts ask."""

    def __init__(self, contract: Contract, engine: str, capabilities: Capabilities) -> None:
        self.contract, self.engine = contract, engine
        self.capabilities = capabilities.of(contract.transport.form)
        self.transport, self.delivery = contract.transport, contract.delivery
        self.poison, self.retention = contract.poison, contract.retention
        self.form = contract.transport.form
        self.group = contract.delivery.group
        self.hints = self.form == "notification"
        self.queue = self.form == "queue"
        # A group's records leave the broker once they are settled:
        self.brokers_queue = engine == "rabbitmq" and self.form in ("queue", "pubsub")
        self.log = not (self.hints or self.queue or self.brokers_queue)  # it has a history that several may read
        self.ordered = contract.delivery.ordering == "key" and contract.transport.key is not None
        self.lease = show_duration(contract.delivery.lease)
        self.part = "slot" if self.queue or self.brokers_queue else "partition"


def kept(seconds: float | None) -> str:
    return "for ever" if seconds is None else show_duration(seconds)
