"""The guard around a handler's connection: it may write, but not end the transaction or change the connection.

A statement's text is judged once and remembered. PostgreSQL itself refuses COMMIT inside DO blocks and procedures that
run in a transaction; what goes around psycopg altogether is noticed when the unit settles (see `session`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import psycopg
from psycopg.rows import TupleRow

from settled.errors import Refused

ENDING = frozenset({"commit", "end", "rollback", "abort", "begin", "start", "savepoint", "release"})
SETTING = frozenset({"set", "reset", "discard"})
_PART = re.compile(
    r"--[^\n]*|\s+|(?P<block>/\*)|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
    r"|(?P<dollar>\$(?:[A-Za-z_]\w*)?\$)|(?P<end>;)|(?P<word>\w+)|(?P<other>.)",
    re.DOTALL,
)
_BLOCK = re.compile(r"/\*|\*/")
_REMEMBERED = 1000


def first_words(sql: str) -> Iterator[tuple[str, str]]:
    """The first two words of each statement in `sql`, lower case."""
    place, words, closed = 0, [""] * 0, False
    while place < len(sql):
        part = _PART.match(sql, place)
        assert part is not None  # the last alternative takes any character
        place = part.end()
        if part["block"]:
            place = _after_comment(sql, place)
        elif part["dollar"]:
            found = sql.find(part["dollar"], place)
            place = len(sql) if found < 0 else found + len(part["dollar"])
        elif part["end"]:
            if words:
                yield words[0], words[1] if len(words) > 1 else ""
            words, closed = [], False
        elif part["word"] and not closed:
            words.append(part["word"].lower())
            closed = len(words) == 2
    if words:
        yield words[0], words[1] if len(words) > 1 else ""


def _after_comment(sql: str, place: int) -> int:
    depth = 1
    while depth:
        mark = _BLOCK.search(sql, place)
        if mark is None:
            return len(sql)
        depth += 1 if mark.group() == "/*" else -1
        place = mark.end()
    return place


class GuardedConnection(psycopg.Connection[TupleRow]):
    """A connection whose cursors judge statements while `guarded` is set."""

    guarded = False
    refusal: Refused | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = GuardedCursor
        self.allowed: set[str] = set()

    def judge(self, query: Any) -> None:
        text = query if isinstance(query, str) else _text(query, self)
        if text in self.allowed:
            return
        for first, second in first_words(text):
            if first in ENDING or (first, second) == ("prepare", "transaction"):
                self.refuse(first.upper())
            if first in SETTING and second != "local":
                self.refuse(f"{first.upper()} {second}".rstrip(), "settings of the connection are settled's: SET LOCAL")
        if len(self.allowed) >= _REMEMBERED:
            self.allowed.clear()
        self.allowed.add(text)

    def refuse(self, what: str, hint: str = "") -> NoReturn:
        hint = hint or "return from the handler: settled commits; raise: settled rolls back"
        self.refusal = Refused(f"{what} in a handler is refused", hint=hint)
        raise self.refusal

    def commit(self) -> None:
        if self.guarded:
            self.refuse("commit()")
        super().commit()

    def rollback(self) -> None:
        if self.guarded:
            self.refuse("rollback()")
        super().rollback()

    def transaction(self, *args: Any, **kwargs: Any) -> Any:
        if self.guarded:
            self.refuse("transaction()")
        return super().transaction(*args, **kwargs)


class GuardedCursor(psycopg.Cursor[TupleRow]):
    """Its statements are judged while the connection is guarded."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> GuardedCursor:
        connection: Any = self._conn
        if connection.guarded and (type(query) is not str or query not in connection.allowed):
            connection.judge(query)
        super().execute(query, params, **options)
        return self

    def executemany(self, query: Any, params_seq: Any, *, returning: bool = False) -> None:
        connection: Any = self._conn
        if connection.guarded:
            connection.judge(query)
        super().executemany(query, params_seq, returning=returning)

    def copy(self, statement: Any, params: Any = None, **options: Any) -> Any:
        connection: Any = self._conn
        if connection.guarded:
            connection.judge(statement)
        return super().copy(statement, params, **options)

    def stream(self, query: Any, params: Any = None, **options: Any) -> Any:
        connection: Any = self._conn
        if connection.guarded:
            connection.judge(query)
        return super().stream(query, params, **options)


def _text(query: Any, connection: psycopg.Connection[TupleRow]) -> str:
    if isinstance(query, bytes):
        return query.decode("utf-8", "replace")
    return str(query.as_string(connection))
