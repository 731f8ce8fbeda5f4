"""What a store says when a fence or a position does not hold; the same for every store. Pure."""

from __future__ import annotations

from settled.errors import Fenced, HistoryLost
from settled.store import Position


def fenced(consumer: str, topic: str, partition: int, epoch: int, held: int | None) -> Fenced:
    """`held`: the epoch in the store, none if the partition was never acquired."""
    place = f"{topic}/{partition}"
    if held is None:
        return Fenced(f"{consumer}: {place} was never acquired in this store", hint="acquire it first")
    return Fenced(
        f"{consumer}: {place} has epoch {held} in the store, this owner has {epoch}; nothing was written",
        hint="another owner has taken over; stop working on this partition",
    )


def check_takeover(consumer: str, position: Position, epoch: int, *, same_owner: bool) -> None:
    """A fence only rises; the same epoch may be written again by the process that holds it."""
    place = f"{position.topic}/{position.partition}"
    if position.epoch > epoch:
        raise Fenced(
            f"{consumer}: {place} has epoch {position.epoch} in the store, above {epoch}",
            hint="another owner has taken over, or the engine lost its memory: ask it for a higher epoch",
        )
    if position.epoch == epoch and not same_owner:
        raise Fenced(
            f"{consumer}: {place} is held by another process under the same epoch {epoch}",
            hint="two engines give out epochs for one store; give each its own consumer name",
        )


def check_identity(consumer: str, position: Position, identity: str) -> None:
    if position.identity != identity:
        raise HistoryLost(
            f"{consumer} stands at {position.frontier} in another incarnation of {position.topic}/{position.partition}"
            f" ({position.identity}); the log now holds {identity}",
            hint="restore the log that belongs to this store, or consume the new topic under a new group name",
        )
