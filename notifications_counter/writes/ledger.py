"""Collects each transaction's deltas and sends them after commit."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from django.apps import apps
from django.db import DatabaseError, Error, InterfaceError, OperationalError, connections, transaction
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from ..buffer.types import Delta
from ..conf import options
from ..databases import identify, schema_of
from ..declaration import Declaration, declarations
from ..exceptions import BufferUnavailable
from ..internals import has_failed, watch_transactions
from ..signals import counts_changed
from .doubt import forget, mark_dirty, request_recounts, requests_exist
from .transaction import TransactionLog

T = TypeVar("T")

SAVEPOINT = re.compile(
    r"\s*(?:(SAVEPOINT)|(RELEASE)(?:\s+SAVEPOINT)?|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)\s+(\S+)",
    re.IGNORECASE,
)
COMMITS_NOTHING = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|SHOW|SAVEPOINT|RELEASE|ROLLBACK|SET\s+search_path|"
    r"SET\s+CONSTRAINTS|PRAGMA\s+foreign_key_check)\b",  # with these two each TestCase ends
    re.IGNORECASE,
)
ISOLATION = re.compile(r"\s*(?:SET|BEGIN|START)\b.*\bISOLATION\b", re.IGNORECASE | re.DOTALL)

DEADLOCK = 1213
"""The error after which MySQL and MariaDB have rolled back the transaction, and not only the statement."""


CONNECTION_LOST = range(2000, 3000)
"""Errors of MySQL's clients. The server's own have other numbers."""


class _NotBegun(Exception):
    """Redis refused a begin whose statement has not been executed yet."""


class _CommitHook:
    """Our entry in run_on_commit. It is there from the commit on, so nobody meets it in an open transaction."""

    __slots__ = ("log", "__weakref__")

    def __init__(self, log: TransactionLog):
        self.log = log

    def __call__(self) -> None:
        self.log.send()


class Ledger:
    """The transaction logs of one database connection, and the wrapper around its statements."""

    def __init__(self, connection: Any):
        self._connection = weakref.ref(connection)
        self.using: str = connection.alias
        self._logs: dict[str | None, TransactionLog] = {}  # of the current transaction, by schema
        self._committed: list[weakref.ref[_CommitHook]] = []
        self._alone: list[weakref.ref[TransactionLog]] = []
        self.isolation_was_set = False
        connection.execute_wrappers.insert(0, self)  # execute_wrapper() pops the last one
        watch_transactions(connection, self._before_commit, self.drop_logs)

    @classmethod
    def of(cls, using: str) -> Ledger:
        """The ledger of this thread's connection to a database."""
        connection = connections[using]
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

    # ------------------------------------------------------- transaction logs
    def _transaction_log(self) -> TransactionLog:
        schema = schema_of(self.connection)
        if schema not in self._logs:
            self._logs[schema] = TransactionLog(self.using)
        return self._logs[schema]

    def _log_for_counts(self) -> TransactionLog:
        """The same, for one more entry."""
        log = self._transaction_log()
        if counts_changed.receivers:  # a TestCase never commits, and runs what waits for that
            transaction.on_commit(partial(log.announce, len(log.entries)), self.using)
        return log

    def drop_logs(self) -> None:
        """Forget the transaction: it is rolled back, or its connection was closed and there is a new one."""
        self._logs = {}

    def record_deltas(self, counter: Declaration, deltas: Mapping[str, Delta]) -> None:
        """Note what the statement just run has changed. None means unknown: the owner is recounted."""
        if not deltas or counter.db != self.using:  # a counter belongs to one database
            return
        if (log := self._standalone_log()) is not None and not self.connection.in_atomic_block:
            log.record_deltas(counter, deltas)
        elif self.in_manual_transaction():
            request_recounts(self.using, [(counter, member) for member in deltas])
            mark_dirty((counter, member) for member in deltas)
        elif self.connection.in_atomic_block:
            self._log_for_counts().record_deltas(counter, deltas)
        else:
            log = TransactionLog(self.using)
            log.record_deltas(counter, dict.fromkeys(deltas))
            log.send()

    def doubt(self, counter: Declaration) -> None:
        """Note that the statement just run may have changed any owner's count: everyone is recounted. Call it inside a
        transaction, because the request for the recount commits with it."""
        try:
            request_recounts(self.using, [(counter, None)])
        except DatabaseError:
            if requests_exist(self.using):
                raise
            return  # before our first migration, no count is stored that could be wrong
        if self.in_manual_transaction():
            forget(counter)
        else:
            self._log_for_counts().doubt(counter)

    def record_activity(self, activity: Mapping[tuple[Declaration, str], int]) -> None:
        """Note what the statement just run has done, for the time-sliced counters, if RECORD_ACTIVITY is on."""
        if not options.RECORD_ACTIVITY or not activity or self.in_manual_transaction():
            return
        activity = {(counter, what): n for (counter, what), n in activity.items() if counter.db == self.using}
        if self.connection.in_atomic_block:
            self._transaction_log().record_activity(activity)
        elif (log := self._standalone_log()) is not None:
            log.record_activity(activity)

    def write(self, owners: Mapping[Declaration, Iterable[str]] | None, statement: Callable[[], T]) -> T:
        """Run a statement that changes rows of these owners, and that records what it has changed. None: the owners are
        not known before.

        In a transaction, owners begin right before the commit. Without one, the statement is prepared while begin is on
        its way. If Redis refuses the begin, nothing has been executed yet: the statement is run again in a transaction,
        which commits it together with a RecountRequest. A statement whose owners are not known needs a transaction.
        """
        if owners is None and not self.in_manual_transaction():
            with transaction.atomic(using=self.using, savepoint=False):
                return statement()
        owners = {counter: members for counter, members in (owners or {}).items() if counter.db == self.using}
        if self.connection.in_atomic_block or self.in_manual_transaction():
            return self._write_inside(owners, statement)
        if not owners:
            return statement()
        try:
            return self._write_alone(owners, statement)
        except _NotBegun:
            with transaction.atomic(using=self.using):
                return statement()

    def _write_inside(self, owners: Mapping[Declaration, Iterable[str]], statement: Callable[[], T]) -> T:
        try:
            return statement()
        except Error:
            raise
        except BaseException:  # a time limit, an interrupt: nothing tells whether it was executed
            if self.connection.in_atomic_block:
                transaction.set_rollback(True, using=self.using)
            else:
                with suppress(Error):
                    for counter, members in owners.items():
                        self.record_deltas(counter, dict.fromkeys(members))
            raise

    def _write_alone(self, owners: Mapping[Declaration, Iterable[str]], statement: Callable[[], T]) -> T:
        log = TransactionLog(self.using)
        try:
            self._alone.append(weakref.ref(log))
            if log.begin(owners):
                raise _NotBegun
            return statement()
        except _NotBegun:
            raise
        except BaseException as error:
            log.mark_unknown()
            if not log.unread and not self._has_ended(error):
                log.leave_open()
            raise
        finally:
            self._alone = [ref for ref in self._alone if ref() not in (log, None)]
            log.send()

    def _has_ended(self, error: BaseException) -> bool:
        """Return whether a statement that was sent, and raised this, has changed all that it will ever change. If the
        connection is lost while the server waits for a lock, the server goes on, and commits."""
        if isinstance(error, OperationalError | InterfaceError):
            if self.connection.vendor == "mysql":  # to ask could connect again
                return not (error.args and error.args[0] in CONNECTION_LOST)
            return self.connection.is_usable()
        return isinstance(error, DatabaseError)  # else the site has interrupted it

    def _standalone_log(self) -> TransactionLog | None:
        """The log of the statement that is being run outside of a transaction. An interrupt may leave dead ones."""
        while self._alone:
            if (log := self._alone[-1]()) is not None:
                return log
            self._alone.pop()
        return None

    # ------------------------------------------------------------------ reads
    def touched(self, counter: Declaration, member: str) -> bool:
        """Return whether this connection has changed rows of this owner and not sent the deltas yet."""
        return any(member in log.touched.get(counter, ()) or counter in log.doubted for log in self._unsent_logs())

    def doubts(self, counter: Declaration) -> bool:
        """Return whether that is so for everyone."""
        return any(counter in log.doubted for log in self._unsent_logs())

    def all_touched(self, counter: Declaration) -> set[str]:
        """Return every owner for whom that is so."""
        return set().union(*(log.touched.get(counter, ()) for log in self._unsent_logs()))

    def _unsent_logs(self) -> Sequence[TransactionLog]:
        if not self._logs and not self._committed and not self._alone:
            return ()
        hooks = [hook for ref in self._committed if (hook := ref()) is not None]
        self._committed = [weakref.ref(hook) for hook in hooks]
        alone = [log for ref in self._alone if (log := ref()) is not None]
        return [*self._logs.values(), *(hook.log for hook in hooks), *alone]

    def in_manual_transaction(self) -> bool:
        """Return whether autocommit was switched off by hand. Then Django announces no commit, not even in atomic()."""
        connection = self.connection
        if connection.in_atomic_block:
            return not connection.commit_on_exit
        return connection.connection is not None and not connection.autocommit

    # ---------------------------------------------------------------- wrapper
    def __call__(self, execute: Callable, sql: Any, params: Any, many: bool, context: dict) -> Any:
        text = sql if isinstance(sql, str) else ""
        if ISOLATION.match(text):
            self.isolation_was_set = True
        if self._alone and (alone := self._standalone_log()) is not None and alone.settle():
            raise _NotBegun
        logs = list(self._logs.values())
        if not logs:
            return execute(sql, params, many, context)
        if not COMMITS_NOTHING.match(text):  # COMMIT itself, a procedure, on MySQL any change of the schema
            for log in logs:
                log.begin_the_changed()
        if savepoint := SAVEPOINT.match(text):
            for log in logs:
                log.foresee(savepoint)
        try:
            result = execute(sql, params, many, context)
        except OperationalError as error:
            if self.connection.vendor == "mysql" and error.args[:1] == (DEADLOCK,):
                for log in logs:
                    log.start_again()
            raise
        if savepoint:
            for log in logs:
                log.follow(savepoint)
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
                log.begin_the_changed()
        finally:
            connection.in_atomic_block = False
            self.drop_logs()
            hooks = [_CommitHook(log) for log in logs]
            self._committed = [ref for ref in self._committed if ref() is not None] + [*map(weakref.ref, hooks)]
            # Ours first: a hook that raises keeps those after it from running. Not robust, because Django would log a
            # time limit that is meant for the site.
            connection.run_on_commit[:0] = [(set(), hook, False) for hook in hooks]


@receiver(connection_created)
def _watch(connection: Any, **_: Any) -> None:
    if connection.alias not in connections:  # the nameless one that creates databases
        return
    Ledger.of(connection.alias).drop_logs()
    # Here, and not at the first use of a counter, because a test may count its queries. Which tenant it is for is not
    # known yet.
    with suppress(BufferUnavailable, LookupError):  # a system check reports a model that does not exist
        if (
            apps.models_ready
            and not schema_of(connection)
            and connection.alias in {counter.db for counter in declarations()}
        ):
            identify(connection)
