"""The same promise with queues on RabbitMQ, and what nodes and the network can do to it; and mutants of the engine that
the drills must find."""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rabbitmq_mutants import MUTANTS

from settled.drills import rabbitmq
from settled.drills.campaign_rabbitmq import changed
from settled.drills.drill import Drill, reachable, run
from settled.drills.elsewhere import RABBITMQ
from settled.drills.report import Report
from settled.errors import Refused
from settled.testing.postgres import database
from settled.testing.rabbitmq import own_nodes, url
from settled.testing.rabbitmq_nodes import Nodes

pytestmark = [pytest.mark.xdist_group("rabbitmq-drills"), pytest.mark.timeout(300)]

HERE = Path(__file__).parent
EVERY = reachable("effectively-once", engine=RABBITMQ)
WINDOWS = {  # form and order -> which windows
    ("queue", "none"): EVERY[0::3],
    ("queue", "key"): EVERY[1::3],
    ("pubsub", "none"): EVERY[2::3],
}
FOUND = {  # mutant -> in which order of a queue, in which window, as what
    "acknowledges_what_it_hands_over": ("none", "marks-written", {"lost"}),
    "what_is_settled_is_never_acknowledged": ("none", "slot-locked", {"unbounded"}),
    "inbox_is_not_asked": ("none", "claims-unacknowledged", {"doubled"}),
    "groups_run_in_reverse": ("key", "slot-locked", {"order"}),
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with own_nodes() as found:
        yield found


def drill(nodes: Nodes, folder: Path, form: str = "queue", order: str = "none") -> Drill:
    changes = changed(form, order)
    return Drill(engine=rabbitmq.OWN, nodes=nodes, folder=folder, changes=changes, kills=1, yes=True)


def require_passed(report: Report, kills: int) -> None:
    for row in report.windows:
        assert not row.violations, f"seed {report.seed}: {row.window} {row.violations[:5]}"
        assert row.kills >= kills, row.window


def test_all_windows_are_drilled() -> None:
    assert sorted(name for names in WINDOWS.values() for name in names) == sorted(EVERY)


@pytest.mark.parametrize(("form", "order"), WINDOWS)
def test_nothing_is_lost_doubled_or_out_of_order(form: str, order: str, nodes: Nodes, tmp_path: Path) -> None:
    asked = msgspec.structs.replace(drill(nodes, tmp_path, form, order), windows=tuple(WINDOWS[form, order]))
    require_passed(run(asked), 1)


def test_nothing_is_lost_or_doubled_in_postgresql(nodes: Nodes, tmp_path: Path) -> None:
    with database() as store:
        windows = ("claims-recognised", "marks-written", "claims-unacknowledged")
        require_passed(run(msgspec.structs.replace(drill(nodes, tmp_path), windows=windows, store=store)), 1)


def test_a_zombie_commits_nothing(nodes: Nodes, tmp_path: Path) -> None:
    """In PostgreSQL, where what a stopped worker has begun keeps nobody else from writing."""
    with database() as store:
        asked = msgspec.structs.replace(drill(nodes, tmp_path), named=("stall",), kills=3, store=store)
        require_passed(run(asked), 3)


@pytest.mark.parametrize(
    ("name", "order", "times"),
    [
        ("partition-cut", "key", 1),
        ("frame-cut", "none", 8),
        ("memory-alarm", "key", 2),
        ("consumer-timeout", "none", 1),
    ],
)
def test_by_name(name: str, order: str, times: int, nodes: Nodes, tmp_path: Path) -> None:
    asked = drill(nodes, tmp_path, order=order)
    require_passed(run(msgspec.structs.replace(asked, named=(name,), kills=times)), times)


def test_windows_of_another_engine_are_said_to_be_unreached(nodes: Nodes, tmp_path: Path) -> None:
    report = run(msgspec.structs.replace(drill(nodes, tmp_path), windows=("append-written",)))
    (row,) = report.windows
    assert row.kills == 0
    assert "not reached" in row.note


def test_there_is_a_drill_for_each_mutant() -> None:
    assert FOUND.keys() == MUTANTS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_mutant_is_found(name: str, nodes: Nodes, tmp_path: Path) -> None:
    order, window, kinds = FOUND[name]
    command = (sys.executable, str(HERE / "rabbitmq_mutants.py"), name)
    asked = drill(nodes, tmp_path, order=order)
    report = run(msgspec.structs.replace(asked, windows=(window,), kills=3, settle_s=3.0, command=command, seed=7))
    assert report.verdict == "fail"
    assert {violation.kind for row in report.windows for violation in row.violations} & kinds, report.windows


def test_nodes_of_others_are_not_harmed(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="leader-kill"):
        run(Drill(named=("leader-kill",), engine=url(), folder=tmp_path, changes=changed("queue", "none"), yes=True))
