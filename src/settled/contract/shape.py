"""The shape of the model, read from its annotations: which fields a section has and what may stand in each.

`members` is one section; `leaves` is every field that holds a value, by dotted path as the file writes it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from settled.contract.kinds import Kind


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a section.

    key        its name in the file; `attribute` its name in the model
    section    the class of a nested section (with `many`: of each item of a list)
    kind       what a value must be; `choices` the words allowed instead of a kind
    many       a list of such
    optional   null is allowed
    required   it has no default
    """

    key: str
    attribute: str
    section: type[msgspec.Struct] | None = None
    kind: Kind | None = None
    choices: tuple[str, ...] = ()
    many: bool = False
    optional: bool = False
    required: bool = False
    default: Any = None

    @property
    def leaf(self) -> bool:
        return self.section is None or self.many

    def text(self, value: Any) -> str:
        """One value (of a list: one item) as it is written."""
        return self.kind.show(value) if self.kind else str(value)


def members(section: type[msgspec.Struct]) -> tuple[Member, ...]:
    """The fields of a section, in the order in which they are documented and shown."""
    return _members(section)


@functools.cache
def _members(section: Any) -> tuple[Member, ...]:
    hints = get_type_hints(section, include_extras=True)
    return tuple(_member(field, hints[field.name]) for field in msgspec.structs.fields(section))


def leaves(section: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, Member]]:
    """(dotted path, member) of every field that holds a value. A list is one leaf."""
    for member in members(section):
        here = f"{path}.{member.key}" if path else member.key
        if member.leaf:
            yield here, member
        elif member.section is not None:
            yield from leaves(member.section, here)


def value_at(contract: msgspec.Struct, path: str) -> Any:
    """The value at a dotted path."""
    value: Any = contract
    for key in path.split("."):
        value = getattr(value, next(m.attribute for m in members(type(value)) if m.key == key))
    return value


def _member(field: msgspec.structs.FieldInfo, hint: Any) -> Member:
    optional = many = False
    if get_origin(hint) in (Union, types.UnionType):
        hint, *rest = [arm for arm in get_args(hint) if arm is not types.NoneType]
        assert not rest, f"{field.name} has more than one type"
        optional = True
    if get_origin(hint) is tuple:
        hint, many = get_args(hint)[0], True
    kind: Kind | None = None
    choices: tuple[str, ...] = ()
    section: type[msgspec.Struct] | None = None
    if get_origin(hint) is Annotated:
        kind = next(extra for extra in get_args(hint)[1:] if isinstance(extra, Kind))
    elif get_origin(hint) is Literal:
        choices = get_args(hint)
    else:
        section = hint
    return Member(
        key=field.encode_name,
        attribute=field.name,
        section=section,
        kind=kind,
        choices=choices,
        many=many,
        optional=optional,
        required=field.required,
        default=None if field.required else field.default,
    )
