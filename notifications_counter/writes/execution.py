"""Executes statements that change counted rows: their owners are announced, and their changes collected."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from django.db import DatabaseError, Error, InterfaceError, OperationalError, transaction

from ..declaration import Declaration, declarations
from ..internals import as_manual_transaction, in_manual_transaction
from .change import Change
from .ledger import Ledger, NotAnnounced
from .transaction import TransactionLog

T = TypeVar("T")
Execute = Callable[[], tuple[T, Change]]
Owners = Mapping[Declaration, Iterable[str]]

CONNECTION_LOST = range(2000, 3000)
"""Errors that MySQL's client raises. The server's errors have other numbers."""


def write(connection: Any, owners: Owners | None, execute: Execute[T]) -> T:
    """Execute a statement that changes rows of these owners, and collect its change. Returns its result. None: the
    owners are not known beforehand, so the statement needs a transaction.

    In a transaction, owners are announced right before the COMMIT. In autocommit mode, the statement is prepared
    while the announcement is on its way. If Redis refuses it, nothing has been executed yet, and the statement is
    executed in a transaction, which commits it together with a RecountRequest.
    """
    ledger = Ledger.on(connection)
    if in_manual_transaction(connection):
        with as_manual_transaction(connection):
            return _write_inside(ledger, owners, execute)
    if owners is None:
        with transaction.atomic(using=ledger.using, savepoint=False):
            return _run(ledger, execute)
    if connection.in_atomic_block:
        return _write_inside(ledger, owners, execute)
    if not owners:
        return _run(ledger, execute)
    try:
        return _write_alone(ledger, connection, owners, execute)
    except NotAnnounced:
        with transaction.atomic(using=ledger.using):
            return _run(ledger, execute)


def _run(ledger: Ledger, execute: Execute[T]) -> T:
    result, change = execute()
    ledger.collect(change)
    return result


def _write_inside(ledger: Ledger, owners: Owners | None, execute: Execute[T]) -> T:
    try:
        return _run(ledger, execute)
    except Error:
        raise
    except BaseException:  # a time limit, an interrupt: the statement may have been executed or not
        if ledger.connection.in_atomic_block:
            transaction.set_rollback(True, using=ledger.using)
        else:
            with suppress(Error):
                _collect_unknown(ledger, owners)
        raise


def _collect_unknown(ledger: Ledger, owners: Owners | None) -> None:
    if owners is None:
        ledger.collect(Change({}, everyone_of=[counter for counter in declarations() if counter.db == ledger.using]))
    else:
        ledger.collect(Change({counter: dict.fromkeys(owner_keys) for counter, owner_keys in owners.items()}))


def _write_alone(ledger: Ledger, connection: Any, owners: Owners, execute: Execute[T]) -> T:
    log = TransactionLog(connection)
    outer = ledger.autocommit_logs and [ref for ref in ledger.autocommit_logs if ref() is not None]
    try:
        ledger.autocommit_logs = (*outer, weakref.ref(log))
        ledger.wrap_statements(connection)
        log.intents.announce(owners, connection)
        result, change = execute()
        log.add(change.deltas, change.everyone_of)
        return result
    except NotAnnounced:
        raise
    except BaseException as error:
        log.mark_unknown()
        if not log.intents.unread and not _has_ended(connection, error):
            log.intents.leave_to_healing()
        raise
    finally:
        ledger.autocommit_logs = outer
        ledger.unwrap_statements()
        log.send(connection)


def _has_ended(connection: Any, error: BaseException) -> bool:
    """Return whether a statement that was sent, and raised this error, will change nothing more. If the connection is
    lost while the server waits for a lock, the server continues, and commits."""
    if isinstance(error, OperationalError | InterfaceError):
        if connection.vendor == "mysql":  # is_usable() could connect again
            return not (error.args and error.args[0] in CONNECTION_LOST)
        return connection.is_usable()
    return isinstance(error, DatabaseError)  # otherwise the site has interrupted it
