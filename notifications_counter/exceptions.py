"""The exceptions that the app raises. Each message says what to do."""

import re

from django.db import DatabaseError, InterfaceError, InternalError, OperationalError


class CounterError(Exception):
    """The base class of the app's exceptions."""


class BufferUnavailable(CounterError):
    """Redis cannot be used: it did not answer, refused a command, or may not know a count. Counts are still right,
    because readers count rows."""


class ConfigurationError(CounterError):
    """A setting or a counter is declared in a way that cannot work, a newer release declares the counter differently,
    or the database shows other rows than others see."""


class NotInTransaction(CounterError):
    """A flush or a recount was called inside a transaction, which may be rolled back, and does not see what others
    commit; or autocommit is off, or raw SQL has begun a transaction, and nothing would be committed."""


OUTAGES = (BufferUnavailable, OperationalError, InterfaceError, InternalError)
"""Errors that go away: Redis or the database is unreachable, or busy. PostgreSQL raises an InternalError where it is
read-only, as during a failover, and if a transaction was idle for too long."""

EXPECTED = (CounterError, *OUTAGES)
"""Errors that are no mistake in the code. Their messages say what to do, so nobody needs a traceback."""

UNMIGRATED = re.compile(
    "no such (table|column)|has no column|(relation|column) .* does not exist|table .* doesn't exist|unknown column",
    re.IGNORECASE,
)
"""Matches the errors of databases about what a migration is to add."""


def explain(error: BaseException, where: str = "") -> str:
    """Return an error in one line: where it happened, and what to do if a migration was forgotten."""
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, DatabaseError) and UNMIGRATED.search(reason):
        reason += " – Run `manage.py makemigrations`, if a model is new or has changed, and `manage.py migrate`."
    return f"{where}: {reason}" if where else reason
