"""Declares counters of the app's own tables when ``migrate`` makes these: no process of another release can be writing
there, so the first flush need not wait for any."""

from __future__ import annotations

from django.db import connections

from ..declaration import declarations
from ..models import CounterState

_missing: dict[str, set[str]] = {}
"""Tables that were missing before ``migrate``, by the alias of the database."""


def note_missing(using: str, **_: object) -> None:
    """Note which tables ``migrate`` may make."""
    own = [counter.source._meta for counter in declarations()]
    own_tables = {about.db_table for about in own if about.app_label == CounterState._meta.app_label}
    _missing[using] = own_tables.difference(_tables(using))


def declare_made(using: str, **_: object) -> None:
    """Declare the counters whose tables it has made. The flusher of another release would declare them anew."""
    made = _missing.pop(using, set())
    made = made and made.intersection(_tables(using))
    for counter in declarations():
        if counter.source._meta.db_table in made and counter.db == using:
            about = {"fingerprint": counter.fingerprint, "declared_at": None}
            CounterState.objects.using(using).get_or_create(counter=counter.name, defaults=about)


def _tables(using: str) -> list[str]:
    return connections[using].introspection.table_names()
