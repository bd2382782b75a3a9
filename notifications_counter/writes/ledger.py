"""What a database connection has to tell Redis: it executes counted statements, and keeps a log of each transaction."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from django.core.exceptions import AppRegistryNotReady
from django.db import DatabaseError, Error, InterfaceError, OperationalError, connections, transaction
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from ..databases.identity import identify
from ..databases.routing import schema_of
from ..declaration import Declaration, declarations
from ..exceptions import BufferUnavailable
from ..internals import as_manual_transaction, in_manual_transaction, watch_transactions
from ..signals import counts_changed
from .requests import Owner, doubt, request_recounts
from .transaction import Change, TransactionLog

T = TypeVar("T")
Execute = Callable[[], tuple[T, Change]]
Owners = Mapping[Declaration, Iterable[str]]

COMMITS_NOTHING = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|SHOW|SAVEPOINT|RELEASE|ROLLBACK|SET\s+SEARCH_PATH|"
    r"SET\s+CONSTRAINTS|PRAGMA\s+FOREIGN_KEY_CHECK)\b[^;]*$",  # each TestCase ends with one of these two
)

DEADLOCK = 1213
"""The error with which MySQL and MariaDB roll back the whole transaction, not only the statement."""

MAY_ROLL_BACK = {1020, 1205, 1206}
"""Errors with which they may, depending on version and settings: a changed record, a lock timeout, too many locks."""

CONNECTION_LOST = range(2000, 3000)
"""Errors that MySQL's client raises. The server's errors have other numbers."""

READ_COMMITTED = {"read committed", "read uncommitted"}
"""Isolation levels at which a transaction sees the commits of others."""


class Ledger:
    """Executes the counted statements of one database connection, and logs what its transaction changes. From the
    first change to the end of the transaction, it wraps all statements of the connection."""

    def __init__(self, connection: Any):
        self._connection = weakref.ref(connection)
        self.using: str = connection.alias
        self.is_of_copy = connections[connection.alias] is not connection
        self._logs: dict[str | None, TransactionLog] = {}  # of the current transaction, by schema
        self._ending: list[TransactionLog] = []  # from COMMIT or ROLLBACK until they are sent
        watch_transactions(connection, self._before_commit, self._after_rollback, lambda: bool(self._logs))

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

    @property
    def connection(self) -> Any:
        connection = self._connection()
        assert connection is not None
        return connection

    # ---------------------------------------------------------------- execute
    def write(self, owners: Owners | None, execute: Execute[T]) -> T:
        """Execute a statement that changes rows of these owners, and collect its change. Returns its result. None: the
        owners are not known beforehand, so the statement needs a transaction.

        In a transaction, owners are announced right before the COMMIT. In autocommit mode, they are announced before
        the statement. If Redis refuses, the statement is executed in a transaction, which commits it together with a
        RecountRequest.
        """
        connection: Any = self._connection()
        if in_manual_transaction(connection):
            with as_manual_transaction(connection):
                return self._write_inside(owners, execute)
        if connection.in_atomic_block or self.is_of_copy or not (owners is None or any(owners.values())):
            return self._write_inside(owners, execute)
        if owners is None:
            with transaction.atomic(using=self.using, savepoint=False):
                return self._write_inside(owners, execute)
        log = TransactionLog(connection)
        try:
            if not log.announce_alone(owners, connection):
                with transaction.atomic(using=self.using):
                    return self._write_inside(owners, execute)
            result, change = execute()
            log.add(change)
            return result
        except BaseException as error:
            log.mark_unknown()
            if not _has_ended(connection, error):
                log.intents.leave_to_healing()
            raise
        finally:
            log.send(connection)

    def _write_inside(self, owners: Owners | None, execute: Execute[T]) -> T:
        try:
            result, change = execute()
            self.collect(change)
            return result
        except Error:
            raise
        except BaseException:  # a time limit, an interrupt: the statement may have been executed or not
            if self.connection.in_atomic_block:
                transaction.set_rollback(True, using=self.using)
            else:
                with suppress(Error):
                    self.collect(_unknown(owners, self.using))
            raise

    def collect(self, change: Change) -> None:
        """Add the change of a statement to the transaction."""
        connection: Any = self._connection()
        deltas = {c: numbers for c, numbers in change.deltas.items() if not {0}.issuperset(numbers.values())}
        if self.is_of_copy or in_manual_transaction(connection):
            owners: list[Owner] = [(c, key) for c, numbers in deltas.items() for key, n in numbers.items() if n != 0]
            owners += [(counter, None) for counter in change.everyone_of]
            if not self.is_of_copy:  # its transaction may lock out that of the connection itself
                request_recounts(self.using, owners)
            doubt(owners)
            return
        if not deltas and not change.everyone_of:
            return
        if connection.in_atomic_block:
            log = self._log(connection)
            log.add(Change(deltas, change.everyone_of))
            if counts_changed.receivers:  # a TestCase never commits, but can run such hooks
                transaction.on_commit(log.signal, self.using)
        else:  # it is committed already
            log = TransactionLog(connection)
            doubts = {c: {key: None for key, n in numbers.items() if n != 0} for c, numbers in deltas.items()}
            log.add(Change(doubts, change.everyone_of))
            log.send(connection)

    def _log(self, connection: Any) -> TransactionLog:
        """Return the log of the current transaction and schema."""
        schema = schema_of(connection)
        log = self._logs.get(schema)
        if log is None:
            if self not in connection.execute_wrappers:
                connection.execute_wrappers.insert(0, self)  # the first, because execute_wrapper() pops the last one
            log = self._logs[schema] = TransactionLog(connection)
        return log

    def __call__(self, execute: Callable, sql: Any, params: Any, many: bool, context: dict) -> Any:
        """Execute any statement of a transaction that has changed counts (rule: unknown)."""
        text = (sql if isinstance(sql, str) else repr(sql)).upper()  # psycopg also takes bytes and composed SQL
        logs = list(self._logs.values())
        for log in logs:
            if "ROLLBACK" in text or "ABORT" in text:
                log.mark_unknown()
            if not COMMITS_NOTHING.match(text):  # COMMIT, a procedure, on MySQL any change of the schema
                log.announce(self.connection)
        try:
            return execute(sql, params, many, context)
        except BaseException:  # the database may have rolled back the statement, or everything
            for log in logs:
                log.mark_unknown()
            raise

    # ---------------------------------------------------- end of a transaction
    def begin_anew(self) -> None:
        """Drop all logs, because the connection is new. Healing finds what the lost one has announced."""
        self._drop_logs()
        self._ending = []

    def _drop_logs(self) -> list[TransactionLog]:
        logs, self._logs = list(self._logs.values()), {}
        connection: Any = self._connection()
        if self in connection.execute_wrappers:
            connection.execute_wrappers.remove(self)
        return logs

    def _before_commit(self) -> None:
        if not self._logs:
            return
        connection: Any = self._connection()
        self._ending = list(self._logs.values())
        try:
            connection.in_atomic_block = True  # the transaction is still open, although Atomic says otherwise
            for log in self._ending:
                log.announce(connection)
        finally:
            connection.in_atomic_block = False
            self._drop_logs()
        # Only now, so that nobody finds our hook in an open transaction. It comes first, because a hook that raises
        # stops those after it. It is not robust, because Django would log a time limit that is meant for the site.
        connection.run_on_commit.insert(0, (set(), self._send, False))

    def _send(self) -> None:
        logs, self._ending = self._ending, []
        for log in logs:
            log.send(self.connection)

    def _after_rollback(self, is_done: bool) -> None:
        logs, self._ending = [*self._ending, *self._drop_logs()], []
        for log in logs if is_done else ():
            if log.intents.all:
                log.undo(self.connection)

    # ------------------------------------------------------------------ reads
    def needs_rows(self, counter: Declaration, owner_key: str) -> bool:
        """Return whether this connection must count the rows of this owner, because its transaction has changed some,
        or may not see the commits of others."""
        if self._logs and any(log.has_touched(counter, owner_key) for log in self._logs.values()):
            return True
        connection: Any = self._connection()
        return self.may_see_old_data() if connection.in_atomic_block else in_manual_transaction(connection)

    def may_have_changed_anyone(self, counter: Declaration) -> bool:
        """Return whether the transaction may have changed anyone's count."""
        return any(counter in log.everyone_of for log in self._logs.values())

    def touched(self, counter: Declaration, owner_keys: Iterable[str]) -> set[str]:
        """Return those of the owners whose counts the transaction may have changed."""
        found = [log.deltas[counter] for log in self._logs.values() if counter in log.deltas]
        return {owner_key for owner_key in owner_keys if found and any(owner_key in deltas for deltas in found)}

    def may_see_old_data(self) -> bool:
        """Return whether this connection may not see the newest committed rows, as far as Django knows. If SQL has set
        another isolation level, a cached total is still the newest count, and a miss asks."""
        connection: Any = self._connection()
        if not connection.in_atomic_block or not connection.commit_on_exit:
            return in_manual_transaction(connection)
        vendor = connection.vendor
        return vendor == "sqlite" or (vendor == "mysql" and (connection.isolation_level or "") not in READ_COMMITTED)


