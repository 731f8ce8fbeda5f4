"""`settled drill` as people call it: its report, its exit codes, what it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

APPS = Path(__file__).parent / "apps"
PROMISED = {
    *("window", "kills", "redelivered", "duplicates", "lost", "doubled", "order_violations"),
    *("resume_p50_ms", "resume_p99_ms", "repaired_by"),
}


def drill(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "settled", "drill", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def report(found: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


def test_the_sample_application_passes_and_the_report_has_what_it_promises() -> None:
    found = drill("-w", "effect-committed", "--kills", 2, "--seed", 11, "-o", "json")
    assert found.returncode == 0, found.stderr
    said = report(found)
    (row,) = said["windows"]
    assert (said["verdict"], said["seed"]) == ("pass", 11)
    assert row.keys() >= PROMISED
    assert row["kills"] == 2
    assert (row["lost"], row["doubled"], row["order_violations"]) == (0, 0, 0)


def test_a_wrong_application_fails_and_its_databases_are_kept(tmp_path: Path) -> None:
    found = drill(
        *(APPS / "outside.py", "-w", "marks-written", "--kills", 2, "--keep", tmp_path, "-o", "json"),
        *("--check", "SELECT event_id FROM note ORDER BY rowid"),
    )
    said = report(found)
    assert found.returncode == 1
    assert said["verdict"] == "fail"
    assert said["windows"][0]["doubled"] > 0
    assert Path(said["windows"][0]["kept"], "effects.db").is_file()


def test_records_of_the_users_own_are_published_once_each(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(
        "".join(json.dumps({"key": f"k{n % 3}", "value": {"n": n}, "id": f"r{n}"}) + "\n" for n in range(30))
    )
    found = drill("-w", "unit-begun", "--kills", 1, "--records", file, "-o", "json")
    assert found.returncode == 0, found.stderr
    assert report(found)["windows"][0]["published"] == 30


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("-w", "nowhere"), 2, "there is no window 'nowhere'"),
        (("--drill", "earthquake"), 2, "there is no drill 'earthquake'"),
        (("no-such-app.py",), 2, "no-such-app.py"),
        (("--store", "sqlite", "-w", "unit-begun", "--kills", 1), 2, "no store takes a URL that begins with 'sqlite'"),
        (("--store", "postgresql://[::1", "-w", "unit-begun", "--kills", 1), 2, "Invalid IPv6 URL"),
        (("--records", "no-such-file.jsonl", "-w", "unit-begun", "--kills", 1), 2, "no-such-file.jsonl"),
        (("--check", "SELECT nonsense", "-w", "unit-begun", "--kills", 1), 2, "the check query fails"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[object, ...], code: int, said: str) -> None:
    found = drill(*arguments)
    assert found.returncode == code, found.stderr
    assert said in found.stderr
    assert "hint:" in found.stderr


def test_brokers_of_its_own_need_the_extra_and_nothing_is_started_without_it() -> None:
    """As after `pip install settled` alone: the client's package is not there."""
    without = "import sys; sys.modules['confluent_kafka'] = None; from settled.cli import main; main()"
    command = (sys.executable, "-c", without, "drill", "--drill", "leader-kill", "--engine", "kafka-test:")
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2, found.stderr
    assert "settled[kafka]" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_database_with_other_data_is_refused_unless_told_so(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/effects.db"
    asked = ("-w", "unit-begun", "--kills", 1, "--store", store, "-o", "json")
    assert drill(*asked).returncode == 0
    refused = drill(*asked)
    assert refused.returncode == 3
    assert "holds other data" in refused.stderr
    assert drill(*asked, "--yes").returncode == 0
