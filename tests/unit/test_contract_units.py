"""Quantities as people write them: both directions, and refusals with a remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.contract import units
from settled.errors import ContractError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8ms", 0.008),
        ("5s", 5.0),
        ("15m", 900.0),
        ("15 min", 900.0),
        ("1h30m", 5400.0),
        ("7d", 604_800.0),
        ("2w", 1_209_600.0),
        ("250us", 0.00025),
        ("1.5s", 1.5),
        ("2,400s", 2400.0),
        ("0", 0.0),
        ("0s", 0.0),
        (" 5 s ", 5.0),
    ],
)
def test_a_duration_reads_as_seconds(text: str, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("600kB", 600_000),
        ("64MiB", 67_108_864),
        ("10GiB", 10_737_418_240),
        ("1.5KiB", 1536),
        ("512 B", 512),
        ("1,024B", 1024),
        ("0", 0),
    ],
)
def test_a_size_reads_as_bytes(text: str, size: int) -> None:
    assert units.size(text) == size


def test_a_bare_size_needs_a_field_that_says_bytes() -> None:
    assert units.size("600_000", bare=True) == 600_000
    with pytest.raises(ContractError, match="has no unit"):
        units.size("600000")


@pytest.mark.parametrize(
    ("text", "per_second"),
    [("600/s", 600.0), ("2,400/s", 2400.0), ("60/min", 1.0), ("3.6k/h", 1.0), ("86400 / d", 1.0), ("0/s", 0.0)],
)
def test_a_rate_reads_as_per_second(text: str, per_second: float) -> None:
    assert units.rate(text) == per_second


@pytest.mark.parametrize(("text", "number"), [("400", 400), ("2,400", 2400), ("10_000", 10_000), ("10k", 10_000)])
def test_a_count_reads_as_a_whole_number(text: str, number: int) -> None:
    assert units.count(text) == number


@pytest.mark.parametrize(
    ("read", "text", "message", "hint"),
    [
        (units.duration, "10", "has no unit", "us, ms, s"),
        (units.duration, "-5s", "below zero", "8ms"),
        (units.duration, "5 fortnights", "'fortnights' is not a unit", "us, ms, s"),
        (units.duration, "0.1us", "finer than a microsecond", "round"),
        (units.duration, "12:30:00", "not a duration", "us, ms, s"),
        (units.duration, "", "not a duration", "us, ms, s"),
        (units.duration, "2,4s", "not a duration", "us, ms, s"),
        (units.duration, "9" * 5000 + "s", "not a duration", "us, ms, s"),
        (units.duration, "٣s", "not a duration", "us, ms, s"),
        (units.size, "64M", "'M' is not a unit", "64MB (thousands) or 64MiB (1,024s)"),
        (units.size, "5KB", "'KB' is not a unit", "5kB (thousands) or 5KiB (1,024s)"),
        (units.size, "5parsecs", "'parsecs' is not a unit", "KiB, MiB"),
        (units.size, "0.5B", "not a whole number of bytes", "round"),
        (units.rate, "600", "does not say per what", "600/s"),
        (units.rate, "600/fortnight", "not a unit of a rate", "/min"),
        (units.rate, "fast", "not a rate", "600/s"),
        (units.rate, "0.01/d", "less than one", "0/s"),
        (units.count, "4.5", "not a whole number", "round"),
        (units.count, "many", "not a whole number", "e.g. 400"),
        (units.count, "1e9", "not a whole number", "e.g. 400"),
        (units.count, "nan", "not a whole number", "e.g. 400"),
        (units.number, "two", "not a number", "1.5"),
    ],
)
def test_what_could_mean_something_else_is_refused(
    read: Callable[[str], object], text: str, message: str, hint: str
) -> None:
    with pytest.raises(ContractError) as caught:
        read(text)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.008, "8ms"), (60.0, "1m"), (5400.0, "90m"), (1_209_600.0, "14d"), (1.5, "1500ms"), (1e-6, "1us")],
)
def test_a_duration_shows_in_its_shortest_form(seconds: float, text: str) -> None:
    assert units.show_duration(seconds) == text


def test_sizes_and_rates_show_in_their_shortest_form() -> None:
    shown = [units.show_size(size) for size in (0, 600_000, 67_108_864, 10 * 2**30, 1001)]
    assert shown == ["0B", "600kB", "64MiB", "10GiB", "1001B"]
    assert [units.show_rate(rate) for rate in (3300.0, 1 / 60, 100 / 60, 0.1)] == [
        "3300/s",
        "1/min",
        "100/min",
        "6/min",
    ]
    assert units.show_number(2.0) == "2"
    assert units.show_number(1.5) == "1.5"


@given(st.integers(min_value=0, max_value=36_525 * 86_400 * 10**6))
def test_every_duration_reads_back(us: int) -> None:
    assert units.duration(units.show_duration(us / 1_000_000)) == us / 1_000_000


@given(st.integers(min_value=0, max_value=2**60))
def test_every_size_reads_back(size: int) -> None:
    assert units.size(units.show_size(size)) == size


@given(st.one_of(st.just(0.0), st.floats(min_value=1e-6, max_value=1e9)))
def test_every_rate_reads_back(rate: float) -> None:
    assert units.rate(units.show_rate(rate)) == rate


@given(st.text())
def test_any_text_is_read_or_refused_with_a_remedy(text: str) -> None:
    for read in (units.duration, units.size, units.rate, units.count, units.number):
        assert _value_or_hint(read, text) != ""


def _value_or_hint(read: Callable[[str], object], text: str) -> object:
    try:
        return read(text)
    except ContractError as fault:
        return fault.hint
