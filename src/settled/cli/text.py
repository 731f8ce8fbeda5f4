"""Bytes and foreign text for people: nothing that reaches a terminal can steer it, nothing is shown as what it is not.

Bytes are shown as text only when they are printable UTF-8 that cannot be mistaken for a label; otherwise as `hex:...`
(up to 32 bytes) or `base64:...`. No bytes at all are `(none)`, zero bytes `(empty)`.
"""

from __future__ import annotations

import base64
from typing import Any

LABELS = ("hex:", "base64:", "(none)", "(empty)")
SHORT = 32


def shown_bytes(raw: bytes | None, encoding: str = "utf-8") -> str:
    """On one line, without loss, in characters that `encoding` has."""
    if raw is None:
        return "(none)"
    if not raw:
        return "(empty)"
    text = _utf8(raw)
    if text is not None and text.isprintable() and not text.startswith(LABELS) and _fits(text, encoding):
        return text
    return f"hex:{raw.hex()}" if len(raw) <= SHORT else f"base64:{base64.b64encode(raw).decode()}"


def json_bytes(raw: bytes | None) -> dict[str, str] | None:
    """`{"text": ...}` for UTF-8 (JSON escapes what must be), `{"base64": ...}` for other bytes, null for none."""
    if raw is None:
        return None
    text = _utf8(raw)
    return {"base64": base64.b64encode(raw).decode()} if text is None else {"text": text}


def shown(text: Any) -> str:
    """Text with everything escaped that is not printable; None is empty."""
    if text is None:
        return ""
    plain = str(text)
    return plain if plain.isprintable() else "".join(map(_escaped, plain))


def shown_lines(text: str) -> str:
    """As `shown`, with line breaks kept."""
    return "\n".join(shown(line) for line in text.split("\n"))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _utf8(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
