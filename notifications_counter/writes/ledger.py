"""What a database connection has to tell Redis: a log of each transaction, until its deltas are sent."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django.core.exceptions import AppRegistryNotReady
from django.db import Error, connections, transaction
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from ..databases.identity import identify
from ..databases.routing import schema_of
from ..declaration import Declaration, declarations
from ..exceptions import BufferUnavailable
from ..internals import has_failed, has_lost_transaction, in_manual_transaction, watch_transactions
from ..signals import counts_changed
from .change import Change
from .requests import forget, mark_dirty, request_recounts
from .transaction import TransactionLog

SAVEPOINT = re.compile(
    r"\s*(?:(SAVEPOINT)|(RELEASE)(?:\s+SAVEPOINT)?|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)\s+(\S+)",
    re.IGNORECASE,
)
COMMITS_NOTHING = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|SHOW|SAVEPOINT|RELEASE|ROLLBACK|SET\s+search_path|"
    r"SET\s+CONSTRAINTS|PRAGMA\s+foreign_key_check)\b",  # each TestCase ends with one of these two
    re.IGNORECASE,
)
ROLLBACK = re.compile(r"\s*(?:ROLLBACK|ABORT)\b", re.IGNORECASE)

DEADLOCK = 1213
"""The error with which MySQL and MariaDB roll back the whole transaction, not only the statement."""

MAY_ROLL_BACK = {1020, 1205, 1206}
"""Errors with which they may, depending on version and settings: a changed record, a lock timeout, too many locks."""

READ_COMMITTED = {"read committed", "read uncommitted"}
"""Isolation levels at which a transaction sees the commits of others."""


class NotAnnounced(Exception):
    """Redis refused the announcement of a statement that has not been executed yet."""


class Ledger:
    """The transaction logs of one database connection, and the wrapper around its statements."""

    def __init__(self, connection: Any):
        self._connection = weakref.ref(connection)
        self.using: str = connection.alias
        self._logs: dict[str | None, TransactionLog] = {}  # of the current transaction, by schema
        self._committing: Sequence[weakref.ref[TransactionLog]] = ()  # by the last COMMIT, which may be refused
        self._committed: Sequence[weakref.ref[TransactionLog]] = ()  # until their hooks have run
        self._rolled_back: list[TransactionLog] = []
        self.autocommit_logs: Sequence[weakref.ref[TransactionLog]] = ()  # of statements outside a transaction
        watch_transactions(
            connection,
            self._before_commit,
            self._before_rollback,
            lambda: bool(self._logs),
            after_refusal=self._after_refusal,
            after_rollback=self._after_rollback,
        )

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

    # ----------------------------------------------------------------- record
    def collect(self, change: Change) -> None:
        """Add the change of a statement to the transaction."""
        connection: Any = self._connection()
        deltas = {c: numbers for c, numbers in change.deltas.items() if not {0}.issuperset(numbers.values())}
        everyone = [(counter, None) for counter in change.everyone_of]
        if in_manual_transaction(connection):
            owners = [(c, key) for c, numbers in deltas.items() for key, n in numbers.items() if n != 0]
            request_recounts(self.using, [*owners, *everyone])
            mark_dirty(owners)
            for counter in change.everyone_of:
                forget(counter)
            return
        if everyone:
            request_recounts(self.using, everyone)  # rule: everyone
        elif not deltas:
            return
        if connection.in_atomic_block:
            log = self._transaction_log(connection)
            if counts_changed.receivers:  # a TestCase never commits, but can run such hooks
                transaction.on_commit(partial(log.signal, len(log.entries)), self.using)
            log.add(deltas, change.everyone_of)
        else:
            log = TransactionLog(connection)
            unknown = {c: dict.fromkeys(key for key, n in numbers.items() if n != 0) for c, numbers in deltas.items()}
            log.add(unknown, change.everyone_of)
            log.send(connection)

    def _transaction_log(self, connection: Any) -> TransactionLog:
        schema = schema_of(connection)
        log = self._logs.get(schema)
        if log is None:
            self.wrap_statements(connection)
            log = self._logs[schema] = TransactionLog(connection)
        return log

    def wrap_statements(self, connection: Any) -> None:
        """Be the first wrapper of statements, because ``execute_wrapper()`` pops the last one."""
        if self not in connection.execute_wrappers:
            connection.execute_wrappers.insert(0, self)

    def unwrap_statements(self) -> None:
        """Stop wrapping them, unless a counted change is left."""
        connection: Any = self._connection()
        if not self._logs and not self.autocommit_logs and self in connection.execute_wrappers:
            connection.execute_wrappers.remove(self)

    def drop_logs(self) -> None:
        """Drop the logs of the transaction: it has ended, or the connection is new."""
        self._logs = {}
        self.unwrap_statements()

    # ------------------------------------------------------------------ reads
    def needs_rows(self, counter: Declaration, owner_key: str) -> bool:
        """Return whether this connection must count the rows of this owner, because it has changed some and not sent
        the deltas yet, or may not see the commits of others."""
        for log in self._unsent_logs() if self._logs or self._committed or self.autocommit_logs else ():
            if log.has_touched(counter, owner_key):
                return True
        connection: Any = self._connection()
        return self.may_see_old_data() if connection.in_atomic_block else in_manual_transaction(connection)

    def may_have_changed_anyone(self, counter: Declaration) -> bool:
        """Return whether a statement whose change is not sent yet may have changed anyone's count."""
        return any(counter in log.everyone_of for log in self._unsent_logs())

    def all_touched(self, counter: Declaration) -> set[str]:
        """Return every owner whose rows this connection has changed, with deltas that are not sent yet."""
        return set().union(*(log.touched_of(counter) for log in self._unsent_logs()))

    def _unsent_logs(self) -> Sequence[TransactionLog]:
        self._committed = _unsent(self._committed)
        refs = [*self._committed, *self.autocommit_logs]
        return [*self._logs.values(), *(log for ref in refs if (log := ref()) is not None)]

    def may_see_old_data(self) -> bool:
        """Return whether this connection may not see the newest committed rows, as far as Django knows. If SQL has set
        another isolation level, a cached total is still the newest count, and a miss asks."""
        connection: Any = self._connection()
        if not connection.in_atomic_block or not connection.commit_on_exit:
            return in_manual_transaction(connection)
        vendor = connection.vendor
        return vendor == "sqlite" or (vendor == "mysql" and (connection.isolation_level or "") not in READ_COMMITTED)

    # ---------------------------------------------------------------- wrapper
    def __call__(self, execute: Callable, sql: Any, params: Any, many: bool, context: dict) -> Any:
        for ref in reversed(self.autocommit_logs):
            if (log := ref()) is not None:  # an interrupt may leave dead ones
                if log.intents.settle():
                    raise NotAnnounced
                break
        if not self._logs:
            return execute(sql, params, many, context)
        logs = list(self._logs.values())
        text = sql if isinstance(sql, str) else _text(sql, self.connection)
        if not COMMITS_NOTHING.match(text):  # COMMIT, a procedure, on MySQL any change of the schema
            for log in logs:
                log.announce(self.connection)
                log.maybe_committed = len(log.intents.all)
        if savepoint := SAVEPOINT.match(text):
            for log in logs:
                log.before_savepoint(savepoint)
        try:
            result = execute(sql, params, many, context)
        except Error as error:
            code = error.args[0] if error.args and self.connection.vendor == "mysql" else None
            for log in logs:
                if code == DEADLOCK:
                    log.start_again()
                elif code in MAY_ROLL_BACK or has_lost_transaction(self.connection):
                    log.recount_since(0)
            raise
        for log in logs:
            if savepoint:
                log.after_savepoint(savepoint)
            elif ROLLBACK.match(text):
                log.start_again()
        return result

    def _before_commit(self) -> None:
        self._committing = ()
        logs = list(self._logs.values())
        if not logs:
            return
        connection = self.connection
        try:
            connection.in_atomic_block = True  # the transaction is still open, although Atomic says otherwise
            failed = has_failed(connection)
            for log in logs:
                if failed:
                    log.start_again()  # PostgreSQL will roll back without an error
                log.announce(connection)
        finally:
            connection.in_atomic_block = False
            self.drop_logs()
            self._committing = [weakref.ref(log) for log in logs]
            self._committed = [*_unsent(self._committed), *self._committing]
            # Only now, so that nobody finds our hooks in an open transaction. They come first, because a hook that
            # raises stops those after it. They are not robust, because Django would log a time limit that is meant for
            # the site.
            connection.run_on_commit[:0] = [(set(), partial(log.send, connection), False) for log in logs]

    def _after_refusal(self) -> None:
        for ref in self._committing:
            if (log := ref()) is not None:
                log.undo(self.connection)

    def _before_rollback(self) -> None:
        self._rolled_back = [log for log in self._logs.values() if log.intents.all]
        self.drop_logs()

    def _after_rollback(self) -> None:
        while self._rolled_back:
            self._rolled_back.pop().undo(self.connection)


def _unsent(refs: Sequence[weakref.ref[TransactionLog]]) -> Sequence[weakref.ref[TransactionLog]]:
    return refs and [ref for ref in refs if (log := ref()) is not None and log.is_unsent]


def _text(sql: Any, connection: Any) -> str:
    """Return the text of a statement that is not a str: psycopg also takes bytes and composed SQL."""
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    with connection.wrap_database_errors:
        return sql.as_string(connection.connection) if hasattr(sql, "as_string") else ""


@receiver(connection_created)
def _watch(connection: Any, **_: Any) -> None:
    if ledger := vars(connection).get("counter_ledger"):
        ledger.drop_logs()
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
