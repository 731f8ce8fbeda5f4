"""Units of work: screening, atomicity, the fence, conflicts, and what a handler may not do."""

from __future__ import annotations

from contextlib import closing

import pytest

from settled.errors import ContractError, Fenced, HistoryLost, Refused
from settled.outcome import Ending, Outcome
from settled.store import Asked, Conflict, ConsumerSpec, Position, Session, Store
from settled.testing.store_tools import (
    GROUP,
    IDENTITY,
    TOPIC,
    StoreCases,
    StoreFactory,
    applied,
    at,
    quarantined,
    record,
    records,
    tried,
)


class UnitCases(StoreCases):
    def test_effects_marks_and_frontier_are_committed_together(self, store: Store, session: Session) -> None:
        assert self.unit(session, records(0, 1, 2), 3) == [None, None, None]
        assert self.effects(store) == ["e0", "e1", "e2"]
        assert store.tally(GROUP) == {Outcome.APPLIED: 3}
        [(consumer, position)] = store.positions(GROUP)
        assert (consumer, position.frontier, position.epoch, position.identity) == (GROUP, 3, 1, IDENTITY)
        assert position.updated_us > 0

    def test_rollback_leaves_nothing(self, store: Store, session: Session) -> None:
        session.begin([at(0)])
        session.screen(records(0))
        self.write(session.tx, "e0")
        session.rollback()
        session.rollback()
        assert self.effects(store) == []
        assert store.tally(GROUP) == {}
        assert self.unit(session, records(0), 1) == [None], "a failed attempt must leave no mark"

    def test_duplicates_across_units_and_within_one(self, store: Store, session: Session) -> None:
        self.unit(session, records(0), 1)
        again = [record(1, "e0"), record(2, "new"), record(3, "new")]
        assert self.unit(session, again, 4) == [Outcome.DUPLICATE, None, Outcome.DUPLICATE]
        assert self.effects(store) == ["e0", "new"]
        assert store.positions()[0][1].frontier == 4

    def test_screening_a_large_group(self, session: Session) -> None:
        group = records(*range(1500))
        self.unit(session, group, 1500)
        session.begin([at(1500)])
        assert session.screen(group) == [Outcome.DUPLICATE] * 1500
        session.rollback()

    def test_groups_share_a_database_and_each_runs_the_event_once(self, store: Store, session: Session) -> None:
        self.unit(session, records(0), 1)
        self.own(store, "billing")
        other = store.session(ConsumerSpec(consumer="billing"))
        assert self.unit(other, records(0), 1) == [None]
        assert self.effects(store) == ["e0", "e0"]
        other.close()

    def test_one_id_in_two_topics_of_a_group_is_one_event(self, store: Store, session: Session) -> None:
        self.own(store, GROUP, "returns")
        self.unit(session, records(0), 1)
        session.begin([at(0, topic="returns")])
        assert session.screen([record(0, topic="returns")]) == [Outcome.DUPLICATE]
        session.settle([Ending(record(0, topic="returns"), Outcome.DUPLICATE)], [at(1, topic="returns")])
        assert {p.topic: p.frontier for _, p in store.positions(GROUP)} == {TOPIC: 1, "returns": 1}

    def test_stale_versions(self, store: Store, session: Session) -> None:
        spec = ConsumerSpec(consumer=GROUP, versioned=True)
        with_versions = store.session(spec)
        first = [record(0, version=2), record(1, version=1), record(2, version=3), record(3, version=3)]
        assert self.unit(with_versions, first, 4) == [None, Outcome.STALE, None, Outcome.STALE]
        later = [record(4, version=3), record(5, version=1, key=b"other"), record(6, version=9, key=None), record(7)]
        assert self.unit(with_versions, later, 8) == [Outcome.STALE, None, None, None]
        assert store.tally(GROUP)[Outcome.STALE] == 3
        with_versions.close()

    def test_without_inbox_nothing_is_screened_or_marked(self, store: Store, session: Session) -> None:
        plain = store.session(ConsumerSpec(consumer=GROUP, inbox=False))
        self.unit(plain, records(0), 1)
        assert self.unit(plain, records(0), 1) == [None]
        assert store.tally(GROUP) == {}
        assert self.effects(store) == ["e0", "e0"]
        plain.close()

    @pytest.mark.parametrize("offsets", [(0, 1, 2), (0, 2, 7), (2, 0, 1)])
    def test_applied_by_partition(self, store: Store, offsets: tuple[int, ...]) -> None:
        for partition in (0, 1):
            store.acquire(GROUP, TOPIC, partition, 1, IDENTITY)
        with closing(store.session(ConsumerSpec(consumer=GROUP, versioned=True))) as session:
            here = [record(offset, version=offset + 1) for offset in offsets]
            there = [record(5, "there", partition=1, version=9)]
            session.charge(at(0), [(here[1], tried())])
            session.begin([at(0), at(0, partition=1)])
            ended = [Ending(record(9), Outcome.DISCARDED)]
            progress = [at(10), at(6, partition=1)]
            session.settle(ended, progress, (), {(TOPIC, 0): here, (TOPIC, 1): there})
            assert session.settled([*here, *there]) == [Outcome.APPLIED] * 4
            assert store.tally(GROUP) == {Outcome.APPLIED: 4, Outcome.DISCARDED: 1}
            assert store.attempts(GROUP, TOPIC, 0) == []
            for each in (*here, *there):
                number, offset = each.partition, each.offset
                asked = Asked(consumer=GROUP, topic=TOPIC, event_id=each.id, partition=number, offset=offset)
                assert store.watch(asked, 0.0).own
            session.begin([at(10), at(6, partition=1)])
            later = record(20, version=max(offsets) + 1)
            assert session.screen([later, record(6, partition=1, version=9)]) == [Outcome.STALE] * 2
            session.rollback()

    def test_applied_meets_another_settlement(self, store: Store, session: Session) -> None:
        self.unit(session, records(1), 2)
        session.begin([at(2)])
        with pytest.raises(Conflict):
            session.settle([], [at(3)], (), {(TOPIC, 0): records(0, 1, 2)})
        assert store.tally(GROUP) == {Outcome.APPLIED: 1}

    def test_a_frontier_never_goes_back(self, store: Store, session: Session) -> None:
        session.begin([at(0)])
        session.settle([], [at(7, witness=(7, b"seven"))])
        session.begin([at(0)])
        session.settle([], [at(3, witness=(3, b"three"))])
        position = store.positions()[0][1]
        assert (position.frontier, position.witness) == (7, (7, b"seven"))

    def test_savepoints(self, store: Store, session: Session) -> None:
        session.begin([at(0)])
        session.save()
        self.write(session.tx, "undone first")
        session.undo()
        self.write(session.tx, "kept")
        session.save()
        self.write(session.tx, "undone")
        session.undo()
        session.undo()
        self.write(session.tx, "kept too")
        session.check()
        session.settle(applied(records(0)), [at(1)])
        assert self.effects(store) == ["kept", "kept too"]

    def test_a_broken_statement_can_be_undone(self, store: Store, session: Session) -> None:
        session.begin([at(0)])
        session.save()
        self.write(session.tx, "kept")
        session.save()
        with pytest.raises(Exception, match="nosuch"):
            session.tx.execute("INSERT INTO nosuch VALUES (1)")
        session.undo()
        session.settle(applied(records(0)), [at(1)])
        assert self.effects(store) == ["kept"]

    def test_executemany(self, store: Store, session: Session) -> None:
        session.begin([at(0)])
        mark = self.placeholder
        session.tx.executemany(f"INSERT INTO effects (id) VALUES ({mark})", [("a",), ("b",)])
        session.settle([], [at(0)])
        assert self.effects(store) == ["a", "b"]

    # what a handler may not do

    @pytest.mark.parametrize("swallowed", [False, True])
    @pytest.mark.parametrize("sql", ["COMMIT", "rollback", "/* x */ END", "SAVEPOINT a", "BEGIN"])
    def test_a_handler_may_not_end_the_transaction(
        self, store: Store, session: Session, sql: str, swallowed: bool
    ) -> None:
        session.begin([at(0)])
        self.write(session.tx, "e0")
        with pytest.raises(Refused) as refused:
            session.tx.execute(sql)
        assert refused.value.hint
        with pytest.raises(Refused):
            session.check()
        if swallowed:
            with pytest.raises(Refused):
                session.settle(applied(records(0)), [at(1)])
        session.rollback()
        assert self.effects(store) == []
        assert self.unit(session, records(0), 1) == [None]

    def test_a_refusal_is_forgotten_with_what_was_undone(self, store: Store, session: Session) -> None:
        session.begin([at(0)])
        self.write(session.tx, "kept")
        session.save()
        with pytest.raises(Refused):
            session.tx.execute("COMMIT")
        session.undo()
        session.check()
        session.settle(applied(records(0)), [at(1)])
        assert self.effects(store) == ["kept"]

    def test_tx_is_shut_outside_a_unit(self, store: Store, session: Session) -> None:
        with pytest.raises(ContractError):
            self.write(session.tx, "early")
        self.unit(session, records(0), 1)
        with pytest.raises(ContractError):
            self.write(session.tx, "late")
        assert self.effects(store) == ["e0"]

    # the fence

    def test_an_old_epoch_is_refused_at_begin(self, store: Store, session: Session) -> None:
        store.acquire(GROUP, TOPIC, 0, 2, IDENTITY)
        with pytest.raises(Fenced):
            session.begin([at(0)])

    def test_a_takeover_before_the_first_write(
        self, store: Store, session: Session, store_factory: StoreFactory
    ) -> None:
        session.begin([at(0)])
        session.screen(records(0))
        self.own(store_factory(), epoch=2)

        def late() -> None:
            self.write(session.tx, "e0")
            session.settle(applied(records(0)), [at(1)])

        with pytest.raises(Fenced):
            late()
        session.rollback()
        assert self.effects(store) == []

    def test_a_takeover_before_settle(self, store: Store, session: Session, store_factory: StoreFactory) -> None:
        session.begin([at(0)])
        self.own(store_factory(), epoch=2)
        with pytest.raises(Fenced):
            session.settle([*applied(records(0)), quarantined(record(1))], [at(2)], [(record(2), tried())])
        successor = store.session(ConsumerSpec(consumer=GROUP))
        assert self.unit(successor, records(0), 1, epoch=2) == [None]
        assert store.tally(GROUP) == {Outcome.APPLIED: 1}
        assert store.attempts(GROUP, TOPIC, 0) == []
        successor.close()

    def test_a_late_charge_is_refused(self, store: Store, session: Session) -> None:
        store.acquire(GROUP, TOPIC, 0, 2, IDENTITY)
        with pytest.raises(Fenced):
            session.charge(at(0), [(record(0), tried())])
        assert store.attempts(GROUP, TOPIC, 0) == []

    def test_a_partition_never_acquired_is_refused(self, store: Store, session: Session) -> None:
        with pytest.raises(Fenced):
            session.begin([at(0, partition=5)])

    def test_epochs_only_rise(self, store: Store, session: Session, store_factory: StoreFactory) -> None:
        position = store.acquire(GROUP, TOPIC, 0, 1, IDENTITY)
        assert position is not None, "the same owner may write its epoch again"
        with pytest.raises(Fenced):
            store_factory().acquire(GROUP, TOPIC, 0, 1, IDENTITY)
        assert store.acquire(GROUP, TOPIC, 0, 5, IDENTITY) == store.positions()[0][1]
        with pytest.raises(Fenced):
            store.acquire(GROUP, TOPIC, 0, 4, IDENTITY)
        assert store.epoch(GROUP, TOPIC, 0) == 5
        assert store.epoch(GROUP, TOPIC, 9) == 0

    def test_nothing_of_a_paused_partition_is_settled(self, store: Store, session: Session) -> None:
        store.pause(GROUP, TOPIC, [0, 7], reason="the supplier is down", who="ann")
        store.pause(GROUP, TOPIC, [0], reason="again", who="bob")
        with pytest.raises(Fenced):
            session.begin([at(0)])
        session.rollback()
        assert [(one.partition, one.reason, one.who) for one in store.pauses(GROUP)] == [
            (0, "the supplier is down", "ann"),
            (7, "the supplier is down", "ann"),
        ]
        assert store.pauses("another") == []
        assert store.resume(GROUP, TOPIC, [0, 1]) == [0]
        assert [one.partition for one in store.pauses()] == [7]
        epoch = store.epoch(GROUP, TOPIC, 0)
        assert epoch > 1, "the fence rose: the owner must acquire again"
        assert store.acquire(GROUP, TOPIC, 0, epoch, IDENTITY) == store.positions()[0][1]

    def test_another_incarnation_of_the_topic(self, store: Store, session: Session) -> None:
        with pytest.raises(HistoryLost) as lost:
            store.acquire(GROUP, TOPIC, 0, 2, "incarnation-2")
        assert lost.value.hint
        assert store.epoch(GROUP, TOPIC, 0) == 1

    def test_a_new_partition_has_no_position(self, store: Store) -> None:
        assert store.acquire(GROUP, TOPIC, 3, 1, IDENTITY) is None
        assert store.positions(GROUP) == []
        start = Position(topic=TOPIC, partition=3, epoch=1, frontier=40, identity=IDENTITY)
        store.settle_from(GROUP, start)
        position = store.acquire(GROUP, TOPIC, 3, 2, IDENTITY)
        assert position is not None
        assert (position.frontier, position.epoch) == (40, 2)
        with pytest.raises(Fenced):
            store.settle_from(GROUP, start)

    # conflicts and ambiguous commits

    def test_conflict(self, store: Store, session: Session) -> None:
        """The same id settled by another partition of the group between screen and settle."""
        store.acquire(GROUP, TOPIC, 1, 1, IDENTITY)
        other = store.session(ConsumerSpec(consumer=GROUP))
        session.begin([at(0)])
        assert session.screen(records(0)) == [None]
        other.begin([at(0, partition=1)])
        other.settle(applied([record(9, "e0", partition=1)]), [at(10, partition=1)])
        with pytest.raises(Conflict):
            session.settle(applied(records(0)), [at(1)])
        assert {p.partition: p.frontier for _, p in store.positions(GROUP)} == {0: 0, 1: 10}
        assert self.unit(session, records(0), 1) == [Outcome.DUPLICATE]
        other.close()

    def test_settled_says_how_each_record_ended(self, session: Session) -> None:
        self.unit(session, records(0), 1)
        self.shelve(session, record(1))
        assert session.settled(records(0, 1, 2)) == [Outcome.APPLIED, Outcome.QUARANTINED, None]

    # attempts

    def test_attempts_are_durable_until_the_record_ends(
        self, store: Store, session: Session, store_factory: StoreFactory
    ) -> None:
        session.charge(at(0), [(record(4), tried(2, suspect=True)), (record(5), tried())])
        session.charge(at(0), [(record(4), tried(3))])
        reopened = store_factory()
        assert reopened.attempts(GROUP, TOPIC, 0) == [(4, tried(3)), (5, tried())]
        session.begin([at(0)])
        session.settle(applied([record(4)]), [at(0)], [(record(6), tried(7))])
        assert [offset for offset, _ in store.attempts(GROUP, TOPIC, 0)] == [5, 6]
