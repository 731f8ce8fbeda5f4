"""What order holds for whom, and through which failures."""

from __future__ import annotations

from settled.contract.explain.fact import Fact, Facts, Ground


def order(on: Ground) -> Facts:
    if on.hints:
        if on.transport.version is None:
            yield Fact("order", "none: without transport.version an older hint cannot be told from a newer one")
        else:
            yield Fact(
                "order",
                "versions of a key rise: after a newer one its handler is given no older one, as far back as "
                f"{on.delivery.in_flight.records:,} keys are remembered by this process",
                "the newest hint of each key",
            )
        return
    if on.ordered:
        yield from _by_key(on)
        yield from _through_failures(on)
    else:
        why = "delivery.ordering is none" if on.transport.key is not None else "records have no key"
        yield Fact("order", f"none ({why}): records of one key may run at the same time and in any order")
    if on.transport.version is not None:
        yield Fact(
            "order",
            f"a {on.transport.version} not above the last one applied of its key ends as stale, whenever it comes",
            "the version in the effect store, compared inside the transaction",
        )
    elif not on.ordered:
        yield Fact(
            "order", "nothing stops an old record from overwriting what a newer one wrote: state transport.version"
        )


def _by_key(on: Ground) -> Facts:
    lanes = "lanes: the records of a key run one at a time"
    if on.brokers_queue:
        yield Fact(
            "order",
            "records of one key in the order of their publication, in one slot: one member works at a time",
            f"transport.partitions: 1 (a single active consumer; more are refused); {lanes}",
        )
    elif on.queue:
        yield Fact(
            "order",
            "records of one key in the order of their acceptance, one at a time: all that are claimed are in one slot",
            f"claims, which go by key; {lanes}",
        )
        if on.capabilities.scheduling:
            yield Fact(
                "order",
                "a record that is not due yet does not hold its key, and priorities do not count: ordering none obeys "
                "them; each tenant's records of a key have an order of their own",
                "settled-not-before, settled-priority, settled-tenant",
            )
    else:
        yield Fact(
            "order",
            "records of one key in the order of the log, one at a time",
            f"the one partition of a key; {lanes}",
        )
    yield Fact("order", "between keys none" + ("" if on.brokers_queue else f", nor between {on.part}s"))


def _through_failures(on: Ground) -> Facts:
    if on.delivery.mode == "at-most-once":
        yield Fact("order", "a failed record is not run again: its key goes on")
    else:
        yield Fact("order", "retry: a failing record holds its own key, other keys go on", "its lane, which is held")
        yield from _quarantine(on)
    if on.brokers_queue:
        moved = "the connection's claims go back to the queue, in their order, and come again"
    else:
        moved = f"the next owner of the {on.part} begins at its frontier"
    yield Fact("order", f"crash: {moved}; the dead owner commits nothing more", "the fence epoch")
    if not on.brokers_queue:
        yield Fact(
            "order",
            f"rebalance: a {on.part} goes over once what runs of it has ended and its frontier is stored",
            "its release by the owner; after the lease the fence epoch",
        )
        yield Fact("order", f"a change of the number of {on.part}s: not kept across it, for keys may move")


def _quarantine(on: Ground) -> Facts:
    if on.poison.then == "park":
        yield Fact(
            "order",
            "quarantine: later records of its key go there too, behind it, and run in their order when it is redriven",
            "poison.then: park",
        )
        return
    late = "" if on.transport.version is None else ", where it is stale if a newer version was applied"
    yield Fact(
        "order",
        f"quarantine: later records of its key run on; a redrive runs it after them{late}",
        "poison.then: continue",
    )
