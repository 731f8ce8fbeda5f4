"""From a tree of nodes to the model: every value read by its kind, every fault collected with its place and remedy."""

from __future__ import annotations

import difflib
import re
from typing import Any, TypeVar

import msgspec

from settled.contract import kinds
from settled.contract.model import FORMAT, HINTS_KEPT_S, AttemptLimits, Contract, Delivery, Retention
from settled.contract.shape import Member, leaves, members
from settled.contract.tree import Node
from settled.errors import ContractError

S = TypeVar("S", bound=msgspec.Struct)

Places = dict[str, tuple[int | None, int | None]]

_CUT_NUMBER = re.compile(r"[0-9]{3}(/[a-z]+|[A-Za-z]+)?\Z")


class Builder:
    """Reads one contract. `errors` holds all faults in the order of the file, `places` where each field stands."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.errors: list[ContractError] = []
        self.places: Places = {}

    def contract(self, root: Node) -> Contract | None:
        """The contract, or none with `errors`."""
        found = self._fields(Contract, root, "")
        named = bool(found.get("name") or getattr(found.get("transport"), "topic", ""))
        stated = "name" in self.places or "transport.topic" in self.places
        if not named and not stated:
            self._fault(root, "name", "it is missing, and so is transport.topic", "add `name: OrderPlaced` at the top")
        if found.get("settled", FORMAT) != FORMAT:
            line, column = self.places["settled"]
            self._fault(
                Node("number", raw=found["settled"], line=line, column=column),
                "settled",
                f"format {found['settled']} is not known here, this release reads format {FORMAT}",
                f"write `settled: {FORMAT}`, or use the release that the contract was written for",
            )
        return None if self.errors else self._made(found)

    def _made(self, found: dict[str, Any]) -> Contract | None:
        try:
            return Contract(**self._by_form(found))
        except ContractError as fault:  # what is derived (the group's name) can be too long
            field = "delivery.group" if fault.field == "group" else fault.field
            self._fault(Node("text", raw=fault.value), field, fault.message, f"state {field}: {fault.hint}")
            return None

    def _by_form(self, found: dict[str, Any]) -> dict[str, Any]:
        """Defaults that the form brings along: a hint is lost with its reader, and is worth nothing soon."""
        if getattr(found.get("transport"), "form", "log") != "notification":
            return found
        found = {"delivery": Delivery(), "retention": Retention(), **found}
        if "delivery.mode" not in self.places:
            found["delivery"] = msgspec.structs.replace(found["delivery"], mode="at-most-once")
        if "retention.age" not in self.places:
            found["retention"] = msgspec.structs.replace(found["retention"], age=HINTS_KEPT_S)
        return found

    def _section(self, section: type[S], node: Node, path: str) -> S | None:
        """The section as a model value; none when something in it is wrong."""
        before = len(self.errors)
        if section is AttemptLimits and node.form in {"number", "text"}:
            return self._one_limit(section, node, path)
        found = self._fields(section, node, path)
        for member in members(section):
            if member.required and member.attribute not in found and len(self.errors) == before:
                self._fault(node, f"{path}.{member.key}", "it is missing", f"add `{member.key}: …`")
        return section(**found) if len(self.errors) == before else None

    def _one_limit(self, section: type[S], node: Node, path: str) -> S | None:
        """`attempts: 5`: so many for a defect, and at most so many for a lost worker."""
        most = self._leaf(members(AttemptLimits)[1], node, path)
        if most is None:
            return None
        return section(defect=most, worker_lost=min(AttemptLimits().worker_lost, most))

    def _fields(self, section: type[msgspec.Struct], node: Node, path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if node.form == "empty":
            return found
        if node.form != "mapping":
            keys = ", ".join(member.key for member in members(section))
            self._fault(node, path, f"must be a section, not {node.words}", f"write its fields under it: {keys}")
            return found
        seen: set[str] = set()
        known = {member.key: member for member in members(section)}
        for key, value in node.pairs():
            member = known.get(key.text) if key.form == "text" else None
            here = f"{path}.{key.text}" if path else key.text
            if member is None:
                self._unknown(key, here, path, list(known))
            elif member.key in seen:
                self._fault(key, here, "it stands here a second time", "keep one of them")
            else:
                seen.add(member.key)
                self.places[here] = (value.line, value.column)
                before = len(self.errors)
                read = self._member(member, value, here)
                if len(self.errors) == before:
                    found[member.attribute] = read
        return found

    def _member(self, member: Member, node: Node, path: str) -> Any:
        if not member.leaf and member.section is not None:
            return self._section(member.section, node, path)
        if node.form == "null" and member.optional:
            return None
        if not member.many:
            return self._leaf(member, node, path)
        if node.form != "list":
            example = f"[{node.text}]" if node.form == "text" else "[first, second]"
            self._fault(node, path, f"must be a list, not {node.words}", f"write {example}, or [] for none")
            return None
        read = self._leaf if member.section is None else self._entry
        return tuple(read(member, item, f"{path}[{place}]") for place, item in enumerate(node.items()))

    def _entry(self, member: Member, node: Node, path: str) -> Any:
        assert member.section is not None
        return self._section(member.section, node, path)

    def _leaf(self, member: Member, node: Node, path: str) -> Any:
        """A single value, or none and a fault."""
        if member.kind is None:
            return self._choice(member, node, path)
        kind = member.kind
        if node.form in {"null", "empty"}:
            remedy = "write null if that is meant" if member.optional else "remove the line to have the default"
            self._fault(node, path, f"has no value, a {kind.word} is needed", f"write one, or {remedy}")
        elif kind is kinds.TRUTH and node.form != "truth":
            self._fault(node, path, f"must be true or false, not {node.words}", "write true or false, without quotes")
        elif not kind.numeric and node.form in {"number", "truth"}:
            self._fault(node, path, f"must be text, not {node.words}", f'put it in quotes: "{node.text}"')
        elif kind is not kinds.TRUTH and node.form not in {"text", "number"}:
            self._fault(node, path, f"must be a {kind.word}, not {node.words}", f"write one {kind.word}")
        else:
            try:
                return kind.value(node.text)
            except ContractError as fault:
                self._fault(node, path, fault.message, fault.hint)
        return None

    def _choice(self, member: Member, node: Node, path: str) -> str | None:
        if node.form == "text" and node.text in member.choices:
            return node.text
        allowed = ", ".join(member.choices)
        near = difflib.get_close_matches(node.text.lower(), member.choices, n=1)
        hint = f"did you mean {near[0]}? Allowed: {allowed}" if near else f"allowed: {allowed}"
        self._fault(node, path, f"{node.words} is not one of its words", hint)
        return None

    def _unknown(self, key: Node, here: str, path: str, known: list[str]) -> None:
        if key.form != "text" and not _CUT_NUMBER.match(key.text):
            self._fault(key, path, f"a field's name must be text, not {key.words}", f"its fields: {', '.join(known)}")
            return
        self._fault(key, here, "there is no such field", _nearest(key.text, known))

    def _fault(self, node: Node, field: str, message: str, hint: str) -> None:
        self.errors.append(
            ContractError(
                message,
                hint=hint,
                field=field,
                value=node.raw,
                source=self.source,
                line=node.line,
                column=node.column,
            )
        )


def _nearest(word: str, known: list[str]) -> str:
    """The remedy for a field's name that is not known here."""
    if word == "<<":
        return "merge keys are not read: write the fields out"
    if _CUT_NUMBER.match(word):
        return 'inside { } a comma ends a value: put a number that has one in quotes, e.g. "2,400/s"'
    near = difflib.get_close_matches(word.lower().replace("-", "_"), known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    elsewhere = [path for path, _ in leaves(Contract) if path.rpartition(".")[2] == word]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"fields here: {', '.join(known)}"
