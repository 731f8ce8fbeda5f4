"""The same promise with the log on Kafka, and what brokers and the network can do to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.drills import kafka
from settled.drills.drill import Drill, run
from settled.drills.report import Report
from settled.errors import ContractError, Refused
from settled.testing.kafka import bootstrap, own_cluster
from settled.testing.kafka_cluster import Cluster
from settled.testing.postgres import database

pytestmark = [pytest.mark.xdist_group("kafka-cluster"), pytest.mark.timeout(300)]
WINDOWS = ("append-committed", "fence-written", "marks-written", "effect-committed", "random")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_cluster() as opened:
        yield opened


def require_passed(report: Report, kills: int) -> None:
    for row in report.windows:
        assert not row.violations, f"seed {report.seed}: {row.window} {row.violations[:5]}"
        assert row.kills >= kills, row.window


def test_nothing_is_lost_doubled_or_out_of_order(cluster: Cluster, tmp_path: Path) -> None:
    drill = Drill(windows=WINDOWS, kills=2, engine=kafka.OWN, cluster=cluster, folder=tmp_path, at_once=2)
    require_passed(run(drill), 2)


def test_nothing_is_lost_doubled_or_out_of_order_in_postgresql(cluster: Cluster, tmp_path: Path) -> None:
    with database() as store:
        drill = Drill(
            windows=("effect-committed", "fence-written"),
            kills=2,
            engine=kafka.OWN,
            cluster=cluster,
            store=store,
            folder=tmp_path,
            yes=True,
        )
        require_passed(run(drill), 2)


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("stall", 1),
        ("lost-ack", 5),
        ("rebalance-storm", 3),
        ("partition-cut", 2),
        ("leader-kill", 1),
        ("broker-rolling-restart", 1),
    ],
)
def test_by_name(name: str, times: int, cluster: Cluster, tmp_path: Path) -> None:
    report = run(Drill(named=(name,), kills=times, engine=kafka.OWN, cluster=cluster, folder=tmp_path, yes=True))
    require_passed(report, times)


def test_windows_of_another_log_are_said_to_be_unreached(cluster: Cluster, tmp_path: Path) -> None:
    report = run(Drill(windows=("append-written",), engine=kafka.OWN, cluster=cluster, folder=tmp_path, yes=True))
    (row,) = report.windows
    assert row.kills == 0
    assert "not reached" in row.note


def test_brokers_of_others_are_not_killed(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="leader-kill"):
        run(Drill(named=("leader-kill",), engine=kafka.address(bootstrap()), folder=tmp_path, yes=True))


def test_drills_on_brokers_need_brokers(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="Kafka"):
        run(Drill(named=("leader-kill",), folder=tmp_path))
