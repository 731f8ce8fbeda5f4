"""The checker, fed with broken histories: each anomaly must be named, and a good history must pass."""

from collections.abc import Callable

import pytest

from settled.drills.checker import check
from settled.drills.history import Event

History = list[Event]


def good(count: int = 4) -> History:
    """Records of two keys, published, delivered, applied, drained."""
    events = [Event(what="begin", partition=0, offset=0, t=0.1)]
    for number in range(count):
        common = {"id": f"e{number}", "key": f"k{number % 2}", "digest": 7 + number}
        place = {"partition": 0, "offset": number}
        t = 1.0 + number
        events += [
            Event(what="publish", step="invoke", t=t, **common),
            Event(what="publish", step="ok", t=t + 0.1, **common, **place),
            Event(what="deliver", t=t + 0.2, epoch=1, **common, **place),
            Event(what="effect", t=t + 0.3, n=number, epoch=1, pid=10, **common, **place),
            Event(what="log", t=90.0, **common, **place),
            Event(what="ended", t=91.0, id=f"e{number}", outcome="applied"),
            Event(what="frontier", t=t + 0.5, partition=0, offset=number + 1, epoch=1),
        ]
    events.append(Event(what="drained", step="ok", t=95.0))
    return events


def without(what: str, id: str) -> Callable[[History], History]:
    return lambda history: [event for event in history if not (event.what == what and event.id == id)]


def changed(what: str, id: str, **fields: object) -> Callable[[History], History]:
    def change(history: History) -> History:
        for event in history:
            if event.what == what and event.id == id:
                for name, value in fields.items():
                    setattr(event, name, value)
        return history

    return change


def adding(*events: Event) -> Callable[[History], History]:
    return lambda history: [*history, *events]


BROKEN: dict[str, tuple[Callable[[History], History], str, str]] = {
    "lost: acknowledged, in the log, no effect": (without("effect", "e2"), "I1", "lost"),
    "hollow: the inbox calls it applied": (without("effect", "e2"), "I1", "hollow"),
    "unlogged: acknowledged and not in the log": (without("log", "e1"), "I1", "unlogged"),
    "doubled: two rows in the side table": (
        adding(Event(what="effect", id="e1", key="k1", partition=0, offset=1, n=9, epoch=1, digest=8)),
        "I2",
        "doubled",
    ),
    "unmarked: an effect that the inbox does not know": (without("ended", "e1"), "I2", "unmarked"),
    "order: a later record of the key first": (changed("effect", "e2", n=-5), "I3", "order"),
    "send order: the log turned two messages round": (
        lambda history: changed("log", "e0", offset=2)(changed("log", "e2", offset=0)(history)),
        "I3",
        "send-order",
    ),
    "frontier ahead: something below it has not ended": (
        adding(Event(what="frontier", partition=0, offset=9, t=50.0, missing=[3])),
        "I4",
        "frontier-ahead",
    ),
    "frontier back": (adding(Event(what="frontier", partition=0, offset=1, t=50.0)), "I4", "frontier-back"),
    "commit leads: the engine was told more than the store held": (
        adding(
            Event(what="committed", partition=0, offset=9, t=60.0),
            Event(what="frontier", partition=0, offset=5, t=61.0),
        ),
        "I4",
        "commit-leads",
    ),
    "offset reuse: another record at the same offset": (
        adding(Event(what="deliver", id="e0", key="k0", partition=0, offset=1, digest=7, t=40.0)),
        "I5",
        "offset-reuse",
    ),
    "stale fence: committed under an epoch after a higher one": (changed("effect", "e0", epoch=2), "I6", "stale-epoch"),
    "phantom: delivered and never sent": (
        adding(Event(what="deliver", id="e77", key="k1", partition=0, offset=77, digest=1, t=40.0)),
        "I7",
        "phantom",
    ),
    "failed publish that became visible": (
        lambda history: adding(
            Event(what="publish", step="invoke", id="f", key="k9", digest=5, t=30.0),
            Event(what="publish", step="fail", id="f", key="k9", t=30.1),
            Event(what="log", id="f", key="k9", partition=0, offset=50, digest=5, t=90.0),
            Event(what="effect", id="f", key="k9", partition=0, offset=50, digest=5, n=50, epoch=1),
            Event(what="ended", id="f", outcome="applied"),
        )(history),
        "I7",
        "failed-visible",
    ),
    "altered: not what was sent": (
        lambda history: changed("log", "e1", digest=1)(changed("deliver", "e1", digest=1)(history)),
        "I11",
        "altered",
    ),
    "quarantine dropped: a mark without an entry": (
        lambda history: changed("ended", "e1", outcome="quarantined")(without("effect", "e1")(history)),
        "I10",
        "entry-lost",
    ),
    "quarantined without a mark": (
        lambda history: adding(Event(what="entry", id="e1", outcome="held"))(without("effect", "e1")(history)),
        "I10",
        "mark-lost",
    ),
    "quarantined and applied": (
        lambda history: adding(Event(what="entry", id="e1", outcome="held"))(
            changed("ended", "e1", outcome="quarantined")(history)
        ),
        "I10",
        "quarantined-and-applied",
    ),
    "stuck: not settled in time": (adding(Event(what="drained", step="fail", t=99.0)), "I12", "stuck"),
    "slow to resume": (adding(Event(what="resume", pid=10, seconds=9.0)), "I13", "slow-resume"),
    "unbounded": (adding(Event(what="bound", note="WAL bytes", n=99, offset=10)), "I14", "unbounded"),
}


