"""What may stand in a field: a kind reads the text of a value, shows it again, and holds its bounds. The model's
annotations name kinds; loading, showing and the documentation all read them from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from settled.contract import units
from settled.errors import ContractError, InvalidMessage
from settled.record import checked_name, checked_text


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of value.

    word      what messages and documentation call it
    read      text into value; raises ContractError with a hint
    show      value into text that reads back as the same value
    numeric   false for text, where a bare number or true is a slip of quoting
    least, most   bounds, in the value's own unit
    """

    word: str
    read: Callable[[str], Any]
    show: Callable[[Any], str]
    numeric: bool = True
    least: float | None = None
    most: float | None = None

    def value(self, text: str) -> Any:
        """The value, or ContractError."""
        value = self.read(text)
        if self.least is not None and value < self.least:
            raise ContractError(
                f"{text!r} is below the least that is allowed, {self.show(self.least)}",
                value=text,
                hint=f"write {self.show(self.least)} or more",
            )
        if self.most is not None and value > self.most:
            raise ContractError(
                f"{text!r} is above the most that is allowed, {self.show(self.most)}",
                value=text,
                hint=f"write {self.show(self.most)} or less",
            )
        return value


_TYPE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*\Z")


def _name(text: str) -> str:
    return checked_name("this", text)


def _text(text: str) -> str:
    try:
        return checked_text("this", text) or ""
    except InvalidMessage as fault:
        raise ContractError(fault.message, value=text, hint="write 1 to 256 bytes of ordinary text") from None


def _type_name(text: str) -> str:
    if not _TYPE.match(_text(text)):
        raise ContractError(
            f"{text!r} is not the dotted name of an exception type",
            value=text,
            hint="write e.g. requests.exceptions.Timeout, or ValueError for a built-in one",
        )
    return text


def _truth(text: str) -> bool:
    return text.lower() == "true"


def _show_truth(value: bool) -> str:
    return "true" if value else "false"


def _bytes(text: str) -> int:
    return units.size(text, bare=True)


_CENTURY = 36_525 * 86_400.0
_EXBIBYTE = 2**60

DURATION = Kind(word="duration", read=units.duration, show=units.show_duration, least=1e-6, most=_CENTURY)
PAUSE = Kind(word="duration", read=units.duration, show=units.show_duration, least=0.0, most=_CENTURY)
SIZE = Kind(word="size", read=units.size, show=units.show_size, least=1, most=_EXBIBYTE)
BYTES = Kind(word="size", read=_bytes, show=units.show_size, least=1, most=_EXBIBYTE)
RATE = Kind(word="rate", read=units.rate, show=units.show_rate, least=1 / 86_400, most=1e9)
SPARE = Kind(word="rate", read=units.rate, show=units.show_rate, least=0.0, most=1e9)
COUNT = Kind(word="count", read=units.count, show=units.show_count, least=1, most=10**9)
ALLOWANCE = Kind(word="count", read=units.count, show=units.show_count, least=0, most=10**9)
PARTITIONS = Kind(word="count", read=units.count, show=units.show_count, least=1, most=10_000)
FACTOR = Kind(word="number", read=units.number, show=units.show_number, least=1.0, most=1000.0)
TRUTH = Kind(word="truth", read=_truth, show=_show_truth)  # the one kind that is not read from text
NAME = Kind(word="name", read=_name, show=str, numeric=False)
TEXT = Kind(word="text", read=_text, show=str, numeric=False)
TYPE_NAME = Kind(word="exception type", read=_type_name, show=str, numeric=False)
