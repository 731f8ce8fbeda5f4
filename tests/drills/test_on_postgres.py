"""The same promise with effects in PostgreSQL, and what a server can do to its clients."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.drills import campaign
from settled.drills.checker import check
from settled.drills.crew import Crew
from settled.drills.drill import Drill, run
from settled.drills.server import Server
from settled.drills.world import World
from settled.testing.postgres import database, server_url

WINDOWS = ("append-committed", "fence-written", "marks-written", "effect-committed", "redrive-written", "random")


@pytest.fixture
def url() -> Iterator[str]:
    with database() as found:
        yield found


def test_nothing_is_lost_doubled_or_out_of_order(url: str, tmp_path: Path) -> None:
    report = run(Drill(windows=WINDOWS, kills=4, store=url, folder=tmp_path))
    for row in report.windows:
        assert not row.violations, f"seed {report.seed}: {row.window} {row.violations[:5]}"
        assert row.kills >= 4, row.window


def test_a_zombie_commits_nothing(url: str, tmp_path: Path) -> None:
    report = run(Drill(named=("stall",), kills=3, store=url, folder=tmp_path))
    (row,) = report.windows
    assert not row.violations, f"seed {report.seed}: {row.violations[:5]}"
    assert row.kills == 3


@pytest.mark.parametrize("fault", [campaign.cut_commits, campaign.terminate_backends])
def test_workers_carry_on_when_connections_are_lost(fault: campaign.Fault, url: str, tmp_path: Path) -> None:
    with Crew() as crew, World(crew, tmp_path, store=url, prefix="pg-") as world:
        assert fault(world, Server(server_url()), url, 6, random.Random(4)) >= 6
        world.require_sound()
        worker = world.start(drained=True)
        assert world.crew.wait_ended(worker, 30.0)
        assert world.settled()
        history = world.collect()
    assert check(history) == []
