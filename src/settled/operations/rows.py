"""Rows of a file of events, one by one, each with its line number: JSON lines or CSV, plain or gzip.

A row that cannot be read is a BadRow with its number and reason; the rows after it still come. Memory is bounded by
the longest line that is read (`LONGEST`), whatever the file's size.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from settled.errors import ContractError, SettledError

Format = Literal["jsonl", "csv", "jsonl.gz", "csv.gz"]
FORMATS: tuple[Format, ...] = ("jsonl", "csv", "jsonl.gz", "csv.gz")
LONGEST = 64 * 1024 * 1024


Cell = str | msgspec.Raw  # text from CSV; anything from JSON, undecoded


class Row(msgspec.Struct, frozen=True, gc=False):
    """One event: `cells` by column; `raw` is the line as it stands (JSON lines only)."""

    line: int
    cells: dict[str, Any]  # of Cell: msgspec takes no union with Raw
    raw: bytes


class BadRow(msgspec.Struct, frozen=True):
    """A line that is no event, and why."""

    line: int
    reason: str
    raw: bytes


def format_of(name: str, stated: str | None) -> Format:
    """The format that was stated, else by the name's end; standard input is JSON lines unless stated."""
    for known in FORMATS:
        if stated == known or (stated is None and name.lower().endswith("." + known)):
            return known
    if stated is None and name == "-":
        return "jsonl"
    if stated is None and name.lower().endswith((".ndjson", ".ndjson.gz")):
        return "jsonl.gz" if name.lower().endswith(".gz") else "jsonl"
    raise ContractError(
        f"the format of {name!r} is not known" if stated is None else f"{stated!r} is not a format",
        field="--format",
        value=stated,
        hint=f"use one of {', '.join(FORMATS)}",
    )


class Reader:
    """The rows of one file. `position` is how many of its bytes were read; the caller closes `file`."""

    def __init__(self, file: BinaryIO, form: Format) -> None:
        self._file = file
        self._csv = form.startswith("csv")
        self._lines: BinaryIO = gzip.GzipFile(fileobj=file) if form.endswith(".gz") else file  # type: ignore[assignment]
        self.columns: list[str] | None = None

    @property
    def position(self) -> int | None:
        """None where it cannot be known (a pipe)."""
        try:
            return self._file.tell()
        except OSError:
            return None

    def rows(self) -> Iterator[Row | BadRow]:
        """Raises ContractError for a CSV header that cannot be used, SettledError for a damaged gzip file."""
        try:
            yield from self._csv_rows() if self._csv else self._json_rows()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise SettledError(
                f"the gzip file is damaged: {error}", hint="what came before was read; fetch the file again"
            ) from error

    def _json_rows(self) -> Iterator[Row | BadRow]:
        for number, line in enumerate(self._read_lines(), 1):
            if line is None:
                yield BadRow(number, f"the line has more than {LONGEST} bytes", b"")
                continue
            text = line.strip()
            if not text:
                continue
            try:
                text.decode()
                yield Row(number, _OBJECT.decode(text), text)
            except UnicodeDecodeError:
                yield BadRow(number, "not UTF-8", text)
            except msgspec.ValidationError:
                yield BadRow(number, "not a JSON object", text)
            except msgspec.DecodeError as error:
                yield BadRow(number, str(error), text)

    def _csv_rows(self) -> Iterator[Row | BadRow]:
        csv.field_size_limit(LONGEST)
        reader = csv.reader(self._text_lines(), strict=True)
        columns = self.columns = _header(reader)
        while True:
            first = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield BadRow(max(first, reader.line_num), f"not CSV: {error}", b"")
                continue
            number = reader.line_num
            if not cells:
                continue
            if len(cells) != len(columns):
                yield BadRow(number, f"{len(cells)} cells, the header has {len(columns)}", _joined(cells))
            elif any(map(_SURROGATES.search, cells)):
                yield BadRow(number, "not UTF-8", _joined(cells))
            else:
                yield Row(number, dict(zip(columns, cells, strict=True)), b"")

    def _text_lines(self) -> Iterator[str]:
        for line in self._read_lines():
            yield "\0" * (LONGEST + 1) if line is None else line.decode(errors="surrogateescape")

    def _read_lines(self) -> Iterator[bytes | None]:
        """Lines with their ends, none for one that is too long; a byte order mark is left out."""
        line = self._lines.readline(LONGEST)
        line = line.removeprefix(b"\xef\xbb\xbf")
        while line:
            if len(line) == LONGEST and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = self._lines.readline(LONGEST)
                yield None
            else:
                yield line
            line = self._lines.readline(LONGEST)


def opened(name: str, stdin: BinaryIO) -> BinaryIO:
    """The file, or standard input for `-`. Raises ContractError."""
    if name == "-":
        return stdin
    try:
        return Path(name).open("rb")
    except FileNotFoundError:
        raise ContractError(
            f"there is no file {name!r}", field="FILE", hint="give a path, or - to read a pipe"
        ) from None
    except (OSError, ValueError) as error:
        raise ContractError(f"{name!r} cannot be read: {error}", field="FILE", hint="give a readable file") from None


def _header(reader: Iterator[list[str]]) -> list[str]:
    try:
        columns = next(reader, None)
    except csv.Error as error:
        raise ContractError(f"the CSV header cannot be read: {error}", field="FILE", hint="mend line 1") from None
    if not columns:
        raise ContractError("the CSV file has no header row", field="FILE", hint="name the columns in line 1")
    doubled = sorted({name for name in columns if columns.count(name) > 1})
    if doubled or "" in columns:
        fault = f"names {doubled[0]!r} twice" if doubled and doubled[0] else "has a column without a name"
        raise ContractError(f"the CSV header {fault}", field="FILE", hint="give each column a name of its own")
    return columns


def _joined(cells: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().rstrip("\r\n").encode(errors="surrogateescape")


_SURROGATES = re.compile("[\udc80-\udcff]")  # what `surrogateescape` makes of bytes that are not UTF-8
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
