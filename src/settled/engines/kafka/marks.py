"""What settled notes beside a committed offset, in its metadata: `epoch=7;clean=1;original=4`. Kafka gives no epochs to
clients and does not say how a partition was left; here the next owner reads it. A note may be old: the effect store
arbitrates.
"""

from __future__ import annotations

import msgspec


class Mark(msgspec.Struct, frozen=True):
    """A note.

    epoch       of the owner that committed; 0 when another program did
    clean       it was given back in good order
    original    how many partitions the topic had when the group began; none when not noted
    """

    epoch: int = 0
    clean: bool = False
    original: int | None = None

    def text(self) -> str:
        original = "" if self.original is None else f";original={self.original}"
        return f"epoch={self.epoch};clean={int(self.clean)}{original}"


def read(text: str | None) -> Mark:
    """The note in a commit's metadata; what cannot be read counts as not noted."""
    found: dict[str, int] = {}
    for part in (text or "").split(";"):
        name, _, number = part.partition("=")
        if number.isascii() and number.isdecimal() and len(number) < 20:
            found[name] = int(number)
    return Mark(found.get("epoch", 0), bool(found.get("clean")), found.get("original"))
