"""What a contract promises on an engine, in sentences: who owns a record, who may read it, how long it lives, what
order holds through which failures, what may repeat, what may be lost, and what enforces each. Nothing is opened for it.
"""

from __future__ import annotations

from settled.contract.explain.fact import TITLES, About, Fact, Ground
from settled.contract.explain.holding import layers, life, offline, owner, readers
from settled.contract.explain.order import order
from settled.contract.explain.promises import losses, repeats
from settled.contract.model import Contract
from settled.engine import Capabilities

__all__ = ["TITLES", "About", "Fact", "explain"]


def explain(contract: Contract, engine: str, capabilities: Capabilities) -> list[Fact]:
    """The facts, by what they are about, in the order of TITLES. The engine keeps the contract's form: what it does not
    keep is for `contract.check` to tell."""
    ground = Ground(contract, engine, capabilities)
    parts = (owner, readers, life, order, repeats, losses, offline, layers)
    return [fact for part in parts for fact in part(ground)]
