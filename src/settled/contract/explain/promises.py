"""What may repeat and what may be lost."""

from __future__ import annotations

from settled.contract.explain.fact import Fact, Facts, Ground, kept


def repeats(on: Ground) -> Facts:
    if on.hints:
        yield Fact(
            "repeats", "a handler may run again for what it has seen: it reads what is true now, so that this is right"
        )
        return
    match on.delivery.mode:
        case "effectively-once":
            scope = "consumer and topic" if on.delivery.dedupe.scope == "topic" else "consumer"
            yield Fact("repeats", "deliveries: after a crash a record comes again")
            yield Fact(
                "repeats",
                f"of what is written through tx nothing: one effect for each {scope} and event id, for as long as its "
                f"mark is kept ({kept(on.delivery.dedupe.horizon)})",
                "the inbox mark, in the effect's transaction",
            )
            yield Fact(
                "repeats",
                "a message that is published again without an id of its own is another event",
                "publish with id=, or name the producer" if on.capabilities.producer_resume else "publish with id=",
            )
        case "at-least-once":
            yield Fact("repeats", "an event that is published twice makes two effects: there is no inbox")
            yield Fact("repeats", "the effects of a transaction whose commit was made and not answered")
        case "at-most-once":
            yield Fact("repeats", "nothing that ran runs again", "the frontier is stored before the handler starts")
            yield Fact("repeats", "an event that is published twice makes two effects: there is no inbox")
    if on.delivery.mode != "at-most-once":
        calls = on.contract.external
        by = (
            ""
            if not (calls.repeat or calls.reconcile or calls.quarantine)
            else "settled.external, by the policy of each call"
        )
        yield Fact("repeats", "what a handler does outside of tx (a mail, a charge)", by)


def losses(on: Ground) -> Facts:
    if on.hints:
        yield from _hints(on)
        return
    yield _accepted(on)
    if on.delivery.mode == "at-most-once":
        yield Fact("losses", "the effects that were under way when a worker died, and those of records that failed")
    else:
        yield Fact(
            "losses",
            "no effect of an accepted record: it is settled, or in quarantine until a person decides",
            "effect and frontier commit together; the frontier passes only what has ended",
        )
    if on.brokers_queue and on.form == "pubsub":
        yield Fact(
            "losses",
            f"for {on.group}, what was published before it joined first: with no group at all publish fails, unless a "
            "reader without a group listens",
            "mandatory: a message that no queue takes is refused",
        )
    if on.log and (on.retention.age is not None or on.retention.bytes is not None):
        yield Fact(
            "losses",
            "records that retention took before a group settled them: a gap",
            "a note in the effect store, and an event",
        )
    if on.log and on.retention.compact and on.transport.version is not None:
        yield Fact(
            "losses",
            "a newer version, for readers that begin after compaction, where an older one was published after it: "
            "compaction goes by the order of the log",
        )
    if on.log and on.retention.compact and on.retention.pass_groups:
        yield Fact("losses", "older records of a key for a group that is behind", "retention.pass_groups")


def _accepted(on: Ground) -> Fact:
    match on.contract.producer.durability:
        case "memory":
            leads = on.engine == "kafka" or (on.engine == "rabbitmq" and on.log)
            told = "accepted records, by a power cut" + (" or a leader that dies" if leads else "")
            return Fact("losses", told, "durability memory: nothing waits for a disk or a replica")
        case "local":
            by = {
                "kafka": "durability local: two replicas at least have it, or the one broker synced it to disk",
                "rabbitmq": "durability local: the queue's quorum confirmed it",
            }.get(on.engine, "durability local: synced before publish returns")
            return Fact("losses", "no accepted record, by a crash or a power cut of one machine", by)
        case _:
            return Fact("losses", "no accepted record, while a quorum lives", "durability committed: a quorum holds it")


def _hints(on: Ground) -> Facts:
    most = f"{on.delivery.in_flight.records:,}"
    yield Fact(
        "losses", "hints, by contract: what passes while no reader listens, and what is pending when one is killed"
    )
    yield Fact(
        "losses", f"the oldest, beyond {most} keys that wait; they are counted, and the sweep runs soon", "in_flight"
    )
    yield Fact("losses", "hints whose handler failed: there is no second attempt, no inbox and no quarantine")
    yield Fact(
        "losses", "nothing for good that the sweep finds", "@app.sweep: at the start, by time, after known losses"
    )
