"""Whether a connection is in a transaction, and sees what others see."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import connections, transaction

from ..exceptions import NotInTransaction
from ..internals import BaseDatabaseWrapper, has_snapshot, in_manual_transaction

F = TypeVar("F", bound=Callable[..., object])


def outside_transactions(view: F) -> F:
    """Make Django call a view outside of a transaction, even if databases have ATOMIC_REQUESTS."""
    for alias in connections:
        transaction.non_atomic_requests(alias)(view)
    return view


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a connection is in a transaction, of ``atomic()``, without autocommit or begun by raw SQL."""
    return connection.in_atomic_block or not connection.get_autocommit() or in_manual_transaction(connection)


def require_autocommit(connection: BaseDatabaseWrapper) -> None:
    """Raise NotInTransaction if autocommit is switched off, or raw SQL has begun a transaction. Then ``atomic()``
    commits nothing."""
    if not connection.in_atomic_block and in_transaction(connection):
        raise NotInTransaction(
            "Nothing was done, because nothing would be committed. Switch autocommit on, in DATABASES or by hand, and "
            "end a transaction that raw SQL has begun."
        )


def forbid_transaction(using: str) -> None:
    """Raise NotInTransaction inside a transaction, where a flush or a walk could neither commit nor see what others
    commit."""
    if in_transaction(connections[using]):
        raise NotInTransaction(
            "A flush or a recount cannot run inside a transaction: it would remove changes from Redis that may still "
            "be rolled back, and miss what others commit. Call it outside of atomic() and of transactions begun by raw "
            "SQL, with autocommit switched on; in tests, of a TransactionTestCase or with django_db(transaction=True)."
        )


def sees_what_others_see(connection: BaseDatabaseWrapper, table: str) -> bool:
    """Return whether the next statement sees all committed rows of a table and no others, so that what it counts is
    right for everyone. Asks the database, because its own settings, or raw SQL, may have decided that."""
    table = connection.ops.quote_name(table)
    is_alone = not connection.in_atomic_block
    if connection.vendor == "postgresql":
        return _ask(
            connection,
            "SELECT NOT row_security_active(%s) AND NOT pg_is_in_recovery() AND txid_current_if_assigned() IS NULL"
            " AND (%s OR current_setting('transaction_isolation') LIKE 'read %%')",
            table,
            is_alone,
        )
    if not is_alone:  # the others do not tell at which level a transaction is, nor whether it has written
        return False
    if not hasattr(connection, "mysql_is_mariadb"):
        return not has_snapshot(connection)
    level = "tx_isolation" if connection.mysql_is_mariadb else "transaction_isolation"
    # It reads the table, so that a level that is set for a single transaction only is not that of the next statement.
    return _ask(connection, f"SELECT @@{level} <> 'READ-UNCOMMITTED' OR EXISTS (SELECT 1 FROM {table} WHERE 1 = 0)")


def _ask(connection: BaseDatabaseWrapper, question: str, *params: str | bool) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(question, params or None)
        return bool(cursor.fetchone()[0])
