"""Runs statements that change counted rows: announces their owners, and collects what they have changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from django.core.exceptions import AppRegistryNotReady
from django.db import DatabaseError, Error, InterfaceError, OperationalError, connections, transaction
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from ..databases.identity import identify
from ..databases.routing import schema_of
from ..declaration import Declaration, declarations
from ..exceptions import BufferUnavailable
from ..internals import as_manual_transaction, in_manual_transaction
from ..signals import counts_changed
from .follower import Follower, NotAnnounced
from .requests import forget, mark_dirty, request_recounts
from .rows import Change
from .transaction import TransactionLog

T = TypeVar("T")
Execute = Callable[[], tuple[T, Change]]
Expected = Mapping[Declaration, Iterable[str]] | None

CONNECTION_LOST = range(2000, 3000)
"""Errors that MySQL's client raises. The server's errors have other numbers."""


class Ledger(Follower):
    """What one database connection has changed, and not sent to Redis yet."""

    @classmethod
    def of(cls, using: str) -> Ledger:
        """Return the ledger of this thread's connection to a database."""
        return cls.on(connections[using])

    @classmethod
    def on(cls, connection: Any) -> Ledger:
        """Return the ledger of a connection."""
        try:
            return connection.__dict__["counter_ledger"]
        except KeyError:
            ledger = connection.__dict__["counter_ledger"] = cls(connection)
            return ledger

    def collect(self, change: Change) -> None:
        """Add to the transaction what a statement has changed."""
        connection: Any = self._connection()
        deltas = {counter: its for counter, its in change.deltas.items() if not {0}.issuperset(its.values())}
        if in_manual_transaction(connection):
            owners = [
                (counter, owner_key)
                for counter, its in deltas.items()
                for owner_key, delta in its.items()
                if delta != 0
            ]
            request_recounts(self.using, [*owners, *((counter, None) for counter in change.everyone)])
            mark_dirty(owners)
            for counter in change.everyone:
                forget(counter)
            return
        if not deltas and not change.everyone:
            return
        if change.everyone:
            request_recounts(self.using, [(counter, None) for counter in change.everyone])  # rule: everyone
        if connection.in_atomic_block:
            log = self._transaction_log(connection)
            if counts_changed.receivers:  # a TestCase never commits, and runs what waits for that
                transaction.on_commit(partial(log.signal, len(log.entries)), self.using)
            log.add(deltas, change.everyone)
        else:
            log = TransactionLog(connection)
            unknown = {
                c: {owner_key: None for owner_key, delta in its.items() if delta != 0} for c, its in deltas.items()
            }
            log.add(unknown, change.everyone)
            log.send(connection)

    def write(self, owners: Expected, statement: Execute[T]) -> T:
        """Run a statement that changes rows of these owners, and collect what it has changed. None: the owners are not
        known beforehand, so the statement needs a transaction. Returns its result.

        In a transaction, owners are announced right before the COMMIT. In autocommit mode, the statement is prepared
        while the announcement is on its way. If Redis refuses it, nothing has been executed yet, and the statement is
        run again in a transaction, which commits it together with a RecountRequest.
        """
        connection: Any = self._connection()
        if in_manual_transaction(connection):
            with as_manual_transaction(connection):
                return self._write_inside(owners, statement)
        if owners is None:
            with transaction.atomic(using=self.using, savepoint=False):
                return self._run(statement)
        if connection.in_atomic_block:
            return self._write_inside(owners, statement)
        if not owners:
            return self._run(statement)
        try:
            return self._write_alone(connection, owners, statement)
        except NotAnnounced:
            with transaction.atomic(using=self.using):
                return self._run(statement)

    def _run(self, statement: Execute[T]) -> T:
        result, change = statement()
        self.collect(change)
        return result

    def _write_inside(self, owners: Expected, statement: Execute[T]) -> T:
        try:
            return self._run(statement)
        except Error:
            raise
        except BaseException:  # a time limit, an interrupt: it may have been executed or not
            if self.connection.in_atomic_block:
                transaction.set_rollback(True, using=self.using)
            else:
                with suppress(Error):
                    self._collect_unknown(owners)
            raise

    def _collect_unknown(self, owners: Expected) -> None:
        if owners is None:
            self.collect(Change({}, everyone=[counter for counter in declarations() if counter.db == self.using]))
        else:
            self.collect(Change({counter: dict.fromkeys(owner_keys) for counter, owner_keys in owners.items()}))

    def _write_alone(self, connection: Any, owners: Mapping[Declaration, Iterable[str]], statement: Execute[T]) -> T:
        log = TransactionLog(connection)
        outer = self._alone and [ref for ref in self._alone if ref() is not None]
        try:
            self._alone = (*outer, weakref.ref(log))
            self._see_statements(connection)
            log.intents.announce(owners, connection)
            result, change = statement()
            log.add(change.deltas, change.everyone)
            return result
        except NotAnnounced:
            raise
        except BaseException as error:
            log.mark_unknown()
            if not log.intents.unread and not self._has_ended(error):
                log.intents.leave_to_healing()
            raise
        finally:
            self._alone = outer
            self._look_away()
            log.send(connection)

    def _has_ended(self, error: BaseException) -> bool:
        """Return whether a statement that was sent, and raised this error, will change nothing more. If the connection
        is lost while the server waits for a lock, the server continues, and commits."""
        if isinstance(error, OperationalError | InterfaceError):
            if self.connection.vendor == "mysql":  # is_usable() could connect again
                return not (error.args and error.args[0] in CONNECTION_LOST)
            return self.connection.is_usable()
        return isinstance(error, DatabaseError)  # otherwise the site has interrupted it


@contextmanager
def as_connection_of_its_alias(connection: Any) -> Iterator[None]:
    """Make a copy of a connection, whose statements are in another transaction, the one that its alias stands for. So
    it has a ledger of its own."""
    before = connections[connection.alias]
    connections[connection.alias] = connection
    try:
        yield
    finally:
        connections[connection.alias] = before


@receiver(connection_created)
def _watch(connection: Any, **_: Any) -> None:
    if ledger := vars(connection).get("counter_ledger"):
        ledger.drop_logs()
    # Not the nameless one that creates databases, and no copy of a connection, which may be in a transaction.
    if connection.alias not in connections or connections[connection.alias] is not connection:
        return
    # Not before models are loaded. A system check reports one that does not exist.
    with suppress(AppRegistryNotReady, BufferUnavailable, LookupError):
        if connection.alias in {counter.db for counter in declarations()}:
            Ledger.of(connection.alias)  # before anyone replaces its methods for a while
            # Here, and not at the first use of a counter, because a test may count its queries. Not for tenants,
            # because their schema is not known yet.
            if not schema_of(connection):
                identify(connection)
