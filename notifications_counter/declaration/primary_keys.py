"""Validates primary keys, and builds keys of several columns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Field

from ..buffer.types import LIMIT

T = TypeVar("T")

Key = Any
"""An owner's primary key; a CompositeKey if the owner has several columns."""

First = tuple[Key, ...]
"""The values of all columns of an owner but the last."""

ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",\t", ":"), default=str)


class CompositeKey(tuple[Key, ...]):
    """The values of several owner columns. It is equal to the tuple of these values.

    As for any other key, its ``str()`` is the owner key: a JSON list, so that no two keys have the same text.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return ENCODER.encode(self)


def values_of(key: Key) -> First:
    """Return the values of a primary key, one for each column of the owner."""
    return key if isinstance(key, CompositeKey) else (key,)


def primary_key(field: Field, value: object) -> Key:
    """Return a value as a primary key. Raises ValueError for anything else, such as 1.5 or True, and for keys that
    no database could store."""
    try:
        key = None if isinstance(value, bool) else field.to_python(plain(value))
    except (ValidationError, ValueError, TypeError, OverflowError) as error:
        reason = " ".join(getattr(error, "messages", [str(error)]))
        raise ValueError(f"{value!r:.200} is not a primary key: {reason}") from None
    rounded = isinstance(key, int) and not isinstance(value, str) and key != value
    if rounded or not fits(field, key):
        raise ValueError(f"{value!r:.200} is not a primary key.")
    return key


def many(values: object) -> Iterable[Key]:
    """Return an iterable of instances or primary keys as it is. TypeError for a single one, including a string."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"Pass a list of instances or primary keys, not {values!r:.200}.")
    return values


def plain(value: T) -> T:
    """Return the value of a member of a text or integer Enum, as databases store it. Its ``str()`` may be its name. Any
    other value is returned as it is."""
    return value.value if isinstance(value, Enum) and isinstance(value, str | int) else value


def fits(field: Field, key: Key) -> bool:
    """Return whether a database can store this key."""
    if isinstance(key, int):
        return -LIMIT <= key < LIMIT
    if isinstance(key, str):
        halves = any("\ud800" <= character <= "\udfff" for character in key)  # of surrogate pairs
        return not halves and "\0" not in key and len(key) <= (field.max_length or len(key))
    return key is not None
