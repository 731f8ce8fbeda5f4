"""`settled demo`: real workers, one of them killed; the report, its keys, its exit code."""

import json
from pathlib import Path

import apsw
import pytest
import typer
from cli_runs import settled

from settled.cli import demo as command
from settled.drills.demo import orders, run, stream, verdict

KEYS = (
    "published delivered redelivered applied duplicates stale lost doubled order_violations seconds effects_per_second"
)


def test_a_killed_worker_loses_and_doubles_nothing(tmp_path: Path):
    ran = settled(tmp_path, "demo", "--records", 2_000, "--seed", 5, "-o", "json", "--keep", "kept")
    report = json.loads(ran.out)
    assert list(report) == KEYS.split()
    assert (report["published"], report["applied"]) == (2_000, 1_960)
    assert (report["duplicates"], report["stale"]) == (20, 20)
    assert (report["lost"], report["doubled"], report["order_violations"]) == (0, 0, 0)
    assert report["redelivered"] > 0
    assert report["delivered"] == report["published"] + report["redelivered"]
    assert report["seconds"] > 0
    assert report["effects_per_second"] > 0
    assert "SIGKILL" in ran.err

    # The folder was kept: what was reported can be looked up, and what were wrong in it would be found.
    database = tmp_path / "kept" / orders.EFFECTS
    foretold = stream.foretell(stream.generate(2_000, seed=5, topic="fulfilment"))
    assert len(verdict.rows_in(database)) == 1_960
    connection = apsw.Connection(str(database))
    connection.execute("DELETE FROM reservation WHERE made = 7")
    connection.execute(
        "INSERT INTO reservation (order_id, reservation_version, event_id, state, sku, quantity)"
        " SELECT order_id, reservation_version, event_id, state, sku, quantity FROM reservation WHERE made IN (5, 6)"
    )
    connection.close()
    found = verdict.judge(foretold, verdict.rows_in(database), handed=(0, 0), seconds=1.0)
    assert (found.lost, found.doubled) == (1, 2)


def test_it_says_what_it_found_to_people_and_removes_its_folder(tmp_path: Path):
    ran = settled(tmp_path, "demo", "--records", 300, "--workers", 1, env={"TMPDIR": str(tmp_path)})
    assert "duplicates refused" in ran.out
    assert ran.out.rstrip().endswith("has one, once, in order.")
    assert list(tmp_path.iterdir()) == []


def test_a_bad_verdict_ends_with_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Not a row is in the database: all is lost."""
    bad = verdict.judge(
        stream.foretell(stream.generate(100, seed=1, topic="fulfilment")), [], handed=(100, 0), seconds=1.0
    )
    monkeypatch.setattr(run, "run", lambda *_, **__: bad)
    with pytest.raises(typer.Exit) as ended:
        command.demo(records=100, workers=1, seed=1, keep=None, output=None)
    assert ended.value.exit_code == 1
    told = capsys.readouterr().out
    assert "FAILED" in told
    assert f"lost{len(stream.foretell(stream.generate(100, seed=1, topic='fulfilment')).applied):>28}" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--keep", "full"), "is not empty", id="a folder with something in it"),
        pytest.param(("--records", "5"), "100", id="too few records for their shares"),
        pytest.param(("--workers", "13"), "12", id="more workers than partitions"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, arguments: tuple[str, ...], words: str):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    ran = settled(tmp_path, "demo", *arguments, code=2)
    assert words in ran.err
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep me"
