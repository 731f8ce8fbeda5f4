"""The checker: which of the promises a history breaks. Pure; it knows nothing of how the history was made.

Each promise has a name (I1 to I14 of the project's invariants, as far as they show from outside) and each way of
breaking it a kind. A publish whose outcome is not known may have happened or not: neither is held against anyone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from settled.drills.history import Event

APPLIED, NO_EFFECT = "applied", frozenset({"quarantined", "stale", "discarded"})
LOG, SENT, NONE = "log", "sent", "none"  # whose order is judged
EXCUSED = {  # what a mode does not promise
    "effectively-once": frozenset[str](),
    "at-least-once": frozenset({"doubled"}),
    "at-most-once": frozenset({"lost", "doubled"}),
}


class Violation(msgspec.Struct, frozen=True):
    """One broken promise: `invariant` is its number, `kind` how it was broken, `what` the evidence in words."""

    invariant: str
    kind: str
    what: str
    id: str = ""


class Facts:
    """The history, sorted by what it is about."""

    def __init__(self, history: Iterable[Event]) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        for event in history:
            self.events[event.what].append(event)
        self.effects = sorted(self.events["effect"], key=lambda event: event.n)
        self.effects_of: dict[str, list[Event]] = defaultdict(list)
        for event in self.effects:
            self.effects_of[event.id].append(event)
        self.outcomes = {event.id: event.outcome for event in self.events["ended"]}
        self.invoked: dict[str, Event] = {}  # by first sending, in that order
        for event in self.events["publish"]:
            if event.step == "invoke":
                self.invoked.setdefault(event.id, event)
        self.accepted = [event for event in self.events["publish"] if event.step == "ok"]
        self.logged: dict[str, list[Event]] = defaultdict(list)
        self._newest: dict[tuple[int, str | None], int] = {}
        for event in self.events["log"]:
            self.logged[event.id].append(event)
            place = (event.partition, event.key)
            self._newest[place] = max(event.offset, self._newest.get(place, -1))
        self._compacted = {event.partition for event in self.events["compacted"]}

    def replaced(self, event: Event) -> bool:
        """Whether compaction may have removed it: a later record of its key is there."""
        sent = self.invoked.get(event.id)
        if sent is None or sent.key is None or event.partition not in self._compacted:
            return False
        return event.offset < self._newest.get((event.partition, sent.key), -1)

    def late(self) -> set[str]:
        """Records that a drill which ended too early left above the frontier."""
        if all(event.step == "ok" for event in self.events["drained"]):
            return set()
        frontiers = {event.partition: event.offset for event in self.events["frontier"]}
        return {
            id
            for id, places in self.logged.items()
            if id not in self.outcomes and any(one.offset >= frontiers.get(one.partition, 0) for one in places)
        }


def check(
    history: Sequence[Event], *, mode: str = "effectively-once", resume_s: float = 0.0, order: str = LOG
) -> list[Violation]:
    """All violations, without those that the mode does not promise to prevent. `resume_s`: how long it may take to
    go on after a death; 0: not judged. `order`: the order that is promised to the records of a key, that of the log,
    that in which they were sent, or none."""
    facts = Facts(history)
    found = [violation for rule in (*RULES, *ORDERED[order]) for violation in rule(facts)]
    if mode == "effectively-once":
        found += [*_unmarked(facts), *_hollow(facts)]
    found += _slow(facts, resume_s)
    return [violation for violation in found if violation.kind not in EXCUSED[mode]]


def _lost(facts: Facts) -> Iterator[Violation]:
    """I1: what is in the log, or was acknowledged, has an effect or another ending. Where not all was settled in time,
    what stands at or above the frontier is late and not lost."""
    late = facts.late()
    for id in facts.logged.keys() | {event.id for event in facts.accepted}:
        if id not in facts.effects_of and facts.outcomes.get(id) not in NO_EFFECT and id not in late:
            said = facts.outcomes.get(id) or "nothing"
            yield Violation("I1", "lost", f"{id} has no effect; the inbox says {said}", id)


def _unlogged(facts: Facts) -> Iterator[Violation]:
    """I1, I5: what was acknowledged at an offset is there."""
    places = {(event.partition, event.offset): event.id for event in facts.events["log"]}
    begins = {event.partition: event.offset for event in facts.events["begin"]}
    for event in facts.accepted:
        if event.offset < 0 or event.offset < begins.get(event.partition, 0):
            continue  # a retry that was stored before, or removed by retention since
        holder = places.get((event.partition, event.offset))
        if holder is None and facts.replaced(event):
            continue
        if holder is None:
            yield Violation(
                "I1", "unlogged", f"{event.id} was acknowledged at {_place(event)} and is not there", event.id
            )


def _doubled(facts: Facts) -> Iterator[Violation]:
    """I2: one effect for each event id."""
    for id, effects in facts.effects_of.items():
        if len(effects) > 1:
            pids = ", ".join(str(event.pid) for event in effects)
            yield Violation("I2", "doubled", f"{id} took effect {len(effects)} times (processes {pids})", id)


def _order(facts: Facts) -> Iterator[Violation]:
    """I3: the records of one key take effect in the order of the log."""
    last: dict[tuple[int, str], Event] = {}
    seen: set[str] = set()
    for event in facts.effects:
        if event.key is None or event.id in seen:
            continue
        seen.add(event.id)
        before = last.get((event.partition, event.key))
        if before is not None and event.offset < before.offset:
            what = f"key {event.key}: {event.id} at {_place(event)} took effect after {before.id} at {_place(before)}"
            yield Violation("I3", "order", what, event.id)
        last[event.partition, event.key] = event


def _send_order(facts: Facts) -> Iterator[Violation]:
    """I3: the messages of one key stand in the log in the order in which they were first sent."""
    last: dict[str, tuple[int, str]] = {}
    for id, sent in facts.invoked.items():
        places = facts.logged.get(id)
        if not places or sent.key is None:
            continue
        first = min(event.offset for event in places)
        before = last.get(sent.key)
        if before is not None and first < before[0]:
            yield Violation("I3", "send-order", f"key {sent.key}: {id} stands before {before[1]}, sent earlier", id)
        last[sent.key] = (first, id)


def _as_sent(facts: Facts) -> Iterator[Violation]:
    """I3: the records of one key take effect in the order in which they were first sent."""
    turn = {id: number for number, id in enumerate(facts.invoked)}
    last: dict[str, str] = {}
    seen: set[str] = set()
    for event in facts.effects:
        if event.key is None or event.id in seen or event.id not in turn:
            continue
        seen.add(event.id)
        before = last.get(event.key)
        if before is not None and turn[event.id] < turn[before]:
            yield Violation(
                "I3", "order", f"key {event.key}: {event.id} took effect after {before}, sent later", event.id
            )
        last[event.key] = event.id


def _frontier(facts: Facts) -> Iterator[Violation]:
    """I4: all below the frontier has ended; it never goes back except in a replay; the engine's copy never leads."""
    replayed = sorted(facts.events["replay"], key=lambda event: event.t)
    highest: dict[int, Event] = {}
    for event in sorted(facts.events["frontier"], key=lambda event: event.t):
        if event.missing:
            some = ", ".join(map(str, event.missing[:5]))
            yield Violation("I4", "frontier-ahead", f"frontier {event.offset} of {event.partition} is above {some}")
        before = highest.get(event.partition)
        if before is not None and event.offset < before.offset:
            if any(one.partition == event.partition and before.t <= one.t <= event.t for one in replayed):
                highest.pop(event.partition)
            else:
                what = f"partition {event.partition}: from {before.offset} to {event.offset}"
                yield Violation("I4", "frontier-back", what)
        if before is None or event.offset >= before.offset:
            highest[event.partition] = event
    yield from _leading(facts)


