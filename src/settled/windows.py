"""The named instants at which a process may die, and what a death there means. Production pays one call of a nearly
empty function at each, per group and not per record; a drill installs a hook that kills, stops or waits there.

`reach` is what the product calls; `WINDOWS` is the register that `docs/windows.md` and the drills are made from.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Hook = Callable[[str], None]

_hook: Hook | None = None


def reach(window: str) -> None:
    """Called where a process may die. Does nothing unless a drill installed a hook."""
    if _hook is not None:
        _hook(window)


def install(hook: Hook | None) -> None:
    """Let `hook` be called at every window; None takes it away. For drills and tests only."""
    global _hook
    _hook = hook


class Fate(msgspec.Struct, frozen=True):
    """What a death means for records that are under way, in one delivery mode.

    lost        which records have no effect and will get none
    again       which handlers run a second time
    ambiguous   what nobody can know without looking it up, and where it is looked up
    """

    lost: str = "none"
    again: str = "none"
    ambiguous: str = "nothing"


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One instant.

    journey     publish, takeover, group, external, failure, redrive, revoke, stop, relay, queue or retention
    durable     what just became durable, or was durable already
    pending     what is not durable yet
    most        the fate under at-most-once; least: at-least-once; effectively: effectively-once
    delay       how long until work goes on
    repair      who repairs it, with what authority
    engine      the only engine on which a process comes by; "": several
    """

    name: str
    journey: str
    durable: str
    pending: str
    most: Fate
    least: Fate
    effectively: Fate
    delay: str
    repair: str
    engine: str = ""


_LEASE = "until the dead member's lease runs out; other partitions are not touched"
_PRODUCER = "until the producer is started again"
_SOON = "none: the partition is free at once, or when the lease runs out"
_OWNER = "the next owner, by the fence and the frontier in the effect store"
_SENDER = "the producer: it sends again what it holds no receipt for, under the same ids"
_ENGINE = "the engine: the lease of the dead member runs out by the engine's clock"
_CALLER = "the next owner's handler: `settled.external` finds what was recorded, under the same key"
_SHELF = "the next owner: it finds the request in the effect store"

_NOTHING = Fate()
_ABSENT = Fate("not reached", "not reached", "not reached")
_UNSENT = Fate(lost="messages without a receipt, unless they are sent again")
_REPEATED = Fate(
    lost=_UNSENT.lost,
    again="a message that is sent again is a second record: its handler runs again",
    ambiguous="whether the message is in the log; the producer cannot know",
)
_UNSURE = Fate(
    lost=_UNSENT.lost,
    ambiguous="whether the message is in the log; sent again, the inbox refuses the second one (same event id)",
)
_GROUP_LOST = Fate(lost="records of the group whose handler had not committed: the frontier is past them")
_GROUP_AGAIN = Fate(again="all of the group; what they wrote through `tx` was rolled back")
_ALONE = Fate(again="the group, each record alone; the first one is charged an attempt if it kills again")
_OUTSIDE = Fate(again="all of the group; what they wrote through `tx` was rolled back, what they did elsewhere was not")

_CALLED = Fate(
    again="the handler; the call as its policy says: again with the same key, looked up, or left to a person",
    ambiguous="whether the call was made; the receiver knows, by the key",
)
_RESUMED = Fate(again="the handler, which gets the recorded result; the call is not made again")


def _of(
    name: str,
    journey: str,
    fates: tuple[Fate, Fate, Fate],
    durable: str,
    pending: str,
    delay: str = _LEASE,
    repair: str = _OWNER,
    engine: str = "",
) -> Window:
    most, least, effectively = fates
    return Window(
        name=name,
        journey=journey,
        durable=durable,
        pending=pending,
        most=most,
        least=least,
        effectively=effectively,
        delay=delay,
        repair=repair,
        engine=engine,
    )


_RELAY = "until the dead relay's lease runs out, by the store's clock; other relays' keys are not touched"
_NEXT_RELAY = "another relay, which takes over the dead one's keys under a new epoch"
_RELAYED_TWICE = Fate(again="the handlers of the batch's messages: each message is a second record under its id")
_RELAYED_ONCE = Fate(ambiguous="nothing: the inbox refuses the second record of an id")

_AT_ONCE = "none: the broker hands out again what a closed connection had in hand"
_BROKER = "whoever is free: the broker hands the claims out again, and the inbox knows what is settled"
_HANDED_AGAIN = Fate(again="what is settled and not acknowledged: each claim is a record of its own under its id")

