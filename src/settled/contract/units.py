"""Durations, sizes, rates and counts as people write them, in both directions: `8ms`, `600kB`, `2,400/s`, `10_000`.

Reading is strict where a guess could be wrong: a duration, size or rate without a unit is refused with the remedy, and
so is `64M` (a million or 1,048,576?). Writing gives the shortest whole number that reads back as the same value.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import NoReturn

from settled.errors import ContractError

_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,8}|[0-9]{1,3}(?:_[0-9]{3}){1,8}|[0-9]{1,30})(?:\.[0-9]{1,24})?"
_PART = re.compile(rf"({_NUMBER})\s*([A-Za-zµμ]+)\s*")
_DURATION = re.compile(rf"(?:{_NUMBER}\s*[A-Za-zµμ]+\s*)+\Z")
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)\Z")
_RATE = re.compile(rf"({_NUMBER})\s*([kM]?)\s*/\s*([a-z]+)\Z")
_COUNT = re.compile(rf"({_NUMBER})\s*([kM]?)\Z")
_PLAIN = re.compile(rf"({_NUMBER})\Z")

_MICROSECONDS = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_MORE_DURATIONS = {"w": 604_800_000_000, "min": 60_000_000, "µs": 1, "μs": 1}
_BYTES = {
    "TiB": 2**40,
    "TB": 10**12,
    "GiB": 2**30,
    "GB": 10**9,
    "MiB": 2**20,
    "MB": 10**6,
    "KiB": 2**10,
    "kB": 10**3,
    "B": 1,
}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_MORE_RATES = {"sec": 1, "m": 60}
_MANY = {"": 1, "k": 1_000, "M": 1_000_000}

DURATION_HINT = "write a number and us, ms, s, m, h, d or w, e.g. 8ms, 15m or 7d"
SIZE_HINT = "write a number and B, kB, MB, GB, TB (thousands) or KiB, MiB, GiB, TiB (1,024s), e.g. 600kB or 64MiB"
RATE_HINT = "write a number and /s, /min, /h or /d, e.g. 600/s"
COUNT_HINT = "write a whole number, e.g. 400, 2,400 or 10k"


def duration(text: str) -> float:
    """Seconds, to the microsecond. `1h30m` adds up; `0` alone is the one number that needs no unit."""
    text = text.strip()
    if text == "0":
        return 0.0
    if not _DURATION.match(text):
        _refuse(text, "a duration", DURATION_HINT)
    total = Fraction(0)
    for number, unit in _PART.findall(text):
        scale = _MICROSECONDS.get(unit) or _MORE_DURATIONS.get(unit)
        if scale is None:
            raise ContractError(f"{unit!r} is not a unit of time", value=text, hint=DURATION_HINT)
        total += _fraction(number) * scale
    if total.denominator != 1:
        raise ContractError(f"{text!r} is finer than a microsecond", value=text, hint="round it to whole microseconds")
    return float(total / 1_000_000)


def size(text: str, *, bare: bool = False) -> int:
    """Bytes. `bare` lets a number stand alone, for fields whose own name says bytes."""
    text = text.strip()
    found = _SIZE.match(text)
    if not found:
        _refuse(text, "a size", SIZE_HINT)
    number, unit = found.groups()
    if not unit and not bare and number != "0":
        raise ContractError(f"{text!r} has no unit", value=text, hint=SIZE_HINT)
    scale = _BYTES.get(unit or "B")
    if scale is None:
        _refuse_size_unit(text, number, unit)
    return _whole(_fraction(number) * scale, text, "bytes")


def rate(text: str) -> float:
    """Per second."""
    text = text.strip()
    found = _RATE.match(text)
    if not found:
        if _COUNT.match(text):
            raise ContractError(f"{text!r} does not say per what", value=text, hint=f"write {text}/s if it is a second")
        _refuse(text, "a rate", RATE_HINT)
    number, many, unit = found.groups()
    seconds = _SECONDS.get(unit) or _MORE_RATES.get(unit)
    if seconds is None:
        raise ContractError(f"'/{unit}' is not a unit of a rate", value=text, hint=RATE_HINT)
    value = float(_fraction(number) * _MANY[many] / seconds)
    if 0 < value < 1e-6:
        raise ContractError(f"{text!r} is less than one in eleven days", value=text, hint="write 0/s or more than that")
    return value


def count(text: str) -> int:
    """A whole number."""
    text = text.strip()
    found = _COUNT.match(text)
    if not found:
        _refuse(text, "a whole number", COUNT_HINT)
    return _whole(_fraction(found[1]) * _MANY[found[2]], text, "things to count")


def number(text: str) -> float:
    """A plain number such as a factor."""
    text = text.strip()
    if not _PLAIN.match(text):
        _refuse(text, "a number", "write a plain number, e.g. 2 or 1.5")
    return float(_fraction(text))


def show_duration(seconds: float) -> str:
    """The shortest whole number of one unit: 5400.0 is `90m`."""
    total = round(seconds * 1_000_000)
    return _shortest(total, _MICROSECONDS) if total else "0s"


def show_size(size: int) -> str:
    """The shortest whole number of one unit: 67108864 is `64MiB`, 600000 is `600kB`."""
    return _shortest(size, _BYTES) if size else "0B"


def show_rate(per_second: float) -> str:
    """A whole number per second, minute, hour or day, in this order of preference; else decimals per second."""
    for unit, seconds in _SECONDS.items():
        whole = round(per_second * seconds)
        if float(Fraction(whole, seconds)) == per_second:
            return f"{whole}/{unit}"
    return f"{show_number(per_second)}/s"


def show_count(count: int) -> str:
    return str(count)


def show_number(number: float) -> str:
    text = f"{Decimal(repr(float(number))):f}"
    return text.removesuffix(".0")


def _shortest(total: int, scales: dict[str, int]) -> str:
    fitting = [f"{total // scale}{unit}" for unit, scale in scales.items() if total % scale == 0]
    return min(fitting, key=len)


def _fraction(number: str) -> Fraction:
    return Fraction(number.replace(",", "").replace("_", ""))


def _whole(value: Fraction, text: str, what: str) -> int:
    if value.denominator != 1:
        raise ContractError(f"{text!r} is not a whole number of {what}", value=text, hint="round it")
    return value.numerator


def _refuse_size_unit(text: str, number: str, unit: str) -> NoReturn:
    hint, letter = SIZE_HINT, unit[:1].upper()
    if letter in "KMGT" and unit.upper() in {letter, f"{letter}B", f"{letter}IB"}:
        thousands = f"{'k' if letter == 'K' else letter}B"
        hint = f"write {number}{thousands} (thousands) or {number}{letter}iB (1,024s), whichever is meant"
    raise ContractError(f"{unit!r} is not a unit of size that has one meaning", value=text, hint=hint)


def _refuse(text: str, what: str, hint: str) -> NoReturn:
    shown = text if len(text) <= 60 else text[:60] + "…"
    if text.startswith("-"):
        raise ContractError(f"{shown!r} is below zero", value=text, hint=hint)
    if _PLAIN.match(text):
        raise ContractError(f"{shown!r} has no unit", value=text, hint=hint)
    raise ContractError(f"{shown!r} is not {what}", value=text, hint=hint)
