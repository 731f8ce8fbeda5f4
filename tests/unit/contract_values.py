"""Any contract at all, as a hypothesis strategy made from the model's own shape."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from settled.contract import kinds
from settled.contract.model import Contract
from settled.contract.shape import Member, members

_NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True)
_TEXTS = st.one_of(
    st.sampled_from(
        ["no", "null", "true", "7", "1e5", "a: b", "# x", " ", "'", '"', "\\", "\t", "\u2028", "\x85", "é"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40),
)


def _kind(kind: kinds.Kind) -> st.SearchStrategy[Any]:
    if kind is kinds.NAME:
        return _NAMES
    if kind is kinds.TEXT:
        return _TEXTS
    if kind is kinds.TYPE_NAME:
        return st.sampled_from(["ValueError", "requests.exceptions.Timeout", "a.b.ÄError"])
    if kind is kinds.TRUTH:
        return st.booleans()
    least, most = kind.least or 0, kind.most or 0
    if kind.word == "duration":
        return st.integers(round(least * 10**6), round(most * 10**6)).map(lambda us: us / 10**6)
    if kind.word in {"size", "count"}:
        return st.integers(int(least), int(most))
    return st.floats(min_value=max(least, 1e-6), max_value=most)


def _member(member: Member) -> st.SearchStrategy[Any]:
    if member.section is not None:
        one: st.SearchStrategy[Any] = section(member.section)
    else:
        one = _kind(member.kind) if member.kind else st.sampled_from(member.choices)
    if member.many:
        return st.lists(one, max_size=3).map(tuple)
    return st.one_of(st.none(), one) if member.optional else one


def section(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{member.attribute: _member(member) for member in members(cls)})


def contracts() -> st.SearchStrategy[Contract]:
    return section(Contract).map(lambda contract: msgspec.structs.replace(contract, settled=1))
