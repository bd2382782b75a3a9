"""What a database connection has to tell Redis: it executes counted statements, and keeps a log of each transaction."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django.core.exceptions import AppRegistryNotReady, ValidationError
from django.db import DatabaseError, Error, OperationalError, connections, transaction

from ..buffer.types import EVERYONE
from ..databases.identity import identify
from ..databases.routing import schema_of
from ..declaration import Declaration, declarations
from ..declaration.primary_keys import Pk
from ..internals import (
    BaseDatabaseWrapper,
    Execute,
    WrapperContext,
    as_manual_transaction,
    has_failed,
    in_manual_transaction,
    is_over,
    watch_transactions,
)
from .change import Change, owners_of, unknown_for_everyone
from .endings import endings
from .log import TransactionLog, doubt_now_and_at_commit
from .plans import Plan

REFUSALS = (DatabaseError, TypeError, ValidationError, ValueError)
"""What a statement raises if the database refuses it, or Django does: it is not running any more. An OperationalError
is no answer."""


class Ledger:
    """Executes the counted statements of one database connection, and logs what its transaction changes. From the
    first change to the end of the transaction, it wraps all statements of the connection."""

    def __init__(self, connection: Any):
        self._connection: Any = weakref.ref(connection)
        connection.counter_ledger = self
        self.using: str = connection.alias
        self._logs: dict[str | None, TransactionLog] = {}  # of the current transaction, by schema
        self._ending: list[TransactionLog] = []  # from COMMIT or ROLLBACK until they are confirmed
        self._is_doubting = False  # while it writes DoubtRequests
        watch_transactions(connection, self._before_commit, self._after_rollback, lambda: bool(self._logs))

    @classmethod
    def on(cls, connection: BaseDatabaseWrapper) -> Ledger:
        """Return the ledger of a connection."""
        return getattr(connection, "counter_ledger", None) or cls(connection)

    # ---------------------------------------------------------------- execute
    def write(self, plan: Plan) -> Any:
        """Execute a plan, and tell Redis how counts change. Returns the result of the statement.

        Unless the site has begun a transaction, ``create()``, ``save()`` and ``update()`` come in autocommit mode, and
        ``bulk_create()`` and ``delete()`` of a queryset in an ``atomic()`` of Django's.
        """
        connection, owners = self._connection(), plan.owners
        if connection.in_atomic_block:
            return self._write_in_atomic(plan)
        if in_manual_transaction(connection):
            return self._write_in_manual_transaction(plan)
        if owners is None:
            return self._write_in_own_transaction(plan)
        return self._write_in_autocommit(plan, owners)

    def _write_in_autocommit(self, plan: Plan, owners: Change) -> Any:
        """Its owners are announced before the statement, which saves a BEGIN and a COMMIT."""
        connection = self._connection()
        log = TransactionLog(connection)
        log.add(owners)
        if log.send_intents(connection):  # Redis refuses
            if log.intents:  # but has taken some, which are announced again
                log.withdraw(connection)
            return self._write_in_own_transaction(plan)
        try:
            result, change = plan.execute()
        except OperationalError:  # the server may go on without us; then healing puts the owners in doubt
            raise
        except REFUSALS:  # it is over; of an UPDATE of a child model, a part may be committed
            log.mark_unknown()
            log.confirm(connection)
            raise
        log.add(change)
        log.confirm(connection)
        return result

    def _write_in_own_transaction(self, plan: Plan) -> Any:
        """Only the database can tell its owners, or DoubtRequests are to be committed with it."""
        with transaction.atomic(using=self.using):
            if not self._connection().in_atomic_block:  # a copy of the alias's connection, which commits by itself
                return self._write_in_manual_transaction(plan)
            return self._write_in_atomic(plan)

    def _write_in_atomic(self, plan: Plan) -> Any:
        """Its owners are announced right before the COMMIT."""
        try:
            result, change = plan.execute()
            self._add(change)
            return result
        except Error:
            raise
        except BaseException:  # a time limit, an interrupt: the statement may have been executed or not
            transaction.set_rollback(True, using=self.using)
            raise

    def _write_in_manual_transaction(self, plan: Plan) -> Any:
        """Its owners are put in doubt at once, because nobody tells when it commits."""
        with as_manual_transaction(self._connection()):
            try:
                result, change = plan.execute()
                doubt_now_and_at_commit(self.using, change)
                return result
            except Error:
                raise
            except BaseException:  # as above
                with suppress(Error):
                    doubt_now_and_at_commit(self.using, unknown_for_everyone(plan.counters))
                raise

    # ------------------------------------------------------------ transaction
    def _add(self, change: Change) -> None:
        """Add the change of a statement to the log of the transaction."""
        connection = self._connection()
        if not owners_of(change):  # only faster
            return
        if not connection.commit_on_exit or is_over(connection):  # nobody tells when it commits, or it already has
            doubt_now_and_at_commit(self.using, change)
            return
        schema = schema_of(connection)
        if schema not in self._logs:
            if self not in connection.execute_wrappers:
                connection.execute_wrappers.insert(0, self)  # the first, because execute_wrapper() pops the last one
            self._logs[schema] = TransactionLog(connection)
        self._logs[schema].add(change)

    def __call__(self, execute: Execute, sql: object, params: object, many: bool, context: WrapperContext) -> object:
        """Execute any statement of a transaction that has changed counts."""
        return self.guard(sql, partial(execute, sql, params, many, context))

    def guard(self, sql: object, run: Callable[[], Any]) -> Any:
        """Run a statement of the transaction. It may commit, such as a procedure or, on MySQL, a change of the schema,
        or roll back."""
        connection = self._connection()
        if self._is_doubting:
            return run()
        try:
            if is_over(connection):
                self._doubt_so_far(announce=True)
            elif ends := endings(sql, connection.vendor):  # after an error, PostgreSQL takes nothing before a ROLLBACK
                self._doubt_so_far(announce=not all(begins.startswith("ROLLBACK") for begins in ends))
            return run()
        except BaseException:  # the database may have rolled back the statement, or everything
            self._doubt_so_far(announce=False)
            raise

    def _doubt_so_far(self, announce: bool) -> None:
        """What was done may be undone (rule: unknown), or be committed before Django says so."""
        self._is_doubting = True
        try:
            for log in list(self._logs.values()):
                log.mark_unknown()
                if announce:
                    log.announce_new(self._connection())
        finally:
            self._is_doubting = False

    # ---------------------------------------------------- end of a transaction
    def _take_logs(self) -> list[TransactionLog]:
        """Return the logs of the transaction, which is about to end or has ended, and begin new ones."""
        logs, self._logs = list(self._logs.values()), {}
        with suppress(ValueError):  # it is not there
            self._connection().execute_wrappers.remove(self)
        return logs

    def _before_commit(self) -> None:
        if not self._logs:
            return
        connection, logs = self._connection(), self._take_logs()
        if has_failed(connection) or is_over(connection):  # then it commits nothing
            for log in logs:
                log.withdraw(connection)
            return
        self._ending = logs
        for log in logs:
            log.announce_all(connection)
        # Only now, so that nobody finds our hook in an open transaction. It comes first, because a hook that raises
        # stops those after it. It is not robust, because Django would log a time limit that is meant for the site.
        connection.run_on_commit.insert(0, (set(), self._after_commit, False))

    def _after_commit(self) -> None:
        logs, self._ending = self._ending, []
        for log in logs:
            log.confirm(self._connection())

    def _after_rollback(self, is_done: bool, was_over: bool) -> None:
        logs, self._ending = [*self._ending, *self._take_logs()], []
        for log in logs:
            if is_done and (log.intents or was_over):
                log.withdraw(self._connection())

    # ------------------------------------------------------------------- read
    @staticmethod
    def untouched(connection: BaseDatabaseWrapper, counter: Declaration, pks: Sequence[Pk]) -> Sequence[Pk]:
        """Return the primary keys of those owners whose rows a connection's transaction has not changed. There are none
        if it may have changed any: nobody notes what one that was not begun by ``atomic()`` changes."""
        if in_manual_transaction(connection):
            return ()
        ledger = getattr(connection, "counter_ledger", None)
        if not ledger or not ledger._logs:  # as nearly always
            return pks
        touched = [log.deltas[counter] for log in ledger._logs.values() if counter in log.deltas]
        if any(EVERYONE in deltas for deltas in touched):
            return ()
        return [pk for pk in pks if not any(str(pk) in deltas for deltas in touched)]


def watch(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Give a connection that has just been made its ledger."""
    # Neither the nameless connection that creates databases, nor a copy of one, which may be in a transaction.
    if connection.alias not in connections or connections[connection.alias] is not connection:
        return
    # Models may not be loaded yet. A system check reports a missing one.
    with suppress(AppRegistryNotReady, LookupError):
        if connection.alias in {counter.db for counter in declarations()}:
            Ledger.on(connection)  # before anyone replaces its methods for a while
            # Here, and not at the first use of a counter, because a test may count its queries. Not for tenants,
            # because their schema is not known yet.
            if not schema_of(connection):
                identify(connection)
