"""One attempt on a real SQLite store: who is charged when a record of a group fails, and what is durable afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from delivery_records import record

from settled.delivery.attempt import Attempt
from settled.delivery.binding import Binding
from settled.delivery.group import Group, Part, Report
from settled.delivery.retry import RetryPolicy
from settled.delivery.run import PARKED
from settled.delivery.subscription import Mode
from settled.engine import Partition
from settled.errors import CommitUnknown, Fenced, Reject, Unavailable
from settled.outcome import Attempts, Ending, Failure, FailureClass, Outcome
from settled.record import Record
from settled.sqlite import open_connection
from settled.store import ConsumerSpec, Position, Progress, Tx
from settled.stores.sqlite import SqliteStore

PLACE: Partition = ("t", 0)
FAILURE = Failure(FailureClass.DEFECT, "app.Broken", "no", "trace", "f1")


class Bench:
    """A store on which consumer `g` holds t/0 under epoch 1, and attempts on it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "effects.db"
        self.store = SqliteStore(f"sqlite:///{self.path}?busy=1")
        self.store.migrate()
        self.store.prepare(lambda tx: tx.execute("CREATE TABLE effects (n INTEGER PRIMARY KEY, id TEXT)"))
        self.acquire(1)
        self._attempts: list[Attempt] = []

    def acquire(self, epoch: int) -> None:
        if self.store.acquire("g", "t", 0, epoch, "one") is None:
            self.store.settle_from("g", Position(topic="t", partition=0, epoch=epoch, frontier=0, identity="one"))

    def attempt(
        self,
        handler: Callable[..., Any],
        *,
        batch: bool = False,
        mode: Mode = "effectively-once",
        versioned: bool = False,
    ) -> Attempt:
        spec = ConsumerSpec(consumer="g", inbox=mode == "effectively-once", versioned=versioned)
        made = Attempt(self.store.session(spec), Binding(handler, batch=batch), mode, RetryPolicy())
        self._attempts.append(made)
        return made

    def ids(self) -> list[str]:
        connection = open_connection(self.path)
        try:
            return [row[0] for row in connection.execute("SELECT id FROM effects ORDER BY n")]
        finally:
            connection.close()

    @property
    def frontier(self) -> int:
        [(_, found)] = self.store.positions("g")
        return found.frontier

    def close(self) -> None:
        for each in self._attempts:
            each.close()
        self.store.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


def progress(frontier: int, epoch: int = 1) -> Progress:
    return Progress(topic="t", partition=0, epoch=epoch, frontier=frontier)


def group(records: Sequence[Record], *, now: int = 0, epoch: int = 1, **fields: Any) -> Group:
    then = max((each.offset + 1 for each in records), default=now)
    return Group(records, {PLACE: Part(progress(now, epoch), progress(then, epoch))}, **fields)


def records(count: int, keys: int = 1000) -> list[Record]:
    return [record(number, b"k%d" % (number % keys)) for number in range(count)]


def insert(tx: Tx, found: Record) -> None:
    tx.execute("INSERT INTO effects (id) VALUES (?)", (found.id,))


def failing(*bad: str, error: Callable[[], BaseException] = lambda: ValueError("no")) -> Callable[[Tx, Record], None]:
    def handler(tx: Tx, found: Record) -> None:
        insert(tx, found)
        if found.id in bad:
            raise error()

    return handler


def outcomes(report: Report) -> dict[str, Outcome]:
    return {ending.record.id: ending.outcome for ending in report.endings}


def accounted(report: Report, given: Sequence[Record]) -> None:
    """Every record is in exactly one of endings, failures and returned."""
    found = [ending.record.offset for ending in report.endings]
    found += [each.offset for each, _ in report.failures] + [each.offset for each in report.returned]
    assert sorted(found) == [each.offset for each in given]


# Groups.


def test_a_group_settles_as_one(bench: Bench) -> None:
    given = records(20)
    report = bench.attempt(insert).run(group(given))
    accounted(report, given)
    assert set(outcomes(report).values()) == {Outcome.APPLIED}
    assert bench.ids() == [each.id for each in given]
    assert bench.frontier == 20
    assert report.fault is None
    assert report.written


@pytest.mark.parametrize("bad", [("e0",), ("e7",), ("e19",), ("e0", "e1", "e19"), tuple(f"e{n}" for n in range(20))])
def test_failing_records_are_charged_and_no_others(bench: Bench, bad: tuple[str, ...]) -> None:
    given = records(20)
    report = bench.attempt(failing(*bad)).run(group(given))
    accounted(report, given)
    assert {each.id for each, _ in report.failures} == set(bad)
    assert report.returned == []
    assert bench.ids() == [each.id for each in given if each.id not in bad]
    assert bench.frontier == 0  # the partition has a record that did not end
    assert all(failure.error == "ValueError" for _, failure in report.failures)


