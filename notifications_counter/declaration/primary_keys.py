"""Validates primary keys, and builds those of several columns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Field

from ..redis.replies import INTEGER_LIMIT

T = TypeVar("T")

Pk = Any
"""An owner's primary key; a CompositePk if the owner has several columns."""

First = tuple[Pk, ...]
"""The values of all columns of an owner but the last."""

ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",\t", ":"), default=str)


class CompositePk(tuple[Pk, ...]):
    """The values of several owner columns. It is equal to the tuple of these values.

    As for any other primary key, its ``str()`` is the owner key: a JSON list, so that no two have the same text.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return ENCODER.encode(self)


def values_of(pk: Pk) -> First:
    """Return the values of a primary key, one for each column of the owner."""
    return pk if isinstance(pk, CompositePk) else (pk,)


def primary_key(field: Field, value: object) -> Pk:
    """Return a value as a primary key. Raises ValueError for anything else, such as 1.5 or True, and for what
    no database could store."""
    try:
        pk = None if isinstance(value, bool) else field.to_python(plain(value))
    except (ValidationError, ValueError, TypeError, OverflowError) as error:
        reason = " ".join(getattr(error, "messages", [str(error)]))
        raise ValueError(f"{value!r:.200} is not a primary key: {reason}") from None
    rounded = isinstance(pk, int) and not isinstance(value, str) and pk != value
    if rounded or not fits(field, pk):
        raise ValueError(f"{value!r:.200} is not a primary key.")
    return pk


def many(values: object) -> Iterable[Pk]:
    """Return an iterable of instances or primary keys as it is. TypeError for a single one, including a string."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"Pass a list of instances or primary keys, not {values!r:.200}.")
    return values


def plain(value: T) -> T:
    """Return the value of a member of a text or integer Enum, as databases store it. Its ``str()`` may be its name. Any
    other value is returned as it is."""
    return value.value if isinstance(value, Enum) and isinstance(value, str | int) else value


def fits(field: Field, pk: Pk) -> bool:
    """Return whether a database can store this primary key."""
    if isinstance(pk, int):
        return -INTEGER_LIMIT <= pk < INTEGER_LIMIT
    if isinstance(pk, str):
        halves = any("\ud800" <= character <= "\udfff" for character in pk)  # of surrogate pairs
        return not halves and "\0" not in pk and len(pk) <= (field.max_length or len(pk))
    return pk is not None
