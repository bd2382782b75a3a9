"""Checks of the databases' tables, which are there once their migrations were applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import Error as DriverError
from django.db import connections

from ..counters import all_counters
from .registration import TAG, id_


@register(TAG, Tags.database, deploy=True)
def check_tables(app_configs: Any = None, databases: Iterable[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """The tables exist. It is no business of `migrate`, so it is for a deployment."""
    return [
        Error(
            f"The counters' tables are missing from the database {using!r}: {', '.join(tables)}.",
            hint="Run `manage.py migrate`.",
            id=id_("E024"),
        )
        for using in databases or ()
        if (tables := missing_tables(using))
    ]


def missing_tables(using: str) -> list[str]:
    """Return the tables that the counters of a database need and that do not exist; none if it does not answer."""
    models: set[Any] = {model for c in all_counters() if c.db == using for model in (c.source, c.totals)}
    if models:
        models |= {apps.get_model("notifications_counter", name) for name in ("CounterShard", "RecountRequest")}
    try:
        there = connections[using].introspection.table_names(include_views=True)
    except DriverError:
        return []
    return sorted({model._meta.db_table for model in models}.difference(there))
