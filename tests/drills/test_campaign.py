"""The campaign's call: how often each fault comes, and what an engine or a form does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from settled.drills import campaign, campaign_kafka, campaign_rabbitmq
from settled.drills.drill import Drill, reachable
from settled.drills.report import Report


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--engine", "rabbitmq", "--form", "log", "--drill", "leader-kill"], "decision 040"),
        (["--engine", "rabbitmq", "--form", "log", "--drill", "consumer-timeout"], "nothing of a log is claimed"),
        (["--engine", "rabbitmq", "--drill", "hot-key"], "not on rabbitmq with form queue"),
        (["--engine", "kafka", "--form", "queue"], "on kafka there are logs and pub/sub"),
        (["--kills", "0"], "give 1 or more"),
    ],
)
def test_what_cannot_be_drilled_is_a_wrong_call(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        campaign.main(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "stall"), [(["--kills", "7"], 7), (["--full", "--kills", "7"], 7), (["--full"], 120), ([], 6)]
)
def test_how_often(words: list[str], stall: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Mapping[str, int]] = []

    def found(form: str, store: str, postgres: str, seed: int, counts: Mapping[str, int], only: Any) -> Iterator[Any]:
        asked.append(counts)
        return iter(())

    monkeypatch.setattr(campaign_rabbitmq, "found", found)
    assert campaign.main(["--engine", "rabbitmq", "--form", "log", *words]) == 0
    (counts,) = asked
    assert counts["stall"] == stall
    assert not counts.keys() & campaign_rabbitmq.NOT_OF_LOGS.keys()


def test_the_form_is_drilled_on_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    drilled: list[Drill] = []

    @contextmanager
    def started() -> Iterator[None]:
        yield None

    def run(drill: Drill) -> Report:
        drilled.append(drill)
        return Report(verdict="pass", seed=1, windows=[], seconds=0.0)

    monkeypatch.setattr(campaign_kafka, "started", started)
    monkeypatch.setattr(campaign_kafka, "run", run)
    words = ["--engine", "kafka", "--form", "pubsub", "--store", "sqlite", "--kills", "60"]
    assert campaign.main([*words, "--drill", "windows", "--drill", "stall"]) == 0
    windows, stall = drilled
    assert [each.changes["transport"] for each in drilled] == [{"form": "pubsub"}] * 2
    assert windows.kills * len(reachable("effectively-once", engine="kafka")) >= 60
    assert (windows.named, stall.named, stall.kills) == ((), ("stall",), 60)
