"""The transactions of Django's connections, and their state according to the drivers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = [
    "as_manual_transaction",
    "has_failed",
    "has_snapshot",
    "in_manual_transaction",
    "is_over",
    "watch_transactions",
]


def watch_transactions(
    connection: BaseDatabaseWrapper,
    before_commit: Callable[[], None],
    after_rollback: Callable[[bool, bool], None],
    is_open: Callable[[], bool],
) -> None:
    """Call these before each COMMIT and after each ROLLBACK of a connection, because Django has no hook there. A
    ``_commit`` or ``_rollback`` that other code has set on this connection is called as well.

    At the end of the outermost ``atomic()``, Django sets ``in_atomic_block`` to False; calls ``_commit()``, which calls
    ``before_commit`` and commits; switches autocommit on; and calls what ``on_commit()`` was given. So to
    ``before_commit``, the transaction looks like one without autocommit, in which ``atomic()`` sets a savepoint.

    ``after_rollback`` is told whether the database has rolled back: a connection that is lost doesn't say; and whether
    the transaction was over before. If an exception strikes right before the COMMIT, Django switches autocommit on
    while ``is_open`` is true, whereby MySQL and SQLite would commit. Then the transaction is rolled back.
    """
    replaced = {name: vars(connection).get(name) for name in ("_commit", "_rollback", "_set_autocommit")}
    itself = weakref.ref(connection)  # without a cycle, the connection of a thread that ended is freed at once

    def call(name: str, *arguments: bool) -> None:
        if (method := replaced[name]) is None:  # of the class
            connection = itself()
            method = partial(getattr(type(connection), name), connection)
        method(*arguments)

    def commit() -> None:
        try:
            before_commit()
            call("_commit")
        except Error:
            raise  # Django rolls back
        except BaseException:
            if (connection := itself()) is not None:
                connection.in_atomic_block = False  # an interrupted atomic() of before_commit may have left it
                try:
                    connection.rollback()
                except Error:  # a driver closes its connection if it is interrupted; so does Django then
                    connection.close()
            raise

    def rollback() -> None:
        connection, is_done = itself(), False
        was_over = connection is not None and is_open() and is_over(connection)
        try:
            call("_rollback")
            is_done = True
        finally:
            after_rollback(is_done, was_over)

    def set_autocommit(autocommit: bool) -> None:
        if is_open() and (connection := itself()) is not None:
            connection.rollback()
        call("_set_autocommit", autocommit)

    vars(connection).update(_commit=commit, _rollback=rollback, _set_autocommit=set_autocommit)


IDLE, IN_TRANSACTION, IN_ERROR = 0, 2, 3
"""States of a PostgreSQL connection, which psycopg and psycopg2 have from the C library."""


def _status(driver: Any) -> int:
    try:
        return driver.pgconn.transaction_status  # that of info, but faster
    except AttributeError:  # psycopg2
        return driver.info.transaction_status


def has_failed(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the COMMIT of an ``atomic()`` block will roll back, as PostgreSQL then does without an error."""
    return connection.vendor == "postgresql" and _status(connection.connection) == IN_ERROR


def is_over(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the transaction of an ``atomic()`` block has ended, although Django doesn't know. After some
    errors, SQLite rolls back, and then commits each statement; and other code may use the driver's connection.

    The drivers of MySQL don't tell: PyMySQL's ``server_status`` is older than the last result with rows.
    """
    if connection.vendor == "postgresql":
        return _status(connection.connection) == IDLE
    return connection.vendor == "sqlite" and not connection.connection.in_transaction


def in_manual_transaction(connection: BaseDatabaseWrapper) -> bool:
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
        return not driver.autocommit or _status(driver) in (IN_TRANSACTION, IN_ERROR)
    if connection.vendor == "sqlite":
        return driver.in_transaction
    idle, mask = 2, 3  # SERVER_STATUS_AUTOCOMMIT without SERVER_STATUS_IN_TRANS, in PyMySQL
    if getattr(driver, "server_status", idle) & mask == idle:
        return False
    if connection.errors_occurred:
        with suppress(driver.Error):  # the next statement will raise it
            driver.ping(reconnect=False)
    return driver.server_status & mask != idle


def has_snapshot(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a connection to SQLite may see old rows outside of transactions, or rows that are not committed.

    While a statement is not read to its end, as by ``iterator()``, SQLite shows the rows as they were when it began, if
    the file has a write-ahead log. Nothing tells whether there is one, but SQLite replaces no function meanwhile.
    """
    connection.ensure_connection()
    driver = connection.connection
    [(shows_uncommitted,)] = driver.execute("PRAGMA read_uncommitted")
    try:
        for _ in range(2):  # the first one may be new
            driver.create_function("counters_probe", 0, int)
    except driver.OperationalError:
        return True
    return bool(shows_uncommitted)


@contextmanager
def as_manual_transaction(connection: BaseDatabaseWrapper) -> Iterator[None]:
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
