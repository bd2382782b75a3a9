"""Declares counters of the app's own tables when ``migrate`` makes these: no process of another release can be writing
there, so the first flush need not wait for any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from django.db import connections

from ..declaration import Declaration, declarations
from ..models import CounterState

_missing: dict[str, set[str]] = {}
"""Tables that were missing before ``migrate``, by the alias of the database."""


def note_missing(using: str, **_: object) -> None:
    """Note which tables ``migrate`` may make."""
    _missing[using] = {counter.source._meta.db_table for counter in _own_counters()}.difference(_tables(using))


def declare_made(using: str, **_: object) -> None:
    """Declare the counters whose tables it has made. The flusher of another release would declare them anew."""
    made = _missing.pop(using, set())
    made = made and made.intersection(_tables(using))
    for counter in _own_counters():
        if counter.source._meta.db_table in made and counter.db == using:
            about = {"fingerprint": counter.fingerprint, "declared_at": None}
            CounterState.objects.using(using).get_or_create(counter=counter.name, defaults=about)


def _own_counters() -> Iterator[Declaration]:
    """Yield counters of the app's own tables."""
    for counter in declarations():
        with suppress(LookupError):  # a system check reports it
            if counter.source._meta.app_label == CounterState._meta.app_label:
                yield counter


def _tables(using: str) -> list[str]:
    return connections[using].introspection.table_names()