def test_later_records_of_a_failed_key_are_returned_unrun(bench: Bench) -> None:
    given = records(12, keys=3)
    report = bench.attempt(failing("e4")).run(group(given))
    accounted(report, given)
    assert [each.id for each, _ in report.failures] == ["e4"]
    assert [each.id for each in report.returned] == ["e7", "e10"]
    assert not {"e4", "e7", "e10"} & set(bench.ids())
    assert "e1" in bench.ids()


def test_records_without_a_key_hold_up_nobody(bench: Bench) -> None:
    given = [record(number) for number in range(5)]
    report = bench.attempt(failing("e1")).run(group(given))
    assert report.returned == []
    assert bench.ids() == ["e0", "e2", "e3", "e4"]


def test_a_single_record_that_fails_leaves_no_mark(bench: Bench) -> None:
    attempt = bench.attempt(failing("e0", error=lambda: Reject("never")))
    report = attempt.run(group(records(1)))
    assert report.failures[0][1].kind is FailureClass.PERMANENT
    assert bench.ids() == []
    assert bench.store.tally("g") == {}
    assert attempt.run(group([record(1, b"x")])).written  # the session is usable


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_is_raised_is_the_records_failure(bench: Bench, error: type[BaseException]) -> None:
    given = records(3)
    report = bench.attempt(failing("e1", error=error)).run(group(given))
    assert [failure.error for _, failure in report.failures] == [error.__name__]
    assert bench.ids() == ["e0", "e2"]


@pytest.mark.parametrize("bad", [(), ("e3",), ("e3", "e40", "e41"), ("e99",)])
def test_a_batch_handler_is_split_until_the_culprit_stands_alone(bench: Bench, bad: tuple[str, ...]) -> None:
    calls: list[int] = []

    def handler(tx: Tx, found: list[Record]) -> None:
        calls.append(len(found))
        for each in found:
            insert(tx, each)
        if any(each.id in bad for each in found):
            raise ValueError("one of these")

    given = records(100)
    report = bench.attempt(handler, batch=True).run(group(given))
    accounted(report, given)
    assert {each.id for each, _ in report.failures} == set(bad)
    assert bench.ids() == [each.id for each in given if each.id not in bad]
    if not bad:
        assert calls == [100]


def test_a_batch_handler_never_gets_an_empty_list(bench: Bench) -> None:
    calls: list[int] = []

    def handler(tx: Tx, found: list[Record]) -> None:
        calls.append(len(found))

    attempt = bench.attempt(handler, batch=True)
    attempt.run(group(records(3)))
    attempt.run(group(records(3)))  # duplicates, all of them
    attempt.run(group([], now=3))
    assert calls == [3]


# What a handler must not do.


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_handlers_own_commit_is_its_records_failure_even_if_swallowed(
    bench: Bench, size: int, statement: str
) -> None:
    def handler(tx: Tx, found: Record) -> None:
        insert(tx, found)
        if found.id == "e0":
            with contextlib.suppress(Exception):
                tx.execute(statement)

    attempt = bench.attempt(handler)
    given = records(size)
    report = attempt.run(group(given))
    if report.isolate:  # of several it is not known which: they come again, one by one
        assert report.returned == given
        assert not report.written
        reports = [attempt.run(group([each])) for each in given]
    else:
        reports = [report]
    assert [each.id for found in reports for each, _ in found.failures] == ["e0"]
    assert sorted(bench.ids()) == [each.id for each in given[1:]]


def test_a_statement_that_rolls_back_by_itself_is_the_records_failure(bench: Bench) -> None:
    bench.store.prepare(lambda tx: tx.execute("CREATE TABLE strict_one (id INTEGER UNIQUE)"))

    def handler(tx: Tx, found: Record) -> None:
        insert(tx, found)
        with contextlib.suppress(Exception):
            tx.execute("INSERT OR ROLLBACK INTO strict_one VALUES (1)")

    attempt = bench.attempt(handler)
    first = attempt.run(group(records(1)))
    assert outcomes(first) == {"e0": Outcome.APPLIED}
    second = attempt.run(group([record(1, b"x")], now=1))
    assert [each.id for each, _ in second.failures] == ["e1"]
    assert bench.ids() == ["e0"]