def _leading(facts: Facts) -> Iterator[Violation]:
    """The engine's copy is read before the store's frontier, so it may not be above what is read after it."""
    frontiers = sorted(facts.events["frontier"], key=lambda event: event.t)
    for told in facts.events["committed"]:
        after = next((one for one in frontiers if one.partition == told.partition and one.t >= told.t), None)
        if after is not None and told.offset > after.offset:
            what = f"partition {told.partition}: the engine was told {told.offset}, the store holds {after.offset}"
            yield Violation("I4", "commit-leads", what)


def _offsets(facts: Facts) -> Iterator[Violation]:
    """I5: one offset is one record for ever."""
    holders: dict[tuple[int, int], Event] = {}
    told: set[tuple[int, int]] = set()
    for what in ("publish", "deliver", "effect", "log"):
        for event in facts.events[what]:
            if event.offset < 0 or (what == "publish" and event.step != "ok"):
                continue
            place = (event.partition, event.offset)
            holder = holders.setdefault(place, event)
            if (holder.id, holder.digest) != (event.id, event.digest) and place not in told:
                told.add(place)
                yield Violation("I5", "offset-reuse", f"{_place(event)} was {holder.id}, then {event.id}", event.id)


def _fence(facts: Facts) -> Iterator[Violation]:
    """I6: no effect under an epoch after one under a higher epoch of the partition."""
    highest: dict[int, Event] = {}
    for event in facts.effects:
        if event.epoch < 0:
            continue
        before = highest.get(event.partition)
        if before is not None and event.epoch < before.epoch:
            what = f"{event.id}: committed under epoch {event.epoch} after {before.id} under {before.epoch}"
            yield Violation("I6", "stale-epoch", what, event.id)
        if before is None or event.epoch > before.epoch:
            highest[event.partition] = event