_HARMLESS = (_NOTHING, _NOTHING, _NOTHING)
_ON_RABBITMQ = (_ABSENT, _NOTHING, _NOTHING)
_UNACKNOWLEDGED = (_ABSENT, _HANDED_AGAIN, _NOTHING)
_RUN = (_GROUP_LOST, _GROUP_AGAIN, _GROUP_AGAIN)
_RAN = (_GROUP_LOST, _OUTSIDE, _OUTSIDE)

WINDOWS: tuple[Window, ...] = (
    _of(
        "batch-closed",
        "publish",
        (_UNSENT, _UNSENT, _UNSENT),
        "earlier batches",
        "the batch: nothing of it is in the log",
        _PRODUCER,
        _SENDER,
    ),
    _of(
        "append-written",
        "publish",
        (_UNSENT, _UNSENT, _UNSENT),
        "earlier batches",
        "the batch: written in a transaction that is not committed",
        _PRODUCER,
        _SENDER,
    ),
    _of(
        "append-committed",
        "publish",
        (_REPEATED, _REPEATED, _UNSURE),
        "the batch, at its offsets",
        "the receipts: the caller does not know",
        _PRODUCER,
        _SENDER,
    ),
    _of(
        "fence-unwritten",
        "takeover",
        _HARMLESS,
        "the partition is this member's in the engine, under a new epoch",
        "the epoch in the effect store: the owner before could still commit",
    ),
    _of(
        "fence-written",
        "takeover",
        _HARMLESS,
        "the epoch in the effect store: no earlier owner can commit any more",
        "nothing is read or run yet",
    ),
    _of(
        "unit-begun",
        "group",
        _RUN,
        "the groups before",
        "the group: no handler has run",
    ),
    _of(
        "handler",
        "group",
        _RAN,
        "the groups before",
        "the group: some of its handlers have run, one is running",
    ),
    _of(
        "effect-made",
        "group",
        _RAN,
        "the groups before",
        "the group: all of its handlers have run, no inbox mark is written",
    ),
    _of(
        "marks-written",
        "group",
        _RAN,
        "the groups before",
        "the group: effects, marks and frontier stand in one transaction that is not committed",
    ),
    _of(
        "effect-committed",
        "group",
        (_NOTHING, _NOTHING, _NOTHING),
        "effects, inbox marks and frontier of the group, in one commit",
        "the engine's copy of the frontier, which only people and retention read",
    ),
    _of(
        "frontier-before-effect",
        "group",
        (_GROUP_LOST, _ABSENT, _ABSENT),
        "the frontier past the group (at-most-once only)",
        "the group: no handler has run",
    ),
    _of(
        "frontier-uncommitted",
        "group",
        _HARMLESS,
        "effects, inbox marks and frontier in the effect store",
        "the engine's copy of the frontier",
    ),
    _of(
        "intent-recorded",
        "external",
        (_GROUP_LOST, _CALLED, _CALLED),
        "that the call outside is about to be made",
        "the call: it has not been made",
        _LEASE,
        _CALLER,
    ),
    _of(
        "call-made",
        "external",
        (_GROUP_LOST, _CALLED, _CALLED),
        "that the call outside was about to be made",
        "its result: the call has been made and nothing of it is recorded",
        _LEASE,
        _CALLER,
    ),
    _of(
        "result-recorded",
        "external",
        (_GROUP_LOST, _RESUMED, _RESUMED),
        "the call's result",
        "the effect: it is rolled back and made again, with the recorded result and without a call",
        _LEASE,
        _CALLER,
    ),
    _of(
        "suspects-recorded",
        "failure",
        (_ABSENT, _ALONE, _ALONE),
        "which records may have killed the worker before: each is about to run alone",
        "their runs",
    ),
    _of(
        "quarantine-decided",
        "failure",
        (_ABSENT, _GROUP_AGAIN, _GROUP_AGAIN),
        "earlier attempts of the record",
        "its quarantine: the record runs again and the decision is made again",
    ),
    _of(
        "decisions-written",
        "failure",
        (_ABSENT, _NOTHING, _NOTHING),
        "quarantine entries with their marks, failed redrives, and the frontier, in one commit",
        "what this process knows of it",
    ),
    _of(
        "redrive-begun",
        "redrive",
        (_ABSENT, _ABSENT, _GROUP_AGAIN),
        "the request for the redrive",
        "the redrive: nothing of it has run",
        _LEASE,
        _SHELF,
    ),
    _of(
        "redrive-written",
        "redrive",
        (_ABSENT, _ABSENT, _NOTHING),
        "the redriven effect, its mark and the entry's new state, in one commit",
        "what this process knows of it",
        _LEASE,
        _SHELF,
    ),
    _of(
        "partition-unreleased",
        "revoke",
        _HARMLESS,
        "all that was settled of the partition, and the engine's copy of its frontier",
        "the release: the engine still takes the dead member for the owner",
        _LEASE,
        _ENGINE,
    ),
    _of(
        "stopping",
        "stop",
        _RAN,
        "the groups before",
        "what runs; partitions are not given back",
    ),
    _of(
        "relay-read",
        "relay",
        _HARMLESS,
        "the outbox's rows",
        "their publication: the engine has none of the batch",
        _RELAY,
        _NEXT_RELAY,
    ),
    _of(
        "relay-sent",
        "relay",
        (_RELAYED_TWICE, _RELAYED_TWICE, _RELAYED_ONCE),
        "the batch, in the log; the outbox's rows still stand",
        "their removal: another relay publishes them again, under the same ids",
        _RELAY,
        _NEXT_RELAY,
    ),
    _of(
        "relay-marked",
        "relay",
        _HARMLESS,
        "the batch, in the log; its rows are removed from the outbox",
        "what this process knows of it",
        _RELAY,
        _NEXT_RELAY,
    ),
    _of(
        "claim-written",
        "queue",
        _HARMLESS,
        "the records, free to be claimed by any member",
        "the claim: it is undone whole",
        _SOON,
        "any member: it claims them",
    ),
    _of(
        "claim-committed",
        "queue",
        _HARMLESS,
        "the claim: the records stand in a slot, under its epoch",
        "that a worker has them: none has started",
        _LEASE,
        _OWNER,
    ),
    _of(
        "claims-removed",
        "queue",
        _HARMLESS,
        "the effects, and the frontier of the slot in the effect store",
        "that the queue forgets what is settled: the removal is undone whole",
        _SOON,
        "the slot's next owner, which removes all below the frontier",
    ),
    _of(
        "slot-locked",
        "takeover",
        _ON_RABBITMQ,
        "nothing: the broker holds the slot's lock for as long as the connection lives",
        "the epoch: the worker does not know of its slot, and nothing was handed out to it",
        _AT_ONCE,
        _BROKER,
        "rabbitmq",
    ),
    _of(
        "claims-taken",
        "queue",
        _ON_RABBITMQ,
        "the messages, in the queue, handed out to this worker",
        "all of them: none has started",
        _AT_ONCE,
        _BROKER,
        "rabbitmq",
    ),
    _of(
        "claims-recognised",
        "queue",
        _ON_RABBITMQ,
        "attempts of messages that were handed out before, under their new numbers",
        "their runs: they come again, under newer numbers",
        _AT_ONCE,
        _BROKER,
        "rabbitmq",
    ),
    _of(
        "claims-unacknowledged",
        "queue",
        _UNACKNOWLEDGED,
        "the effects, their marks and the frontier of the slot in the effect store",
        "that the broker knows: it hands out again what is settled",
        _AT_ONCE,
        _BROKER,
        "rabbitmq",
    ),
    _of(
        "claims-acknowledged",
        "queue",
        _ON_RABBITMQ,
        "the effects; their acknowledgement has been sent",
        "that the broker took it: it may hand out again what is settled",
        _AT_ONCE,
        _BROKER,
        "rabbitmq",
    ),
    _of(
        "retention-uncommitted",
        "retention",
        _HARMLESS,
        "all records",
        "the removal of old batches: it is undone whole",
        _SOON,
        "any process: retention is applied again",
    ),
    _of(
        "compaction-uncommitted",
        "retention",
        _HARMLESS,
        "all records that are left",
        "a batch without the older records of its keys: what it replaces is still there",
        _SOON,
        "any process: the partition is compacted again once the dead one's claim is over",
    ),
    _of(
        "compaction-unrecorded",
        "retention",
        _HARMLESS,
        "a batch without the older records of its keys, in the place of those that held them",
        "the rest of the pass: other batches still hold older records of their keys",
        _SOON,
        "any process: the partition is compacted again once the dead one's claim is over",
    ),
)
NAMES = frozenset(window.name for window in WINDOWS)
