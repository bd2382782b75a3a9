"""Registers checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import FieldDoesNotExist, FieldError

from ..counters import Counter, all_counters

TAG = "notifications_counter"

Messages = Iterator[CheckMessage]


def check(*tags: str, deploy: bool = False) -> Callable[[Callable[..., Messages]], Callable[..., list[CheckMessage]]]:
    """Register a generator of messages as a system check. One with Tags.database takes the aliases of databases."""

    def decorate(messages: Callable[..., Messages]) -> Callable[..., list[CheckMessage]]:
        def run(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
            return list(messages(databases or ()) if Tags.database in tags else messages())

        run.__name__ = messages.__name__
        return register(run, *tags, deploy=deploy)

    return decorate


def error(id: str, fact: str, hint: str, obj: object = None) -> Error:
    return Error(fact, hint=hint, obj=obj, id=id_(id))


def warning(id: str, fact: str, hint: str, obj: object = None) -> Warning:
    return Warning(fact, hint=hint, obj=obj, id=id_(id))


def id_(name: str) -> str:
    """Return the id of a check. Each id has one meaning."""
    return f"notifications_counter.{name}"


def mistake_in(counter: Counter) -> str:
    """Return an error if a model or field in a declaration does not exist, else an empty string."""
    try:
        totals = counter.totals._meta
        _ = totals.get_field(counter.field), counter.owner_fields, counter.total_fields, counter.condition.fields
    except (LookupError, FieldDoesNotExist, FieldError) as mistake:
        return str(mistake)
    return ""


def sound_counters() -> list[Counter]:
    """Return the counters whose models and fields exist. A check reports the others."""
    return [counter for counter in all_counters() if not mistake_in(counter)]
