"""Primary keys that come from outside."""

from __future__ import annotations

from enum import Enum
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Field

LIMIT = 2**63
"""Integer keys are at least -LIMIT and less than LIMIT: databases store 64 bits."""


def primary_key(field: Field, value: Any) -> Any:
    """Return the primary key that a value stands for.

    Raises ValueError if there is none, as for 1.5 and True, or if no database could store it.
    """
    try:
        key = None if isinstance(value, bool) else field.to_python(plain(value))
    except (ValidationError, ValueError, TypeError, OverflowError) as error:
        reason = " ".join(getattr(error, "messages", [str(error)]))
        raise ValueError(f"{value!r:.200} is not a primary key: {reason}") from None
    rounded = isinstance(key, int) and not isinstance(value, str) and key != value
    if key is None or rounded or not fits(field, key):
        raise ValueError(f"{value!r:.200} is not a primary key.")
    return key


def plain(value: Any) -> Any:
    """What is stored of a member of an Enum whose members are texts or numbers, which str() would call by its name."""
    return value.value if isinstance(value, Enum) else value


def fits(field: Field, key: Any) -> bool:
    """Return whether a database can store this key."""
    if isinstance(key, int):
        return -LIMIT <= key < LIMIT
    if isinstance(key, str):
        halves = any("\ud800" <= character <= "\udfff" for character in key)  # of surrogate pairs
        return not halves and "\0" not in key and len(key) <= (field.max_length or len(key))
    return True
