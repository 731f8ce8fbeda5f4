"""What a drill publishes: records from a file of the user's, or messages of its own making, each under an own id."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from settled.drills.roles import REJECT
from settled.errors import ContractError
from settled.record import Message, checked

KEYS = 7


class Supply:
    """Messages to publish, each once. A file's records are never repeated: when they are used up, `take` gives none."""

    def __init__(self, topic: str, prefix: str, file: Path | None = None, *, keys: int = KEYS) -> None:
        self._topic, self._prefix, self._keys = topic, prefix, keys
        self._numbers = itertools.count()
        self._made = self._generated() if file is None else self._of_file(file)

    def take(self, count: int, *, reject_every: int = 0, accept: Path | None = None) -> list[Message]:
        """The next messages. Each `reject_every`-th is to be rejected by the drill until the file `accept` is there."""
        taken = list(itertools.islice(self._made, count))
        if not reject_every or accept is None:
            return taken
        header = (REJECT, str(accept).encode())
        return [
            msgspec.structs.replace(message, headers=(*message.headers, header))
            if number % reject_every == 0
            else message
            for number, message in enumerate(taken)
        ]

    def one_key(self) -> None:
        """From now on all messages of the drill's own making have one key."""
        self._keys = 1

    def _generated(self) -> Iterator[Message]:
        for number in self._numbers:
            key = f"k{number % self._keys}"
            yield Message(
                topic=self._topic,
                key=key.encode(),
                value=msgspec.json.encode({"n": number, "key": key}),
                headers=(("drill", None), ("drill", b"\x00\xff")),
                id=f"{self._prefix}{number}",
                type="drill",
                version=number // self._keys + 1,
            )

    def _of_file(self, path: Path) -> Iterator[Message]:
        try:
            lines = path.open("rb")
        except OSError as error:
            raise ContractError(
                f"{path} cannot be read: {error.strerror}", field="records", hint="give a file"
            ) from error
        with lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield self._of_line(path, number, line)

    def _of_line(self, path: Path, number: int, line: bytes) -> Message:
        """One JSON object: `value` is needed; key, id, type, version and headers where there are any. A line without
        `value` is a value as a whole."""
        try:
            row: Any = msgspec.json.decode(line)
            if not isinstance(row, dict) or "value" not in row:
                row = {"value": row}
            headers = row.get("headers") or {}
            pairs = headers.items() if isinstance(headers, dict) else headers
            return checked(
                Message(
                    topic=self._topic,
                    key=_bytes(row.get("key")),
                    value=_bytes(row["value"]),
                    headers=tuple((str(name), _bytes(value)) for name, value in pairs),
                    id=f"{self._prefix}{row.get('id', number)}",
                    type=row.get("type"),
                    version=row.get("version"),
                )
            )
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise ContractError(
                f"line {number} is no record: {error}",
                field="records",
                source=str(path),
                line=number,
                column=1,
                hint='write one JSON object a line, e.g. {"key": "o-1", "value": {"sku": "x"}}',
            ) from error


def _bytes(part: Any) -> bytes | None:
    if part is None or isinstance(part, bytes):
        return part
    return part.encode() if isinstance(part, str) else msgspec.json.encode(part)