def test_a_constraint_at_commit_blames_a_lone_record_and_isolates_several(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store.close()
    bench.store = SqliteStore(f"sqlite:///{bench.path}?foreign_keys=on")
    bench.store.prepare(lambda tx: tx.execute("CREATE TABLE parent (id TEXT PRIMARY KEY)"))
    bench.store.prepare(
        lambda tx: tx.execute("CREATE TABLE child (id TEXT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
    )
    bench.acquire(2)

    def handler(tx: Tx, found: Record) -> None:
        insert(tx, found)
        if found.id == "e1":
            tx.execute("INSERT INTO child VALUES ('nobody')")

    attempt = bench.attempt(handler)
    waiting = Ending(record(50, b"q"), Outcome.QUARANTINED, FAILURE, Attempts(3, 1, 1, last=FAILURE))
    report = attempt.run(group(records(3), epoch=2, endings=[waiting]))
    assert report.isolate
    assert not report.written
    assert len(report.returned) == 3
    report = attempt.run(group([record(1, b"k1")], epoch=2, endings=[waiting]))
    assert [each.id for each, _ in report.failures] == ["e1"]
    assert not report.written  # what was decided before is not durable either
    assert bench.store.tally("g") == {}
    assert bench.ids() == []
    bench.close()


# Screening.


def test_duplicates_are_not_run(bench: Bench) -> None:
    attempt = bench.attempt(insert)
    attempt.run(group(records(3)))
    again = [*records(3), record(3, b"z", id="e1"), record(4, b"y", id="new")]
    report = attempt.run(group(again, now=3))
    assert [ending.outcome for ending in report.endings] == [Outcome.DUPLICATE] * 4 + [Outcome.APPLIED]
    assert bench.ids() == ["e0", "e1", "e2", "new"]
    assert bench.frontier == 5


def test_duplicates_within_a_group_run_once(bench: Bench) -> None:
    given = [record(0, b"a", id="same"), record(1, b"b", id="same")]
    report = bench.attempt(insert).run(group(given))
    assert [ending.outcome for ending in report.endings] == [Outcome.APPLIED, Outcome.DUPLICATE]
    assert bench.ids() == ["same"]


def test_stale_versions_are_not_run(bench: Bench) -> None:
    def versioned(offset: int, version: int) -> Record:
        return Record("t", 0, offset, b"k", b"v", (), f"e{offset}", version=version)

    attempt = bench.attempt(insert, versioned=True)
    report = attempt.run(group([versioned(0, 5), versioned(1, 4), versioned(2, 6)]))
    assert [ending.outcome for ending in report.endings] == [Outcome.APPLIED, Outcome.STALE, Outcome.APPLIED]
    report = attempt.run(group([versioned(3, 6)], now=3))
    assert [ending.outcome for ending in report.endings] == [Outcome.STALE]
    assert bench.ids() == ["e0", "e2"]


def test_a_parked_key_goes_to_quarantine_unrun(bench: Bench) -> None:
    given = [record(0, b"a"), record(1, b"b"), record(2, b"a")]
    report = bench.attempt(insert).run(group(given, parked={("t", 0, b"a")}))
    assert [ending.outcome for ending in report.endings] == [
        Outcome.QUARANTINED,
        Outcome.APPLIED,
        Outcome.QUARANTINED,
    ]
    assert all(ending.parked and ending.failure == PARKED for ending in report.endings if ending.outcome != 1)
    assert bench.ids() == ["e1"]
    assert bench.store.parked("g", "t", 0) == {b"a"}
    assert bench.frontier == 3


# What was decided before goes along.


def test_decided_endings_and_charges_are_written_with_the_group(bench: Bench) -> None:
    attempts = Attempts(3, 1, 1, last=FAILURE, first=FAILURE)
    quarantined = Ending(record(0, b"q"), Outcome.QUARANTINED, FAILURE, attempts)
    charged = record(1, b"c")
    report = bench.attempt(insert).run(group([record(2, b"x")], endings=[quarantined], charges=[(charged, attempts)]))
    assert report.written
    assert bench.store.tally("g") == {Outcome.APPLIED: 1, Outcome.QUARANTINED: 1}
    assert [offset for offset, _ in bench.store.attempts("g", "t", 0)] == [1]


@pytest.mark.parametrize("settled_before", [False, True])
def test_a_decided_quarantine_of_an_id_that_was_settled_meanwhile_is_a_duplicate(
    bench: Bench, settled_before: bool
) -> None:
    attempt = bench.attempt(insert)
    waiting = Ending(record(0, b"a", id="same"), Outcome.QUARANTINED, FAILURE, Attempts(3, 1, 1, last=FAILURE))
    given = [record(1, b"b", id="same")]
    if settled_before:
        attempt.run(group(given))
        given = [record(2, b"c")]
    work = group(given, endings=[waiting])
    report = attempt.run(work)
    assert report.fault is None
    assert work.endings[0].outcome is (Outcome.DUPLICATE if settled_before else Outcome.QUARANTINED)
    expected = {Outcome.APPLIED: 2} if settled_before else {Outcome.QUARANTINED: 1}
    assert bench.store.tally("g") == expected


# Faults that are nobody's.


def test_a_lost_epoch_writes_nothing_and_charges_nobody(bench: Bench) -> None:
    attempt = bench.attempt(insert)
    bench.acquire(2)
    given = records(3)
    report = attempt.run(group(given, epoch=1))
    assert isinstance(report.fault, Fenced)
    assert (report.returned, report.written, bench.ids()) == (given, False, [])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda error: error,
        lambda error: ValueError("wrapped"),
        lambda error: ExceptionGroup("from a task group", [ValueError("x"), error]),
    ],
    ids=["plain", "wrapped", "grouped"],
)
def test_an_outage_inside_the_handler_is_not_its_failure(bench: Bench, wrap: Callable[[Exception], Exception]) -> None:
    def handler(tx: Tx, found: Record) -> None:
        insert(tx, found)
        if found.id == "e1":
            try:
                raise Unavailable("the store is gone")
            except Unavailable as error:
                raise wrap(error)  # noqa: B904 - the context is what is looked at

    given = records(3)
    report = bench.attempt(handler).run(group(given))
    assert isinstance(report.fault, Unavailable)
    assert (report.returned, report.failures, bench.ids()) == (given, [], [])


