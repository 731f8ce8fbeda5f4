"""Whether a cursor that was given out is free again. Making one costs a quarter to a half of a short statement, so a
transaction keeps its last cursor and uses it again once nobody else holds it.
"""

from __future__ import annotations

import sys


class _Held:
    """How often an object is referred to that its holder's attribute and one local name know; interpreters differ."""

    def __init__(self) -> None:
        self._spare = object()

    def count(self) -> int:
        cursor = self._spare
        return sys.getrefcount(cursor)


ALONE = _Held().count()  # `sys.getrefcount` of an attribute's value that only one local name holds beside it
