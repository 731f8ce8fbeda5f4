"""The store suite: waiting for the ending of a record."""

from __future__ import annotations

import threading
import time

import pytest

from settled.errors import ContractError
from settled.outcome import Ending, Outcome
from settled.record import Record
from settled.store import Asked, ConsumerSpec, Seen, Session, Store
from settled.testing.store_tools import GROUP, IDENTITY, StoreCases, applied, at, record, records


def asked(found: Record, *, consumer: str = GROUP) -> Asked:
    return Asked(
        consumer=consumer, topic=found.topic, partition=found.partition, offset=found.offset, event_id=found.id
    )


class WatchCases(StoreCases):
    def test_a_look_shows_what_is_committed(self, store: Store, session: Session) -> None:
        [first, second] = records(0, 1)
        assert store.watch(asked(first, consumer="nobody"), 0) == Seen()
        assert store.watch(asked(first), 0) == Seen(identity=IDENTITY, frontier=0)
        session.begin([at(0)])
        self.write(session.tx, "e0")
        assert store.watch(asked(first), 0) == Seen(identity=IDENTITY, frontier=0)
        session.settle([*applied([first]), Ending(second, Outcome.DISCARDED)], [at(2)])
        seen = store.watch(asked(first), 0)
        assert seen == Seen(identity=IDENTITY, frontier=2, outcome=Outcome.APPLIED, own=True)
        assert store.watch(asked(second), 0).outcome is Outcome.DISCARDED
        assert store.watch(asked(record(5)), 0) == Seen(identity=IDENTITY, frontier=2)
        assert store.watch(asked(record(0, "e9", partition=3)), 0) == Seen()
        assert store.watch(asked(record(0, topic="other")), 0).frontier is None

    def test_another_records_mark_shows_as_such(self, store: Store, session: Session) -> None:
        self.unit(session, [record(0, "e")], 1)
        again = store.watch(asked(record(7, "e")), 0)
        assert (again.outcome, again.own) == (Outcome.APPLIED, False)
        anywhere = store.watch(Asked(consumer=GROUP, topic="orders", event_id="e"), 0)
        assert (anywhere.outcome, anywhere.identity) == (Outcome.APPLIED, None)

    def test_a_quarantined_record_shows_with_and_without_marks(self, store: Store, session: Session) -> None:
        self.shelve(session, record(0))
        seen = store.watch(asked(record(0)), 0)
        assert (seen.outcome, seen.own, seen.quarantined) == (Outcome.QUARANTINED, True, True)
        self.own(store, "plain")
        plain = store.session(ConsumerSpec(consumer="plain", inbox=False))
        self.shelve(plain, record(0))
        plain.close()
        seen = store.watch(asked(record(0), consumer="plain"), 0)
        assert (seen.outcome, seen.quarantined, seen.frontier) == (None, True, 1)
        assert seen.ended(asked(record(0)))

    def test_it_returns_when_the_ending_is_committed(self, store: Store, session: Session) -> None:
        found: list[tuple[Seen, float]] = []
        started = threading.Barrier(9)

        def wait(number: int) -> None:
            started.wait(30)
            seen = store.watch(asked(record(number)), 30)
            found.append((seen, time.monotonic()))

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        started.wait(30)
        assert found == []
        self.unit(session, records(*range(8)), 8)
        committed = time.monotonic()
        for thread in threads:
            thread.join(30)
        assert {seen.outcome for seen, _ in found} == {Outcome.APPLIED}
        assert len(found) == 8
        assert max(at for _, at in found) - committed < 5.0

    def test_the_bound_is_kept(self, store: Store, session: Session) -> None:
        started = time.monotonic()
        assert not store.watch(asked(record(0)), 0.2).ended(asked(record(0)))
        assert 0.2 <= time.monotonic() - started < 5.0

    def test_closing_the_store_ends_the_waiting(self, store: Store, session: Session) -> None:
        told: list[Exception] = []
        looked = threading.Event()

        def wait() -> None:
            store.watch(asked(record(0)), 0)
            looked.set()
            with pytest.raises(ContractError) as closed:
                store.watch(asked(record(0)), 60)
            told.append(closed.value)

        thread = threading.Thread(target=wait)
        thread.start()
        assert looked.wait(30)
        store.close()
        thread.join(30)
        assert len(told) == 1
        with pytest.raises(ContractError, match="closed"):
            store.watch(asked(record(0)), 1)