def _phantoms(facts: Facts) -> Iterator[Violation]:
    """I7: nothing is seen that nobody sent, nor what was reported as not stored."""
    failed = {event.id for event in facts.events["publish"] if event.step == "fail"}
    failed -= {event.id for event in facts.accepted}
    unsure = {event.id for event in facts.events["publish"] if event.step == "info"}
    seen = facts.logged.keys() | facts.effects_of.keys() | {event.id for event in facts.events["deliver"]}
    for id in seen:
        if id not in facts.invoked:
            yield Violation("I7", "phantom", f"{id} was never sent", id)
        elif id in failed and id not in unsure:
            yield Violation("I7", "failed-visible", f"{id} was reported as not stored and is there", id)


def _altered(facts: Facts) -> Iterator[Violation]:
    """I11: what is served is what was sent."""
    told: set[str] = set()
    for what in ("deliver", "log"):
        for event in facts.events[what]:
            sent = facts.invoked.get(event.id)
            if sent is not None and sent.digest != event.digest and event.id not in told:
                told.add(event.id)
                yield Violation("I11", "altered", f"{event.id} at {_place(event)} is not as it was sent", event.id)


def _quarantine(facts: Facts) -> Iterator[Violation]:
    """I10: a quarantined record has its entry, an entry its mark, and neither an effect."""
    held = {event.id for event in facts.events["entry"] if event.outcome in ("held", "requested")}
    for id, outcome in facts.outcomes.items():
        if outcome == "quarantined" and id not in held:
            yield Violation("I10", "entry-lost", f"{id} is marked as quarantined and has no entry", id)
    for id in held:
        if facts.outcomes.get(id) != "quarantined":
            said = facts.outcomes.get(id) or "nothing"
            yield Violation("I10", "mark-lost", f"{id} has a quarantine entry, the inbox says {said}", id)
        if id in facts.effects_of:
            yield Violation("I10", "quarantined-and-applied", f"{id} is in quarantine and took effect", id)
    for id, count in Counter(event.id for event in facts.events["entry"]).items():
        if count > 1:
            yield Violation("I10", "entry-doubled", f"{id} has {count} quarantine entries", id)


def _calls(facts: Facts) -> Iterator[Violation]:
    """I2: calls outside for one record have one key, and all of its runs go by one answer, which the receiver gave."""
    keys: dict[str, set[str]] = defaultdict(set)
    answers: dict[str, set[str]] = defaultdict(set)
    told: dict[str, set[str]] = defaultdict(set)
    for event in facts.events["call"]:
        keys[event.id].add(event.note)
        answers[event.id].add(event.outcome)
    for event in facts.events["outcome"]:
        told[event.id].add(event.outcome)
    for id, found in keys.items():
        if len(found) > 1:
            yield Violation("I2", "rekeyed", f"{id} was called for under {len(found)} keys", id)
    for id, found in told.items():
        if len(found) > 1:
            yield Violation("I2", "outcome-changed", f"runs of {id} went by {len(found)} answers", id)
        if not found <= answers[id]:
            yield Violation("I2", "uncalled", f"a run of {id} went by an answer that the receiver never gave", id)


def _stuck(facts: Facts) -> Iterator[Violation]:
    """I12: after the last fault all ends in time."""
    for event in facts.events["drained"]:
        if event.step == "fail":
            yield Violation("I12", "stuck", event.note or "not everything was settled in time")


def _slow(facts: Facts, resume_s: float) -> Iterator[Violation]:
    """I13: work goes on soon after a death."""
    for event in facts.events["resume"]:
        if resume_s and event.seconds > resume_s:
            what = f"after the death of {event.pid}: {event.seconds:.2f} s, allowed are {resume_s:.2f} s"
            yield Violation("I13", "slow-resume", what)


def _bounds(facts: Facts) -> Iterator[Violation]:
    """I14: what is bounded stays so."""
    for event in facts.events["bound"]:
        if event.n > event.offset:
            yield Violation("I14", "unbounded", f"{event.note} is {event.n}, the limit {event.offset}")


def _unmarked(facts: Facts) -> Iterator[Violation]:
    """I2: an effect has its inbox mark: without it a redelivery would double it."""
    for id in facts.effects_of:
        if id not in facts.outcomes:
            yield Violation("I2", "unmarked", f"{id} took effect and the inbox does not know it", id)


def _hollow(facts: Facts) -> Iterator[Violation]:
    """I1: what the inbox calls applied has an effect."""
    for id, outcome in facts.outcomes.items():
        if outcome == APPLIED and id not in facts.effects_of:
            yield Violation("I1", "hollow", f"the inbox says that {id} was applied, and it has no effect", id)


def _place(event: Event) -> str:
    return f"{event.partition}@{event.offset}"


RULES: tuple[Callable[[Facts], Iterator[Violation]], ...] = (
    _lost,
    _unlogged,
    _doubled,
    _frontier,
    _offsets,
    _fence,
    _phantoms,
    _altered,
    _quarantine,
    _calls,
    _stuck,
    _bounds,
)
ORDERED: dict[str, tuple[Callable[[Facts], Iterator[Violation]], ...]] = {
    LOG: (_order, _send_order),
    SENT: (_as_sent,),
    NONE: (),
}
