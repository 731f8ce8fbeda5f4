"""The kernel's clocks: they agree with the library's, and do not follow what a process is made to believe."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from settled import clock


def test_wall_time_is_the_time_of_day() -> None:
    assert abs(clock.wall_us() - time.time() * 1e6) < 5e6


def test_boot_time_only_moves_forward() -> None:
    seen = [clock.boot_us() for _ in range(2000)]
    assert seen == sorted(seen)
    assert seen[0] > 0


def test_boot_time_runs_as_fast_as_monotonic_time() -> None:
    boot, monotonic = clock.boot_us(), time.monotonic()
    while time.monotonic() - monotonic < 0.05:
        pass
    assert clock.boot_us() - boot == pytest.approx((time.monotonic() - monotonic) * 1e6, rel=0.5)


def test_processes_of_one_machine_read_the_same_clock_and_boot() -> None:
    code = "from settled import clock; print(clock.boot_us(), clock.boot_id())"
    before = clock.boot_us()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert before <= int(found[0]) <= clock.boot_us()
    assert found[1] == clock.boot_id()


def test_a_library_clock_that_lies_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if clock._syscall is None:
        pytest.skip("this platform has no system call for the clock")
    before = clock.wall_us()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    assert clock.wall_us() >= before
    assert clock.boot_us() > 0
