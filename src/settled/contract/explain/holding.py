"""Who owns a record, who may read it, how long it lives, what a reader that is away finds, what can be built on it."""

from __future__ import annotations

from settled.contract.explain.fact import Fact, Facts, Ground, kept
from settled.contract.units import show_size


def owner(on: Ground) -> Facts:
    if on.hints:
        yield Fact("owner", "nobody: a hint has no authority, the store that the handler reads has")
        return
    fence = "the epoch in the effect store, checked inside the effect's transaction"
    if on.engine == "rabbitmq":
        held = "locks a partition" if on.log else "holds a claim"
        lease = f"the broker, which {held} while its member's connection lives"
    else:
        lease = f"the lease: a member silent for {on.lease} loses its {on.part}s, by the engine's clock"
    if on.queue:
        yield Fact(
            "owner",
            f"one member of group {on.group} at a time: it claims the record from the pool into its slot, as a number "
            "that rises there",
            f"{lease}; {fence}",
        )
        yield Fact("owner", "a settled record leaves the queue", "the frontier of its slot, stored with the effect")
        return
    if on.brokers_queue:
        yield Fact(
            "owner", f"group {on.group} has a copy of each record in a queue of its own", "an exchange bound to it"
        )
    else:
        yield Fact("owner", "nobody: a record stays in the log, whoever has settled it", "each group's own frontier")
    yield Fact("owner", f"of a {on.part}, one member of group {on.group} at a time", f"{lease}; {fence}")


def readers(on: Ground) -> Facts:
    if on.queue and on.engine == "rabbitmq":
        yield Fact("readers", f"group {on.group}; keep it to one, the broker does not know of groups")
    elif on.queue:
        yield Fact(
            "readers", f"group {on.group} alone, while members of it are at work", "the engine refuses another group"
        )
    elif on.hints:
        yield Fact("readers", "every process that runs this app, each all of it: more of them divide no work")
    else:
        word = "subscriptions (groups)" if on.form == "pubsub" else "groups"
        yield Fact(
            "readers",
            f"any number of {word}, each with its own progress and failure policy: none that is slow, failing, parked "
            "or paused blocks or advances another",
            "frontier, marks, attempts and quarantine of each one's own",
        )
        if on.capabilities.tails:
            yield Fact("readers", "and readers without a group (App.tail), each what comes while it listens")


def life(on: Ground) -> Facts:
    retention = on.retention
    if on.hints:
        yield Fact("life", "until the next newer hint of its key, or until its handler ran, whichever is first")
        if on.engine == "rabbitmq":
            yield Fact("life", "the broker keeps it nowhere: it goes to the readers that listen when it comes")
        else:
            yield Fact("life", f"the log keeps it {kept(retention.age)}, and nobody reads it from there")
        return
    if on.queue or on.brokers_queue:
        yield Fact("life", "until it is settled: retention takes nothing that is not")
    else:
        yield from _retention(on)
    if on.delivery.mode != "at-most-once":
        yield Fact(
            "life",
            f"a record in quarantine until a person decides ({on.poison.owner or 'nobody is named: poison.owner'})",
            "the effect store, which holds it with its evidence",
        )
    if on.delivery.mode == "effectively-once":
        yield Fact("life", f"its inbox mark at least {kept(on.delivery.dedupe.horizon)}", "delivery.dedupe.horizon")


def _retention(on: Ground) -> Facts:
    retention = on.retention
    bound = "" if retention.bytes is None else f", at most {show_size(retention.bytes)} of the topic"
    if not on.capabilities.maintains:
        files = ", and remove whole files of a partition when a new one begins" if on.engine == "rabbitmq" else ""
        by = f"the brokers, which wait for no group{files}"
    else:
        by = "retention, which does not pass the frontier of a group that is at work, or was within that time"
    yield Fact("life", f"{kept(retention.age)} from its acceptance{bound}", by)
    if retention.compact:
        wait = "whoever is behind" if retention.pass_groups else "once all active groups are past them"
        yield Fact("life", f"the newest record of each key stays; older ones may go, {wait}", "compaction")
        yield Fact(
            "life",
            f"a record without a value, the newest of its key, stays {kept(retention.tombstones)}; then the key is "
            "forgotten",
            "compaction",
        )


def offline(on: Ground) -> Facts:
    if on.hints:
        yield Fact("offline", "misses what passes; the sweep at its start finds what that told of", "@app.sweep")
        return
    if on.queue:
        yield Fact("offline", "the queue keeps what nobody works on")
        return
    if on.brokers_queue:
        yield Fact("offline", f"group {on.group} finds all that came since it subscribed first", "its durable queue")
        yield from _away(on)
        return
    then = "goes on with what is left" if on.retention.on_gap == "continue" else "stops there"
    waits = "retention waits for it that long" if on.capabilities.maintains else "retention does not wait for it"
    yield Fact(
        "offline", f"goes on where it was, for {kept(on.retention.age)}: {waits}", "its frontier in the effect store"
    )
    if on.retention.age is not None or on.retention.bytes is not None:
        yield Fact(
            "offline",
            f"away longer than that, it finds a gap, and {then}; never silently",
            "a note in the effect store (settled status), and an event",
        )
    yield from _away(on)


def _away(on: Ground) -> Facts:
    if not on.capabilities.tails:
        return
    if on.capabilities.counts_passed:
        yield Fact("offline", "a reader without a group misses what passes and is told how much", "App.tail: `missed`")
        return
    yield Fact(
        "offline",
        "a reader without a group misses what passes and is told how much at least: not counted is what a producer "
        "sent last that is not heard again",
        "App.tail: `missed`, and `interruptions` where there may be more; producers number their messages",
    )


def layers(on: Ground) -> Facts:
    if on.hints:
        yield Fact("layers", "a log instead, where each change must be seen: the same publish, with a value")
        return
    if on.log:
        yield Fact(
            "layers",
            f"work division: the members of {on.group} compete for it as on a queue, a partition at a time: at most "
            f"{on.transport.partitions} of them work",
            "the group's assignment",
        )
    if not on.queue:
        yield Fact(
            "layers",
            "a queue: a handler that publishes each record to one, e.g. @app.handler def enqueue(tx, record): "
            "tx.publish(record.value, topic='jobs', key=record.key)",
            "the outbox: published if and only if it settles, under an id made of the record's, so that the queue's "
            "inbox refuses a second copy",
        )
    else:
        yield Fact(
            "layers", "more readers: publish to a log, and fill this queue from a subscription to it (tx.publish)"
        )
