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
