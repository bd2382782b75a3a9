"""Explains errors in a line: missing tables, a Redis that is not there, a statement that takes too long."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.db import Error as DriverError
from django.db import OperationalError, ProgrammingError, connections
from django.template.defaultfilters import truncatechars
from django.utils.translation import gettext as _

from ..buffer.client import client_of
from ..conf import options
from ..counters import all_counters
from ..exceptions import CounterError
from ..internals import statement_of
from .registration import sound_counters
from .settings import addresses

TIMEOUT = re.compile("timeout|max_statement_time|interrupted", re.IGNORECASE)
"""Matches the errors of databases about a statement that takes too long."""

MISSING_COLUMN = re.compile("no such column|has no column|column .* does not exist|unknown column", re.IGNORECASE)
"""Matches the errors of databases about a column that a migration is to add."""

MIGRATE = "Run `manage.py makemigrations`, if a model is new or has changed, and `manage.py migrate`."

LENGTH = 300
"""Characters of a statement that a message repeats."""


def explain(error: BaseException, where: str = "") -> str:
    """Explain an error in one line: where it happened, which statement failed, and what to do."""
    if isinstance(error, OperationalError | ProgrammingError) and (forgotten := forgotten_migration()):
        return forgotten
    reason, end = " ".join(str(error).split()) or type(error).__name__, ". "
    if isinstance(error, DriverError) and (sql := " ".join(statement_of(error).split())):
        reason, end = f"{reason.rstrip('.')}. The statement was: {truncatechars(sql, LENGTH)}", " – "
    if advice := _advice(error):
        reason = f"{reason.rstrip('.')}{end}{advice}"
    return f"{where}: {reason}" if where else reason


def _advice(error: BaseException) -> str:
    """Return what to do about an error, or an empty string."""
    if isinstance(error, DriverError) and MISSING_COLUMN.search(str(error)):
        return MIGRATE
    if isinstance(error, DriverError) and TIMEOUT.search(str(error)):
        return (
            "Give the database user of flush_counters a longer time limit, and the counted table an index that begins "
            "with the columns of the owner."
        )
    if not isinstance(error, CounterError):
        return ""
    with suppress(CounterError):
        breaker = client_of(options.CACHE_ALIAS).breaker
        if breaker.down_since is not None and not breaker.is_late:
            advice = _("Start Redis at %(address)s, or correct the LOCATION of the cache.")
            return advice % {"address": addresses(options.CACHE_ALIAS)}
    return ""


def forgotten_migration() -> str:
    """Return what to do about missing tables, or an empty string. SQLite raises OperationalError for these, other
    databases ProgrammingError."""
    tables = [table for using in {counter.db for counter in all_counters()} for table in missing_tables(using)]
    return f"The counters' tables are missing: {', '.join(tables)}. {MIGRATE}" if tables else ""


def missing_tables(using: str) -> list[str]:
    """Return the missing tables of the counters of a database; empty if it does not answer."""
    models: set[Any] = {model for c in sound_counters() if c.db == using for model in (c.source, c.totals)}
    if models:
        models |= {apps.get_model("notifications_counter", name) for name in ("CounterShard", "RecountRequest")}
    try:
        there = connections[using].introspection.table_names(include_views=True)
    except DriverError:
        return []
    return sorted({model._meta.db_table for model in models}.difference(there))
