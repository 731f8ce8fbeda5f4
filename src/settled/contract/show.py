"""A contract as YAML: every field on a line of its own, and `# default` on each line that says nothing new."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from settled.contract.shape import Member, members

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def text(contract: msgspec.Struct, plain: msgspec.Struct, *, stated: tuple[str, ...] = ()) -> str:
    """The YAML text. `plain` is the contract as it would be without further fields; `stated` are never defaults."""
    return "".join(line + "\n" for line in _lines(contract, plain, stated, ""))


def _lines(here: msgspec.Struct, plain: msgspec.Struct, stated: tuple[str, ...], indent: str) -> Iterator[str]:
    for member in members(type(here)):
        value, default = getattr(here, member.attribute), getattr(plain, member.attribute)
        if not member.leaf:
            yield f"{indent}{member.key}:"
            yield from _lines(value, default, (), indent + "  ")
            continue
        line = f"{indent}{member.key}: {_value(member, value)}"
        yield f"{line}  # default" if value == default and member.key not in stated else line


def _value(member: Member, value: Any) -> str:
    if value is None:
        return "null"
    if member.many:
        return "[" + ", ".join(_item(member, item) for item in value) + "]"
    return _scalar(member, value)


def _item(member: Member, item: Any) -> str:
    if member.section is None:
        return _scalar(member, item)
    pairs = (f"{part.key}: {_value(part, getattr(item, part.attribute))}" for part in members(member.section))
    return "{" + ", ".join(pairs) + "}"


def _scalar(member: Member, value: Any) -> str:
    text = member.text(value)
    return text if member.kind is not None and member.kind.numeric else quoted(text)


def quoted(text: str) -> str:
    """The text as it is where YAML reads it as text, else in double quotes with what cannot be seen escaped."""
    if _PLAIN.match(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
