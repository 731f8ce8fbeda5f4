"""Arrays as PostgreSQL reads them. psycopg writes a list element by element, which for a group of records takes longer
than all else that is done for them; these are joined in one step. Cast the parameter: `CAST(? AS text[])`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def of_numbers(numbers: Iterable[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def of_texts(texts: Sequence[str]) -> str:
    joined = '","'.join(texts)
    if "\\" in joined or joined.count('"') != 2 * max(0, len(texts) - 1):
        joined = '","'.join([text.replace("\\", "\\\\").replace('"', '\\"') for text in texts])
    return '{"' + joined + '"}' if texts else "{}"
