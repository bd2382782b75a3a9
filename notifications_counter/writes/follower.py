"""Follows the transactions of a database connection, from the first counted change to the COMMIT or ROLLBACK."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from django.db import Error

from ..databases.routing import schema_of
from ..declaration import Declaration
from ..internals import has_failed, has_lost_transaction, in_manual_transaction, watch_transactions
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
"""Errors with which they may, depending on version and settings: a record that has changed, a lock that was not granted
in time, too many locks."""

READ_COMMITTED = {"read committed", "read uncommitted"}
"""Isolation levels of transactions that see what others commit."""


class NotAnnounced(Exception):
    """Redis refused the announcement of a statement that has not been executed yet."""


class _CommitHook:
    """Our entry in run_on_commit. It is added at the commit, so that nobody finds it in an open transaction."""

    __slots__ = ("log", "connection", "__weakref__")

    def __init__(self, log: TransactionLog, connection: Any):
        self.log = log
        self.connection = connection

    def __call__(self) -> None:
        self.log.send(self.connection)


class Follower:
    """The transaction logs of one database connection, and the wrapper around its statements."""

    def __init__(self, connection: Any):
        self._connection = weakref.ref(connection)
        self.using: str = connection.alias
        self._logs: dict[str | None, TransactionLog] = {}  # of the current transaction, by schema
        self._committed: list[weakref.ref[_CommitHook]] = []
        self._alone: Sequence[weakref.ref[TransactionLog]] = ()  # of statements that run outside a transaction
        self._rolled_back: list[TransactionLog] = []
        watch_transactions(
            connection,
            self._before_commit,
            self._before_rollback,
            lambda: bool(self._logs),
            after_refusal=self._after_refusal,
            after_rollback=self._after_rollback,
        )

    @property
    def connection(self) -> Any:
        connection = self._connection()
        assert connection is not None
        return connection

    # ------------------------------------------------------- transaction logs
    def _transaction_log(self, connection: Any) -> TransactionLog:
        schema = schema_of(connection)
        log = self._logs.get(schema)
        if log is None:
            self._see_statements(connection)
            log = self._logs[schema] = TransactionLog(connection)
        return log

    def _see_statements(self, connection: Any) -> None:
        """Be the first wrapper of statements, while there is a counted change: ``execute_wrapper()`` pops the last."""
        if self not in connection.execute_wrappers:
            connection.execute_wrappers.insert(0, self)

    def _look_away(self) -> None:
        connection: Any = self._connection()
        if not self._logs and not self._alone and self in connection.execute_wrappers:
            connection.execute_wrappers.remove(self)

    def drop_logs(self) -> None:
        """Forget the transaction, because it is rolled back, or because there is a new connection."""
        self._logs = {}
        self._look_away()

    # ------------------------------------------------------------------ reads
    def needs_rows(self, counter: Declaration, owner_key: str) -> bool:
        """Return whether this connection must count the rows of this owner, because it has changed some and not sent
        the deltas yet, or may not see what others commit."""
        for log in self._unsent_logs() if self._logs or self._committed or self._alone else ():
            if log.has_touched(counter, owner_key):
                return True
        connection: Any = self._connection()
        return self.sees_old_data() if connection.in_atomic_block else in_manual_transaction(connection)

    def recounts_everyone(self, counter: Declaration) -> bool:
        """Return whether a statement may have changed anyone's count, and that is not sent yet."""
        return any(counter in log.everyone_of for log in self._unsent_logs())

    def all_touched(self, counter: Declaration) -> set[str]:
        """Return every owner whose rows this connection has changed without sending the deltas yet."""
        return set().union(*(log.touched_of(counter) for log in self._unsent_logs()))

    def _unsent_logs(self) -> Sequence[TransactionLog]:
        hooks = [hook for ref in self._committed if (hook := ref()) is not None]
        self._committed = [weakref.ref(hook) for hook in hooks]
        alone = [log for ref in self._alone if (log := ref()) is not None]
        return [*self._logs.values(), *(hook.log for hook in hooks), *alone]

    def sees_old_data(self) -> bool:
        """Return whether this connection may not see the newest committed rows, as far as Django knows. If SQL has set
        another isolation level, a cached total is still the newest count, and a miss asks."""
        connection: Any = self._connection()
        if not connection.in_atomic_block or not connection.commit_on_exit:
            return in_manual_transaction(connection)
        vendor = connection.vendor
        return vendor == "sqlite" or (vendor == "mysql" and (connection.isolation_level or "") not in READ_COMMITTED)

    # ---------------------------------------------------------------- wrapper
    def __call__(self, execute: Callable, sql: Any, params: Any, many: bool, context: dict) -> Any:
        for ref in reversed(self._alone):
            if (alone := ref()) is not None:  # an interrupt may leave dead ones
                if alone.intents.settle():
                    raise NotAnnounced
                break
        if not self._logs:
            return execute(sql, params, many, context)
        logs = list(self._logs.values())
        text = sql if isinstance(sql, str) else _text(sql, self.connection)
        if not COMMITS_NOTHING.match(text):  # COMMIT itself, a procedure, on MySQL any change of the schema
            for log in logs:
                log.announce(self.connection)
                log.maybe_committed = len(log.intents.all)
        if savepoint := SAVEPOINT.match(text):
            for log in logs:
                log.foresee(savepoint)
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
                log.follow(savepoint)
            elif ROLLBACK.match(text):
                log.start_again()
        return result

    def _before_commit(self) -> None:
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
            hooks = [_CommitHook(log, connection) for log in logs]
            living = self._committed and [ref for ref in self._committed if ref() is not None]
            self._committed = [*living, *map(weakref.ref, hooks)]
            # Ours come first, because a hook that raises stops those after it. They are not robust, because Django
            # would log a time limit that is meant for the site.
            connection.run_on_commit[:0] = [(set(), hook, False) for hook in hooks]

    def _after_refusal(self) -> None:
        for _, hook, _ in self.connection.run_on_commit:
            if isinstance(hook, _CommitHook):
                hook.log.undo(self.connection)

    def _before_rollback(self) -> None:
        self._rolled_back = [log for log in self._logs.values() if log.intents.all]
        self.drop_logs()

    def _after_rollback(self) -> None:
        while self._rolled_back:
            self._rolled_back.pop().undo(self.connection)


def _text(sql: Any, connection: Any) -> str:
    """Return the text of a statement that is not a str: psycopg takes bytes, and statements that it has composed."""
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    with connection.wrap_database_errors:
        return sql.as_string(connection.connection) if hasattr(sql, "as_string") else ""
