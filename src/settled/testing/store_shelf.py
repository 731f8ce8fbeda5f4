"""Quarantine: evidence byte for byte, parked keys, redrives that happen once, and what is never pruned."""

from __future__ import annotations

import threading

import pytest

from settled.errors import ContractError, Refused
from settled.outcome import Ending, Outcome
from settled.store import Conflict, ConsumerSpec, QuarantineEntry, Selection, Session, Store
from settled.testing.store_tools import (
    GROUP,
    HEADERS,
    TOPIC,
    StoreCases,
    StoreFactory,
    applied,
    at,
    failure,
    quarantined,
    record,
    records,
    tried,
)

LARGE = bytes(range(256)) * 5000  # above 1 MiB


class ShelfCases(StoreCases):
    def only(self, store: Store) -> QuarantineEntry:
        [number] = store.quarantine.select(Selection(states=()))
        return store.quarantine.entry(number)

    @pytest.mark.parametrize("key", [None, b"", b"k\x00\xff"])
    @pytest.mark.parametrize("value", [None, b"", b'{"n":"a\\u0000b"}\x00\xff', LARGE])
    def test_evidence_comes_back_byte_for_byte(
        self, store: Store, session: Session, key: bytes | None, value: bytes | None
    ) -> None:
        found = record(
            3,
            "ï☃" * 50,
            key=key,
            value=value,
            headers=HEADERS,
            type="OrderPlaced",
            version=-(2**62),
            event_time_us=-5,
            correlation_id="",
            causation_id="c",
            accepted_us=1_700_000_000_000_000,
        )
        self.shelve(session, found)
        entry = self.only(store)
        assert entry.record == found
        assert (entry.state, entry.owner, entry.code_version, entry.parked) == ("held", "stock team", "7f3", False)
        assert entry.value_bytes == len(value or b"")
        assert (entry.failure, entry.attempts.count, entry.attempts.last) == (failure(), 5, failure())
        assert session.settled([found]) == [Outcome.QUARANTINED]
        [listed] = store.quarantine.entries([entry.number])
        assert listed.record.value == (None if value is LARGE else value)
        store.quarantine.request([entry.number], reason="r", who="w")
        assert [each.record for each in store.redrives(GROUP, TOPIC, 0)] == [found]

    def test_a_failure_with_unstorable_text(self, store: Store, session: Session) -> None:
        ugly = failure("NUL \0 and lone \ud800 surrogate", error="App\0Error", trace="\udfff" * 9000)
        session.charge(at(0), [(record(0), tried(last=ugly))])
        assert len(store.attempts(GROUP, TOPIC, 0)) == 1
        self.shelve(session, record(0), why=ugly, attempts=tried(last=ugly))
        entry = self.only(store)
        assert "NUL" in entry.failure.message
        assert len(entry.failure.trace) <= 8000

    def test_the_size_of_evidence_is_bounded(self, store: Store, session: Session) -> None:
        big = failure("m" * 100_000, trace="t" * 100_000)
        self.shelve(session, record(0, value=b"v" * 200), why=big, attempts=tried(50, last=big))
        entry = self.only(store)
        for turn in range(20):
            store.quarantine.request([entry.number], reason="r" * 10_000, who="w")
            session.begin([at(1)], redrive=True)
            again = quarantined(entry.record, tried(5, first_us=2000 + turn, last=big), big)
            session.settle([again], [at(1)])
        entry = self.only(store)
        assert entry.attempts.count == 150
        assert entry.attempts.first_us == 1000
        assert entry.state == "held"
        first, last = entry.attempts.first, entry.attempts.last
        assert first is not None
        assert last is not None
        size = sum(len(part.message) + len(part.trace) for part in (first, last))
        assert size < 16_000
        assert sum(map(len, entry.notes)) < 16_000

    def test_parked_keys(self, store: Store, session: Session) -> None:
        self.shelve(session, record(0, key=b"a"), record(1, key=None))
        self.shelve(session, record(2, key=b"b"), parked=True)
        assert store.parked(GROUP, TOPIC, 0) == {b"a", b"b"}
        assert store.parked(GROUP, TOPIC, 1) == set()
        by_offset = {e.record.offset: e for e in store.quarantine.entries(store.quarantine.select(Selection()))}
        assert [by_offset[offset].parked for offset in (0, 1, 2)] == [False, False, True]
        store.quarantine.discard([by_offset[0].number], reason="r", who="w")
        assert store.parked(GROUP, TOPIC, 0) == {b"b"}

    def test_a_redrive_is_applied_once(self, store: Store, session: Session) -> None:
        self.shelve(session, record(0), record(1))
        numbers = store.quarantine.select(Selection(event_id="e0"))
        assert store.quarantine.request(numbers, reason="fixed", who="ann")["requested"] == 1
        assert store.quarantine.request(numbers, reason="again", who="bob")["already_requested"] == 1
        [entry] = store.redrives(GROUP, TOPIC, 0)
        session.begin([at(2)], redrive=True)
        assert session.screen([entry.record]) == [None]
        self.write(session.tx, entry.record.id)
        session.settle(applied([entry.record]), [at(2)])
        assert self.effects(store) == ["e0"]
        assert store.redrives(GROUP, TOPIC, 0) == []
        assert store.tally(GROUP) == {Outcome.APPLIED: 1, Outcome.QUARANTINED: 1}
        assert store.quarantine.entry(entry.number).state == "settled"
        assert store.quarantine.request(numbers, reason="third", who="ann")["settled"] == 1
        session.begin([at(2)], redrive=True)
        self.write(session.tx, entry.record.id)
        with pytest.raises(Conflict):
            session.settle(applied([entry.record]), [at(2)])
        assert self.effects(store) == ["e0"]

    def test_a_redrive_that_fails_is_held_again(self, store: Store, session: Session) -> None:
        self.shelve(session, record(0))
        [number] = store.quarantine.select(Selection())
        store.quarantine.request([number], reason="try", who="ann")
        session.begin([at(1)], redrive=True)
        worse = failure("still broken", fingerprint="f2")
        session.settle([quarantined(record(0), tried(2, first_us=9000, last=worse), worse)], [at(1)])
        entry = store.quarantine.entry(number)
        assert (entry.state, entry.attempts.count, entry.attempts.first_us) == ("held", 7, 1000)
        assert (entry.attempts.first, entry.failure) == (failure(), worse)
        assert session.settled([record(0)]) == [Outcome.QUARANTINED]

    @pytest.mark.parametrize(("outcome", "state"), [(Outcome.STALE, "settled"), (Outcome.DISCARDED, "discarded")])
    def test_other_ends_of_a_redrive(self, store: Store, session: Session, outcome: Outcome, state: str) -> None:
        self.shelve(session, record(0))
        numbers = store.quarantine.select(Selection())
        store.quarantine.request(numbers, reason="try", who="ann")
        session.begin([at(1)], redrive=True)
        session.settle([Ending(record(0), outcome)], [at(1)])
        assert store.quarantine.entry(numbers[0]).state == state
        assert session.settled([record(0)]) == [outcome]

    def test_two_requests_at_once_ask_once(self, store: Store, session: Session, store_factory: StoreFactory) -> None:
        self.shelve(session, *records(*range(60)))
        numbers = store.quarantine.select(Selection())
        counts: list[dict[str, int]] = []

        def ask(each: Store) -> None:
            counts.append(each.quarantine.request(numbers, reason="r", who="w"))

        threads = [threading.Thread(target=ask, args=(store_factory(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sum(count["requested"] for count in counts) == 60
        assert sum(count["already_requested"] for count in counts) == 120
        assert len(store.redrives(GROUP, TOPIC, 0)) == 60

    def test_discard(self, store: Store, session: Session) -> None:
        self.shelve(session, *records(0, 1))
        numbers = store.quarantine.select(Selection())
        assert store.quarantine.discard(numbers, reason="test data", who="ann") == 2
        assert store.quarantine.discard(numbers, reason="twice", who="ann") == 0
        assert store.tally(GROUP) == {Outcome.DISCARDED: 2}
        entry = store.quarantine.entry(numbers[0])
        assert entry.state == "discarded"
        assert "ann" in entry.notes[-1]
        assert store.quarantine.request(numbers, reason="r", who="w")["discarded"] == 2

    def test_a_selection_is_frozen(self, store: Store, session: Session) -> None:
        self.shelve(session, record(0))
        frozen = store.quarantine.select(Selection(consumer=GROUP, fingerprint="f1", topic=TOPIC))
        self.shelve(session, record(1))
        assert store.quarantine.request(frozen, reason="r", who="w")["requested"] == 1
        assert [entry.record.id for entry in store.redrives(GROUP, TOPIC, 0)] == ["e0"]
        assert store.quarantine.select(Selection(consumer="nobody")) == []
        assert store.quarantine.select(Selection(numbers=tuple(frozen))) == []
        assert store.quarantine.select(Selection(numbers=tuple(frozen), states=("requested",))) == frozen

    def test_groups_of_equal_failures(self, store: Store, session: Session) -> None:
        self.shelve(session, *records(0, 1, 2))
        self.shelve(session, record(3), why=failure("other", error="app.Other", fingerprint="f2"))
        groups = store.quarantine.groups(GROUP)
        assert [(group.count, group.fingerprint, group.error) for group in groups] == [
            (3, "f1", "app.Broken"),
            (1, "f2", "app.Other"),
        ]
        assert groups[0].message == "no such item"
        assert 0 < groups[0].oldest_us <= groups[0].newest_us
        assert store.quarantine.groups("nobody") == []

    def test_notes(self, store: Store, session: Session) -> None:
        self.shelve(session, record(0))
        [number] = store.quarantine.select(Selection())
        store.quarantine.note(number, "asked the \0 warehouse", who="ann")
        assert "warehouse" in store.quarantine.entry(number).notes[0]

    def test_a_number_that_is_not_there(self, store: Store, session: Session) -> None:
        self.shelve(session, record(0))
        [number] = store.quarantine.select(Selection())
        shelf = store.quarantine
        for call in (
            lambda: shelf.entry(404),
            lambda: shelf.entries([number, 404]),
            lambda: shelf.request([number, 404], reason="r", who="w"),
            lambda: shelf.discard([number, 404], reason="r", who="w"),
            lambda: shelf.note(404, "text", who="w"),
        ):
            with pytest.raises(ContractError, match="404"):
                call()
        assert shelf.entry(number).state == "held"

    def test_without_inbox_a_redelivered_record_has_one_entry(self, store: Store, session: Session) -> None:
        plain = store.session(ConsumerSpec(consumer=GROUP, inbox=False))
        self.shelve(plain, record(0))
        self.shelve(plain, record(0), why=failure("again"))
        entry = self.only(store)
        assert entry.failure.message == "again"
        assert store.quarantine.request([entry.number], reason="r", who="w")["requested"] == 1
        plain.close()

    # pruning

    def test_prune(self, store: Store, session: Session) -> None:
        self.unit(session, records(*range(10)), 8)  # 8 and 9 are above the frontier
        self.shelve(session, record(20))
        self.own(store, "billing")
        other = store.session(ConsumerSpec(consumer="billing"))
        self.unit(other, records(0), 1)
        other.close()
        assert self.sweep(store, older_than_s=3600) == 11
        assert store.tally(GROUP) == {Outcome.APPLIED: 10, Outcome.QUARANTINED: 1}
        session.begin([at(8)])
        session.settle([], [at(8)])
        assert self.sweep(store, older_than_s=-1) == 11
        assert session.settled([record(20)]) == [Outcome.QUARANTINED], "a held entry keeps its mark"
        assert store.tally("billing") == {Outcome.APPLIED: 1}
        kept = [each for each in session.settled(records(*range(10))) if each is not None]
        assert kept == [], "the frontier is at 21 since the quarantine"

    def test_marks_above_the_frontier_are_kept(self, store: Store, session: Session) -> None:
        self.unit(session, records(*range(10)), 8)
        self.sweep(store, older_than_s=-1)
        assert session.settled(records(7, 8, 9)) == [None, Outcome.APPLIED, Outcome.APPLIED]

    def test_a_redrive_whose_mark_is_gone_is_refused(self, store: Store, session: Session) -> None:
        self.shelve(session, *records(0, 1))
        numbers = store.quarantine.select(Selection())
        self.lose_mark(store, "e1")
        with pytest.raises(Refused, match="mark"):
            store.quarantine.request(numbers, reason="r", who="w")
        assert store.redrives(GROUP, TOPIC, 0) == [], "nothing was changed"

    def sweep(self, store: Store, *, older_than_s: float) -> int:
        looked = 0
        while found := store.prune(GROUP, older_than_s=older_than_s, batch=3):
            looked += found
        return looked

    def lose_mark(self, store: Store, event_id: str) -> None:
        """Remove a mark behind the store's back."""
        raise NotImplementedError
