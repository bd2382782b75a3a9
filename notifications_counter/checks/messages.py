"""What a check says."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Error, Warning

TAG = "notifications_counter"

Messages = Iterator[CheckMessage]


def error(id: str, fact: str, hint: str, obj: object = None) -> Error:
    return Error(fact, hint=hint, obj=obj, id=f"{TAG}.{id}")


def warning(id: str, fact: str, hint: str, obj: object = None) -> Warning:
    return Warning(fact, hint=hint, obj=obj, id=f"{TAG}.{id}")