def test_another_settling_the_same_id_meanwhile_is_found_and_skipped(bench: Bench) -> None:
    """Another process marks an id between the screening and the commit: the unit begins again."""
    other = bench.store.session(ConsumerSpec(consumer="g"))
    attempt = bench.attempt(insert)
    session = attempt._session
    screen = session.screen

    def screening(given: Sequence[Record]) -> list[Outcome | None]:
        session.screen = screen  # type: ignore[method-assign]
        found = screen(given)
        other.begin([progress(0)])
        other.settle([Ending(record(7, b"z", id="e1"), Outcome.APPLIED)], [progress(0)])
        return found

    session.screen = screening  # type: ignore[method-assign]
    given = records(3)
    report = attempt.run(group(given))
    accounted(report, given)
    assert outcomes(report) == {"e0": Outcome.APPLIED, "e1": Outcome.DUPLICATE, "e2": Outcome.APPLIED}
    assert bench.ids() == ["e0", "e2"]
    other.close()


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_without_an_answer_is_looked_up(bench: Bench, committed: bool) -> None:
    attempt = bench.attempt(insert)
    session = attempt._session
    settle = session.settle

    def losing(*arguments: Any) -> None:
        session.settle = settle  # type: ignore[method-assign]
        if committed:
            settle(*arguments)
        raise CommitUnknown("no answer")

    session.settle = losing  # type: ignore[method-assign]
    given = records(3)
    report = attempt.run(group(given))
    if committed:
        assert set(outcomes(report).values()) == {Outcome.APPLIED}
        assert bench.frontier == 3
    else:
        assert isinstance(report.fault, CommitUnknown)
        assert report.returned == given
    again = attempt.run(group(given, now=bench.frontier))
    assert again.fault is None
    assert bench.ids() == ["e0", "e1", "e2"]


# Withdrawing and stopping.


def test_withdrawn_records_are_not_run_and_keep_the_frontier(bench: Bench) -> None:
    given = records(10)
    work = group(given)
    taken: list[Record] = []

    def handler(tx: Tx, found: Record) -> None:
        insert(tx, found)
        if found.id == "e3":
            taken.extend(work.withdraw())

    report = bench.attempt(handler).run(work)
    ran = [ending.record for ending in report.endings]
    assert sorted(each.offset for each in [*ran, *taken]) == list(range(10))
    assert bench.ids() == [each.id for each in ran]
    assert taken
    assert bench.frontier == 0
    assert work.withdraw() == []


def test_withdrawing_while_a_record_fails_loses_and_doubles_nothing(bench: Bench) -> None:
    given = records(60)
    work = group(given)
    taken: list[Record] = []

    def handler(tx: Tx, found: Record) -> None:
        insert(tx, found)
        if found.id == "e5":
            taken.extend(work.withdraw())
            raise ValueError("no")

    report = bench.attempt(handler).run(work)
    found = [ending.record.offset for ending in report.endings] + [each.offset for each, _ in report.failures]
    found += [each.offset for each in [*report.returned, *taken]]
    assert sorted(found) == list(range(60))
    assert [each.id for each, _ in report.failures] == ["e5"]


