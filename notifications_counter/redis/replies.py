"""Replies of Redis, as Python types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

UNREADABLE = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""The exceptions that foreign data raises when it is read."""

INTEGER_LIMIT = 2**63
"""Redis and databases store integers of 64 bits: at least its negative, and less than it."""


def as_text(value: object) -> str:
    """Return a reply as text. Bytes that are not UTF-8 become surrogates, which can be sent to Redis again."""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def as_bytes(text: str) -> bytes:
    """Return the bytes that ``as_text`` turned into this text."""
    return text.encode(errors="surrogateescape")


def as_integer(number: Any) -> int | None:
    """Return a number in a reply; None if it is missing, or no integer of 64 bits, as the score of an unknown delta."""
    try:  # suppress() would take three times as long
        found = int(number)
    except (TypeError, ValueError):
        return None
    return found if -INTEGER_LIMIT <= found < INTEGER_LIMIT else None


def as_pairs(reply: Any) -> Iterable[tuple[Any, Any]]:
    """Return a reply of fields and values as pairs. Depending on the protocol, it is a flat list or a dict."""
    return reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
