"""The transactions of Django's connections, and their state according to the drivers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import Error

__all__ = [
    "as_manual_transaction",
    "has_failed",
    "has_lost_transaction",
    "in_manual_transaction",
    "watch_transactions",
]


def watch_transactions(
    connection: Any,
    before_commit: Callable[[], None],
    before_rollback: Callable[[], None],
    is_open: Callable[[], bool],
    *,
    after_refusal: Callable[[], None] = lambda: None,
    after_rollback: Callable[[], None] = lambda: None,
) -> None:
    """Call these around each COMMIT and ROLLBACK of a connection, because Django has no hook there.

    ``after_refusal`` is called if the database answers that it has not committed. A ``_commit`` or ``_rollback`` that
    other code has set on this connection is called as well. If an exception strikes right before the COMMIT, Django
    switches autocommit on while ``is_open`` is true; then the transaction is rolled back.
    """
    commit = _preceded(connection, "_commit", before_commit)
    rollback = _preceded(connection, "_rollback", before_rollback)
    itself = weakref.ref(connection)  # without a cycle, the connection of a thread that ended is freed at once

    def roll_back_open_transaction() -> None:  # MySQL and SQLite would commit, and PostgreSQL refuse
        if is_open() and (connection := itself()) is not None:
            connection.rollback()

    def commit_unless_interrupted() -> None:
        try:
            commit()
        except Error:  # Django rolls back
            if (connection := itself()) is not None and _is_not_committed(connection):
                after_refusal()
            raise
        except BaseException:  # Django would switch autocommit on, whereby MySQL and SQLite commit
            if (connection := itself()) is not None:
                connection.in_atomic_block = False
                try:
                    connection.rollback()
                except Error:  # a driver closes its connection if it is interrupted; so does Django then
                    connection.close()
            raise

    def roll_back_and_tell() -> None:
        rollback()
        after_rollback()

    connection._commit = commit_unless_interrupted
    connection._rollback = roll_back_and_tell
    connection._set_autocommit = _preceded(connection, "_set_autocommit", roll_back_open_transaction)


IDLE, IN_TRANSACTION, IN_ERROR = 0, 2, 3
"""States of a PostgreSQL connection, which psycopg and psycopg2 have from the C library."""


def _status(driver: Any) -> int:
    """Return the state of a PostgreSQL connection. In psycopg, ``info`` would convert it to an Enum."""
    return (driver.pgconn if hasattr(driver, "pgconn") else driver.info).transaction_status


def _is_not_committed(connection: Any) -> bool:
    """Return whether the database has certainly not committed, after a COMMIT that raised an error. PostgreSQL has
    rolled back if it answered at all, and SQLite leaves the transaction open. MySQL shows nothing."""
    driver = connection.connection
    if not driver:
        return False
    if connection.vendor == "postgresql":
        return _status(driver) == IDLE
    return connection.vendor == "sqlite" and driver.in_transaction


def _preceded(connection: Any, name: str, before: Callable[[], None]) -> Callable[..., None]:
    replaced = connection.__dict__.get(name)
    itself = weakref.ref(connection)

    def call(*arguments: Any) -> None:
        before()
        if replaced is not None:
            replaced(*arguments)
        elif (connection := itself()) is not None:
            getattr(type(connection), name)(connection, *arguments)

    return call


def has_failed(connection: Any) -> bool:
    """Return whether PostgreSQL will turn COMMIT into ROLLBACK, without an error, because a statement has failed.

    Django does not set ``errors_occurred`` after a DataError or an IntegrityError. The driver knows without asking the
    server.
    """
    driver = connection.connection  # None if the connection was closed meanwhile
    return connection.vendor == "postgresql" and bool(driver) and _status(driver) == IN_ERROR


def has_lost_transaction(connection: Any) -> bool:
    """Return whether SQLite has rolled back the whole transaction, as with ``OR ROLLBACK``, or when the disk is full.
    The next statements are no longer in a transaction."""
    driver = connection.connection
    return connection.vendor == "sqlite" and bool(driver) and not driver.in_transaction


def in_manual_transaction(connection: Any) -> bool:
    """Return whether autocommit was switched off, by hand or in DATABASES, or raw SQL has begun a transaction. Then
    there is no hook at the commit, not even in ``atomic()``.

    The driver knows without asking the server, except mysqlclient, which doesn't know. PyMySQL has to ask after an
    error, which may have ended the transaction.
    """
    if connection.in_atomic_block:
        return not connection.commit_on_exit
    if not (driver := connection.connection):  # the next statement connects
        return not connection.settings_dict["AUTOCOMMIT"]
    if not connection.autocommit:
        return True
    if connection.vendor == "postgresql":
        connected = driver.pgconn if hasattr(driver, "pgconn") else driver.info  # as in _status: each read comes here
        return not driver.autocommit or connected.transaction_status in (IN_TRANSACTION, IN_ERROR)
    if connection.vendor == "sqlite":
        return driver.in_transaction
    if connection.vendor == "mysql":
        idle, mask = 2, 3  # SERVER_STATUS_AUTOCOMMIT without SERVER_STATUS_IN_TRANS, in PyMySQL
        if (status := getattr(driver, "server_status", None)) is None or status & mask == idle:
            return False
        if connection.errors_occurred:
            with suppress(driver.Error):  # the next statement will raise it
                driver.ping(reconnect=False)
        return driver.server_status & mask != idle
    return False


@contextmanager
def as_manual_transaction(connection: Any) -> Iterator[None]:
    """Tell Django of a transaction that raw SQL has begun. Then ``atomic()`` sets a savepoint instead of beginning
    another transaction, which PostgreSQL and SQLite refuse, and ``select_for_update()`` is allowed."""
    if connection.in_atomic_block or not connection.autocommit or not in_manual_transaction(connection):
        yield
        return
    driver, connection.autocommit = connection.connection, False
    try:
        yield
    finally:
        if connection.connection is driver:  # a new one has its own mode
            connection.autocommit = True
