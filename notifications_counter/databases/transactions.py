"""Whether a connection is in a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import connections, transaction

from ..exceptions import NotInTransaction
from ..internals import BaseDatabaseWrapper, in_manual_transaction

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
            "SQL, with autocommit switched on."
        )
