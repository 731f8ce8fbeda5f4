"""One view of two sources: a YAML file's nodes, with line and column, and a Python mapping.

Children are made when asked for, so an alias that refers to itself or multiplies does no harm: only what the model has
a place for is ever walked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from settled.contract.units import show_number
from settled.errors import ContractError

Form = Literal["text", "number", "truth", "null", "empty", "list", "mapping", "other"]

_STANDARD = "tag:yaml.org,2002:"
_SCALARS: dict[str, Form] = {"int": "number", "float": "number", "bool": "truth", "null": "null"}


class Node(msgspec.Struct, frozen=True):
    """A value and where it stands. `text` is a scalar as written; `raw` is what errors carry."""

    form: Form
    text: str = ""
    raw: Any = None
    line: int | None = None
    column: int | None = None
    inner: Any = None

    @property
    def words(self) -> str:
        """What it is, for a message."""
        match self.form:
            case "text" | "number":
                shown = self.text if len(self.text) <= 60 else self.text[:60] + "…"
                return f"the {self.form} {shown!r}" if self.form == "text" else f"the number {shown}"
            case "truth":
                return self.text
            case "null":
                return "null"
            case "empty":
                return "nothing"
            case "list" | "mapping":
                return f"a {self.form}"
            case _:
                return self.text

    def items(self) -> list[Node]:
        return [_node(item) for item in self._children()]

    def pairs(self) -> list[tuple[Node, Node]]:
        return [(_node(key), _node(value)) for key, value in self._children()]

    def _children(self) -> Any:
        if isinstance(self.inner, Mapping):
            return self.inner.items()
        return self.inner if isinstance(self.inner, list | tuple) else self.inner.value


def of_yaml(text: str, source: str) -> Node:
    """The document's root. Raises ContractError with the place of what is not YAML."""
    try:
        root = YAML(typ="rt").compose(text)
    except MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise ContractError(
            f"this is not YAML: {fault.problem or fault.context}",
            source=source,
            line=place[0],
            column=place[1],
            hint="mind the indentation (spaces, no tabs); text that holds ': ' or starts with a sign needs quotes",
        ) from None
    except (YAMLError, RecursionError) as fault:
        raise ContractError(
            "this is not YAML that a contract could be: " + _reason(fault),
            source=source,
            hint="a contract is plain text, a few sections deep; `settled init` writes one to start from",
        ) from None
    return Node("empty") if root is None else _node(root)


def of_python(mapping: Mapping[str, Any]) -> Node:
    return _python(mapping)


def _reason(fault: Exception) -> str:
    if isinstance(fault, RecursionError):
        return "it is nested too deep"
    character, position = getattr(fault, "character", None), getattr(fault, "position", None)
    if isinstance(character, int) and isinstance(position, int):
        return f"it holds the character U+{character:04X}, which no YAML file may"
    return "it holds a character that no YAML file may"


def _node(value: Any) -> Node:
    return _yaml(value) if hasattr(value, "start_mark") else _python(value)


def _yaml(node: Any) -> Node:
    line, column = node.start_mark.line + 1, node.start_mark.column + 1
    tag = str(node.tag)
    if not tag.startswith(_STANDARD) or "/" in tag.removeprefix(_STANDARD):
        return Node("other", f"a value tagged {tag}", tag, line, column)
    if node.id == "mapping":
        return Node("mapping", "", "a mapping", line, column, node)
    if node.id == "sequence":
        return Node("list", "", "a list", line, column, node)
    form = _SCALARS.get(tag.removeprefix(_STANDARD), "text")
    if form == "null" and not node.value:
        form = "empty"
    return Node(form, node.value, None if form in {"null", "empty"} else node.value, line, column)


def _python(value: Any) -> Node:
    match value:
        case None:
            return Node("null")
        case bool():
            return Node("truth", str(value).lower(), value)
        case int():
            return Node("number", str(value) if abs(value) < 10**40 else "above 10^40", value)
        case float():
            return Node("number", show_number(value) if math.isfinite(value) else str(value), value)
        case timedelta():
            return Node("text", f"{value // timedelta(microseconds=1)}us", value)
        case str():
            return Node("text", str(value), value)
        case Mapping():
            return Node("mapping", "", value, inner=value)
        case list() | tuple():
            return Node("list", "", value, inner=value)
        case _:
            return Node("other", f"a value of type {type(value).__name__}", value)