def _unknown(owners: Owners | None, using: str) -> Change:
    """Return the change of a statement of which nobody knows what it has done."""
    if owners is None:
        return Change({}, everyone_of=[counter for counter in declarations() if counter.db == using])
    return Change({counter: dict.fromkeys(owner_keys) for counter, owner_keys in owners.items()})


def _has_ended(connection: Any, error: BaseException) -> bool:
    """Return whether a statement that was sent, and raised this error, will change nothing more. If the connection is
    lost while the server waits for a lock, the server continues, and commits."""
    if isinstance(error, OperationalError | InterfaceError):
        if connection.vendor == "mysql":  # is_usable() could connect again
            return not (error.args and error.args[0] in CONNECTION_LOST)
        return connection.is_usable()
    return isinstance(error, DatabaseError)  # otherwise the site has interrupted it


@receiver(connection_created)
def _watch(connection: Any, **_: Any) -> None:
    if ledger := vars(connection).get("counter_ledger"):
        ledger.begin_anew()
    # Neither the nameless connection that creates databases, nor a copy of one, which may be in a transaction.
    if connection.alias not in connections or connections[connection.alias] is not connection:
        return
    # Models may not be loaded yet. A system check reports a missing one.
    with suppress(AppRegistryNotReady, BufferUnavailable, LookupError):
        if connection.alias in {counter.db for counter in declarations()}:
            Ledger.of(connection.alias)  # before anyone replaces its methods for a while
            # Here, and not at the first use of a counter, because a test may count its queries. Not for tenants,
            # because their schema is not known yet.
            if not schema_of(connection):
                identify(connection)
