"""What errors of databases mean."""

import re

from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)

from ..exceptions import BufferUnavailable, CounterError

OUTAGES = (BufferUnavailable, OperationalError, InterfaceError, InternalError)
"""Errors that go away: Redis or the database is unreachable, or busy. PostgreSQL raises an InternalError where it is
read-only, as during a failover, and if a transaction was idle for too long."""

EXPECTED = (CounterError, *OUTAGES)
"""Errors that are no mistake in the code. Their messages say what to do, so nobody needs a traceback."""

UNMIGRATED = re.compile(
    "no such (table|column)|has no column|(relation|column) .* does not exist|table .* doesn't exist|unknown column|"
    "null value in column|not null constraint|have a default value",  # a default is missing
    re.IGNORECASE,
)

EXCERPT = re.compile(r"\nLINE \d+: .*\n *\^")
"""Matches the part of the statement that PostgreSQL shows, with a caret in a line of its own."""

CONFLICTS = {1020, 1205, 1206, 1213, "40001", "40P01"}
"""Codes of a transaction that gives way to another. InnoDB also locks index entries, which it does not skip; and above
READ COMMITTED, a row that others have changed cannot be locked. The texts are PostgreSQL's."""

RAISED = {"P0001", 1644}
"""Codes of an error that a trigger raises, on PostgreSQL and MySQL. Others of its kind are not about one value."""


def explain(error: BaseException, where: str = "") -> str:
    """Return an error in one line: where it happened, and what to do if a migration was forgotten."""
    reason = " ".join(EXCERPT.sub("", str(error)).split()) or type(error).__name__
    if needs_a_migration(error):
        reason += " – Run `manage.py makemigrations`, if a model is new or has changed, and `manage.py migrate`."
    return f"{where}: {reason}" if where else reason


def needs_a_migration(error: BaseException) -> bool:
    """Return whether the database lacks a table, a column or its default, which a migration is to add."""
    return isinstance(error, DatabaseError) and UNMIGRATED.search(str(error)) is not None


def is_conflict(error: DatabaseError) -> bool:
    """Return whether the transaction gave way to another one, so that it may be tried again."""
    return not CONFLICTS.isdisjoint(_codes(error))


def refuses_a_value(error: DatabaseError, is_alone: bool) -> bool:
    """Return whether the database refuses a value: because it does not fit its column, or a trigger raises an error, or
    two keys are equal to PostgreSQL, which is a ProgrammingError. That of a value alone has another cause."""
    if not RAISED.isdisjoint(_codes(error)):
        return True
    if needs_a_migration(error):
        return False
    return isinstance(error, DataError | IntegrityError) or (isinstance(error, ProgrammingError) and not is_alone)


def _codes(error: DatabaseError) -> tuple[object, ...]:
    return (*error.args[:1], getattr(error.__cause__, "sqlstate", None))
