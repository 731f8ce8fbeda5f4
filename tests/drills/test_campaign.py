"""The campaign's call: how often each fault comes, and what an engine or a form does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from settled.drills import campaign, campaign_rabbitmq


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--engine", "rabbitmq", "--form", "log", "--drill", "leader-kill"], "decision 040"),
        (["--engine", "rabbitmq", "--form", "log", "--drill", "consumer-timeout"], "nothing of a log is claimed"),
        (["--engine", "rabbitmq", "--drill", "hot-key"], "not on rabbitmq with form queue"),
        (["--engine", "kafka", "--form", "queue"], "on kafka there are logs"),
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
