"""A contract from a file or from keywords. Every fault is found in one go and named with source, line, column, field,
value and remedy.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from settled.contract.build import Builder, Places
from settled.contract.model import Contract
from settled.contract.tree import Node, of_python, of_yaml
from settled.errors import ContractError

MOST_BYTES = 1_000_000  # of a contract file


class ContractErrors(ContractError):
    """All faults of one contract, in `errors`; the other attributes are those of the first."""

    def __init__(self, errors: Sequence[ContractError]) -> None:
        first = errors[0]
        super().__init__(
            first.message,
            hint=first.hint,
            field=first.field,
            value=first.value,
            source=first.source,
            line=first.line,
            column=first.column,
        )
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def load(path: str | os.PathLike[str]) -> Contract:
    """The contract in a YAML file; fields that are not stated have their defaults. Raises ContractError."""
    return load_with_places(path)[0]


def load_with_places(path: str | os.PathLike[str]) -> tuple[Contract, Places]:
    """The contract, and for each field that the file states its (line, column), both from 1."""
    return loads(_text(path), source=os.fspath(path))


def loads(text: str, *, source: str = "contract") -> tuple[Contract, Places]:
    """As `load_with_places`, from the file's text."""
    root = of_yaml(text, source)
    if root.form == "empty":
        raise ContractError("the file is empty", source=source, hint="`name: OrderPlaced` alone is a contract")
    if root.form != "mapping":
        raise ContractError(
            f"a contract is a list of `field: value` lines, not {root.words}",
            source=source,
            line=root.line,
            column=root.column,
            hint="`settled init` writes one to start from",
        )
    return _built(root, source)


def from_mapping(mapping: Mapping[str, Any], *, source: str = "App(...)") -> Contract:
    """The contract from nested mappings, shaped as the file is. A duration may also be a timedelta."""
    return _built(of_python(mapping), source)[0]


def with_changes(contract: Contract, mapping: Mapping[str, Any], *, source: str = "App(...)") -> Contract:
    """The contract with what the mapping states in the place of what it said; the rest stays."""
    stated = from_mapping({"name": contract.name, "version": contract.version, **mapping}, source=source)
    changed: Contract = _merged(contract, stated, mapping)
    return changed


def _merged(before: Any, stated: Any, mapping: Mapping[str, Any]) -> Any:
    changes = {}
    for key, value in mapping.items():
        name = key.replace("-", "_")
        new = getattr(stated, name)
        whole = not isinstance(value, Mapping) or not isinstance(new, msgspec.Struct)
        changes[name] = new if whole else _merged(getattr(before, name), new, value)
    return msgspec.structs.replace(before, **changes)


def _built(root: Node, source: str) -> tuple[Contract, Places]:
    builder = Builder(source)
    contract = builder.contract(root)
    if contract is None:
        raise ContractErrors(builder.errors)
    return contract, builder.places


def _text(path: str | os.PathLike[str]) -> str:
    source = os.fspath(path)
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            raise ContractError("this is a directory", source=source, hint="give the path of the contract file in it")
        if not stat.S_ISREG(kind):
            raise ContractError("this is not a file", source=source, hint="give the path of a contract file")
        with Path(path).open("rb") as file:
            held = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        hint = "give the path of a contract, or write one with `settled init DIR`"
        raise ContractError("there is no such file", source=source, hint=hint) from None
    except OSError as fault:
        hint = "make the file readable for this user"
        raise ContractError(f"it cannot be read: {fault.strerror}", source=source, hint=hint) from None
    except ValueError:
        hint = "give a path without NUL characters"
        raise ContractError("this cannot be a path", source=repr(source), hint=hint) from None
    if len(held) > MOST_BYTES:
        hint = "give the path of a contract; a real one has a few kB"
        raise ContractError(f"the file has more than {MOST_BYTES:,} bytes", source=source, hint=hint)
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = held.count(b"\n", 0, fault.start) + 1
        column = fault.start - (held.rfind(b"\n", 0, fault.start) + 1) + 1
        raise ContractError(
            "this is not UTF-8 text", source=source, line=line, column=column, hint="save the file as UTF-8"
        ) from None
