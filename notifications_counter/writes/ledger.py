"""Collects each transaction's deltas and sends them after commit."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from django.apps import apps
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from ..buffer.types import Delta
from ..conf import options
from ..databases import identify, schema_of
from ..declaration import Declaration, declarations
from ..exceptions import BufferUnavailable
from ..internals import has_failed, wrap_commit
from .doubt import forget, mark_dirty, request_recounts, requests_exist
from .transaction import TransactionLog

T = TypeVar("T")

SAVEPOINT = re.compile(
    r"\s*(?:(SAVEPOINT)|(RELEASE)(?:\s+SAVEPOINT)?|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)\s+(\S+)",
    re.IGNORECASE,
)
COMMITS_NOTHING = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|SHOW|SAVEPOINT|RELEASE|ROLLBACK|SET\s+search_path)\b", re.IGNORECASE
)
ISOLATION = re.compile(r"\s*(?:SET|BEGIN|START)\b.*\bISOLATION\b", re.IGNORECASE | re.DOTALL)

DEADLOCK = 1213
"""The error after which MySQL and MariaDB have rolled back the transaction, and not only the statement."""


class _NotBegun(Exception):
    """Redis refused a begin whose statement has not been executed yet."""


class _CommitHook:
    """Our entry in run_on_commit. The transaction is open for as long as the entry is in there."""

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
        self._log: TransactionLog | None = None
        self._hook: weakref.ref[_CommitHook] | None = None
        self._place = 0  # of the hook among those of the connection
        self._unsent: list[weakref.ref[_CommitHook]] = []
        self._standalone: list[TransactionLog] = []
        self.isolation_was_set = False
        connection.execute_wrappers.insert(0, self)  # execute_wrapper() pops the last one
        wrap_commit(connection, self._before_commit)

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
    def _open_log(self) -> TransactionLog | None:
        """Return the log of the current transaction, if there is one."""
        if self._log is None or self._hook is None:
            return None
        hook, entries = self._hook(), self.connection.run_on_commit
        if hook is not None:
            if self._place < len(entries) and entries[self._place][1] is hook:  # a site may have thousands there
                return self._log
            for self._place, entry in enumerate(entries):
                if entry[1] is hook:
                    return self._log
        self._log = self._hook = None  # committed and not sent yet, or rolled back
        return None

    def _open_logs(self) -> list[TransactionLog]:
        """Return all logs of the current transaction: one for each schema in which it has changed something."""
        if self._open_log() is None:
            return []
        return [entry[1].log for entry in self.connection.run_on_commit if isinstance(entry[1], _CommitHook)]

    def _transaction_log(self) -> TransactionLog:
        log, schema = self._open_log(), schema_of(self.connection)
        if log is not None and log.schema != schema:
            log = next((other for other in self._open_logs() if other.schema == schema), None)
        if log is None:
            log = self._log = TransactionLog(self.using)
            hook = _CommitHook(log)
            # Not by on_commit(): the log outlives the savepoint it was made in, and follows rollbacks itself.
            self.connection.run_on_commit.append((set(), hook, True))
            self._hook = weakref.ref(hook)
            self._unsent = [ref for ref in self._unsent if ref() is not None] + [self._hook]
        return log

    def record_deltas(self, counter: Declaration, deltas: Mapping[str, Delta]) -> None:
        """Note what the statement just run has changed. None means unknown: the owner is recounted."""
        if not deltas or counter.db != self.using:  # a counter belongs to one database
            return
        if self._standalone and not self.connection.in_atomic_block:
            self._standalone[-1].record_deltas(counter, deltas)
        elif self.in_manual_transaction():
            request_recounts(self.using, [(counter, member) for member in deltas])
            mark_dirty((counter, member) for member in deltas)
        elif self.connection.in_atomic_block:
            self._transaction_log().record_deltas(counter, deltas)
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
            self._transaction_log().doubt(counter)

    def record_activity(self, activity: Mapping[tuple[Declaration, str], int]) -> None:
        """Note what the statement just run has done, for the time-sliced counters, if RECORD_ACTIVITY is on."""
        if not options.RECORD_ACTIVITY or not activity or self.in_manual_transaction():
            return
        activity = {(counter, what): n for (counter, what), n in activity.items() if counter.db == self.using}
        if self.connection.in_atomic_block:
            self._transaction_log().record_activity(activity)
        elif self._standalone:
            self._standalone[-1].record_activity(activity)

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
        if not owners or self.connection.in_atomic_block or self.in_manual_transaction():
            return statement()
        try:
            return self._write_alone(owners, statement)
        except _NotBegun:
            with transaction.atomic(using=self.using):
                return statement()

    def _write_alone(self, owners: Mapping[Declaration, Iterable[str]], statement: Callable[[], T]) -> T:
        log = TransactionLog(self.using)
        self._standalone.append(log)
        try:
            if log.begin(owners):
                raise _NotBegun
            return statement()
        except _NotBegun:
            raise
        except BaseException:
            log.mark_unknown()
            raise
        finally:
            self._standalone.pop()
            log.send()

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
        if not self._unsent and not self._standalone:
            return ()
        logs = [hook.log for ref in self._unsent if (hook := ref()) is not None]
        self._unsent = [ref for ref in self._unsent if ref() is not None]
        return logs + self._standalone

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
        if self._standalone and self._standalone[-1].settle():
            raise _NotBegun
        if self._open_log() is None:
            return execute(sql, params, many, context)
        if not COMMITS_NOTHING.match(text):  # COMMIT itself, a procedure, on MySQL any change of the schema
            for log in self._open_logs():
                log.begin_the_changed()
        try:
            result = execute(sql, params, many, context)
        except OperationalError as error:
            if self.connection.vendor == "mysql" and error.args[:1] == (DEADLOCK,):
                for log in self._open_logs():
                    log.start_again()
            raise
        if savepoint := SAVEPOINT.match(text):
            for log in self._open_logs():
                log.follow(savepoint)
        return result

    def _before_commit(self) -> None:
        logs = self._open_logs()
        if not logs:
            return
        connection = self.connection
        connection.in_atomic_block = True  # the transaction is still open, although Atomic says otherwise
        try:
            failed = has_failed(connection)
            for log in logs:
                if failed:
                    log.start_again()  # PostgreSQL will roll back without an error
                log.begin_the_changed()
        finally:
            connection.in_atomic_block = False
        # Ours first: a hook that raises keeps those after it from running.
        connection.run_on_commit.sort(key=lambda entry: not isinstance(entry[1], _CommitHook))


@receiver(connection_created)
def _watch(connection: Any, **_: Any) -> None:
    if connection.alias not in connections:  # the nameless one that creates databases
        return
    Ledger.of(connection.alias)
    # Here, and not at the first use of a counter, because a test may count its queries. Which tenant it is for is not
    # known yet.
    with suppress(BufferUnavailable, LookupError):  # a system check reports a model that does not exist
        if (
            apps.models_ready
            and not schema_of(connection)
            and connection.alias in {counter.db for counter in declarations()}
        ):
            identify(connection)