def test_after_the_report_nothing_can_be_withdrawn(bench: Bench) -> None:
    def handler(tx: Tx, found: Record) -> None:
        raise Unavailable("gone")

    given = records(5)
    work = group(given)
    report = bench.attempt(handler).run(work)
    assert report.returned == given
    assert work.withdraw() == []


def test_an_abandoned_handler_commits_nothing_whatever_it_returns(bench: Bench) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handler(tx: Tx, found: Record) -> None:
        insert(tx, found)
        begun.set()
        go_on.wait(20)

    attempt = bench.attempt(handler)
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(attempt.run(group(records(1)))))
    thread.start()
    assert begun.wait(20)
    attempt.abandon()
    go_on.set()
    thread.join(20)
    assert isinstance(reports[0].fault, Unavailable)
    assert (reports[0].failures, bench.ids(), bench.frontier) == ([], [], 0)


# Suspects.


def test_suspects_are_recorded_before_they_start_and_run_one_by_one(bench: Bench) -> None:
    seen: list[list[int]] = []

    def handler(tx: Tx, found: Record) -> None:
        seen.append([offset for offset, _ in bench.store.attempts("g", "t", 0)])
        insert(tx, found)

    given = records(3)
    suspected = Attempts(1, 0, 0, suspect=True)
    work = group(given, charges=[(each, suspected) for each in given], suspects=True, alone=True)
    report = bench.attempt(handler).run(work)
    accounted(report, given)
    assert seen == [[0, 1, 2], [1, 2], [2]]
    assert bench.store.attempts("g", "t", 0) == []


def test_the_first_failing_suspect_sends_the_others_back(bench: Bench) -> None:
    given = records(4)
    suspected = Attempts(1, 0, 0, suspect=True)
    work = group(given, charges=[(each, suspected) for each in given], suspects=True, alone=True)
    report = bench.attempt(failing("e1")).run(work)
    accounted(report, given)
    assert outcomes(report) == {"e0": Outcome.APPLIED}
    assert [each.id for each, _ in report.failures] == ["e1"]
    assert [each.id for each in report.returned] == ["e2", "e3"]


def test_suspects_that_had_ended_are_not_charged_nor_run(bench: Bench) -> None:
    attempt = bench.attempt(insert)
    attempt.run(group(records(2)))
    given = records(3)
    suspected = Attempts(1, 0, 0, suspect=True)
    report = attempt.run(group(given, charges=[(each, suspected) for each in given], suspects=True, alone=True))
    assert [ending.outcome for ending in report.endings] == [Outcome.DUPLICATE, Outcome.DUPLICATE, Outcome.APPLIED]
    assert bench.ids() == ["e0", "e1", "e2"]
    assert bench.store.attempts("g", "t", 0) == []


def test_an_outage_between_suspects_keeps_what_was_settled(bench: Bench) -> None:
    def handler(tx: Tx, found: Record) -> None:
        insert(tx, found)
        if found.id == "e1":
            raise Unavailable("gone")

    given = records(3)
    report = bench.attempt(handler, mode="at-least-once").run(group(given, suspects=True, alone=True))
    accounted(report, given)
    assert outcomes(report) == {"e0": Outcome.APPLIED}
    assert isinstance(report.fault, Unavailable)
    assert bench.ids() == ["e0"]


# Modes.


def test_at_most_once_the_frontier_is_durable_before_the_handler_starts(bench: Bench) -> None:
    seen: list[int] = []

    def handler(tx: Tx, found: Record) -> None:
        seen.append(bench.frontier)
        insert(tx, found)

    report = bench.attempt(handler, mode="at-most-once").run(group(records(3)))
    assert seen == [3, 3, 3]
    assert len(report.endings) == 3
    assert bench.store.tally("g") == {}


def test_at_most_once_a_failure_is_reported_and_the_frontier_stays_past_it(bench: Bench) -> None:
    given = records(3)
    work = group(given)
    report = bench.attempt(failing("e1"), mode="at-most-once").run(work)
    assert [each.id for each, _ in report.failures] == ["e1"]
    assert bench.ids() == ["e0", "e2"]
    assert bench.frontier == 3
    assert work.withdraw() == []


def test_at_least_once_screens_nothing(bench: Bench) -> None:
    attempt = bench.attempt(insert, mode="at-least-once")
    attempt.run(group(records(2)))
    report = attempt.run(group(records(2), now=2))
    assert set(outcomes(report).values()) == {Outcome.APPLIED}
    assert bench.ids() == ["e0", "e1", "e0", "e1"]