def test_a_good_history_passes() -> None:
    assert check(good(), resume_s=5.0) == []


@pytest.mark.parametrize("anomaly", BROKEN)
def test_each_anomaly_is_named(anomaly: str) -> None:
    breaks, invariant, kind = BROKEN[anomaly]
    found = {(violation.invariant, violation.kind) for violation in check(breaks(good()), resume_s=5.0)}
    assert (invariant, kind) in found


def unknown(*, stored: bool) -> list[Event]:
    events = [
        Event(what="publish", step="invoke", id="u", key="k0", digest=5, t=30.0),
        Event(what="publish", step="info", id="u", key="k0", t=30.1),
    ]
    if stored:
        events += [
            Event(what="log", id="u", key="k0", partition=0, offset=50, digest=5, t=90.0),
            Event(what="effect", id="u", key="k0", partition=0, offset=50, digest=5, n=50, epoch=1),
            Event(what="ended", id="u", outcome="applied"),
        ]
    return events


@pytest.mark.parametrize("stored", [True, False])
def test_a_publish_of_unknown_outcome_may_have_happened_or_not(stored: bool) -> None:
    assert check([*good(), *unknown(stored=stored)]) == []


def test_a_publish_of_unknown_outcome_that_is_in_the_log_must_not_be_lost() -> None:
    history = without("effect", "u")([*good(), *unknown(stored=True)])
    assert "lost" in {violation.kind for violation in check(history)}


def test_a_message_sent_again_stands_twice_in_the_log_and_takes_effect_once() -> None:
    again = Event(what="log", id="e1", key="k1", partition=0, offset=20, digest=8, t=90.0)
    assert check([*good(), again]) == []


def test_a_frontier_may_go_back_in_a_replay() -> None:
    replay = Event(what="replay", partition=0, t=49.0)
    back = Event(what="frontier", partition=0, offset=1, t=50.0)
    assert check([*good(), replay, back]) == []


def test_an_ending_other_than_applied_is_no_loss() -> None:
    for outcome in ("stale", "discarded"):
        assert check(changed("ended", "e3", outcome=outcome)(without("effect", "e3")(good()))) == []


@pytest.mark.parametrize(
    ("mode", "excused"), [("at-least-once", "doubled"), ("at-most-once", "lost"), ("at-most-once", "doubled")]
)
def test_a_mode_is_not_held_to_what_it_does_not_promise(mode: str, excused: str) -> None:
    breaks = next(breaks for breaks, _, kind in BROKEN.values() if kind == excused)
    history = [event for event in breaks(good()) if event.what != "ended"]
    assert check(history, mode=mode) == []


def test_what_a_drill_that_ended_too_early_left_above_the_frontier_is_late_and_not_lost() -> None:
    history = without("ended", "e3")(without("effect", "e3")(good()))
    history = [event for event in history if not (event.what == "frontier" and event.offset > 3)]
    kinds = {violation.kind for violation in check([*history, Event(what="drained", step="fail", t=99.0)])}
    assert kinds == {"stuck"}
    assert "lost" in {violation.kind for violation in check(history)}
