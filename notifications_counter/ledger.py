"""The deltas of one database transaction, sent to Redis once, when the database has committed them.

A log follows the transaction's savepoints, so that what is rolled back takes its deltas along. Every user it touches
has begun in Redis before the database can commit; one that could not has a RecountRequest in the same transaction.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.apps import apps
from django.db import DatabaseError, connections, transaction
from django.db.backends.signals import connection_created
from django.db.models import Model
from django.dispatch import receiver

from .buffer import Buffer
from .buffer.buffer import PART, Delta
from .buffer.client import Reply
from .exceptions import BufferUnavailable
from .rows import RowStates, locked

if TYPE_CHECKING:
    from .counters import Counter

logger = logging.getLogger("notifications_counter")

SAVEPOINT = re.compile(
    r"\s*(?:(SAVEPOINT)|(RELEASE)(?:\s+SAVEPOINT)?|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)\s+(\S+)",
    re.IGNORECASE,
)
ISOLATION = re.compile(r"\s*(?:SET|BEGIN|START)\b.*\bISOLATION\b", re.IGNORECASE | re.DOTALL)


PartDeltas = tuple["Counter", str, dict[str, Delta]]
"""What a commit sends of a part: its counter, its id, and its deltas."""


@dataclass(slots=True, eq=False)
class Part:
    """What one begin registered: users of one shard. ``reply`` is there until it is read."""

    id: str
    counter: Counter
    buffer: Buffer
    members: tuple[str, ...]
    reply: Reply | None


class Log:
    """Deltas in the order of their statements, and what has begun for them."""

    def __init__(self, using: str):
        self.using = using
        self.entries: list[tuple[Counter, str, Delta]] = []
        self.begun: set[tuple[Counter, str]] = set()
        self.parts: list[Part] = []
        self.requested: list[tuple[int, Counter, str]] = []  # users with a RecountRequest, and from which entry on
        self.savepoints: list[tuple[str, int]] = []
        self.unread: list[Part] = []
        self.doomed: dict[type[Model], list[Any]] = defaultdict(list)  # rows about to be deleted
        self.deleted: dict[tuple[type[Model], Any], RowStates] = {}  # what the database said of them

    # ------------------------------------------------------------------ begin
    def begin(self, owners: Mapping[Counter, Iterable[str]]) -> list[tuple[Counter, str]]:
        """Register users that have not begun here. The last reply stays unread until ``settle``.

        Returns those that Redis did not take so far; ``settle`` returns the rest.
        """
        failed: list[tuple[Counter, str]] = []
        for counter, members in owners.items():
            new = [m for m in dict.fromkeys(members) if (counter, m) not in self.begun]
            for buffer, mine in counter.by_shard(new):
                for i in range(0, len(mine), PART):
                    failed += self.settle()
                    failed += self._begin(counter, buffer, tuple(mine[i : i + PART]))
        return failed

    def _begin(self, counter: Counter, buffer: Buffer, members: tuple[str, ...]) -> list[tuple[Counter, str]]:
        part = Part(uuid4().hex, counter, buffer, members, None)
        try:
            part.reply = buffer.begin(part.id, members)
        except BufferUnavailable:
            return [(counter, m) for m in members]
        self.begun.update((counter, m) for m in members)
        self.parts.append(part)
        self.unread.append(part)
        return []

    def settle(self) -> list[tuple[Counter, str]]:
        """Read the replies of what has begun. Returns the users that Redis did not take."""
        failed: list[tuple[Counter, str]] = []
        while self.unread:
            part = self.unread.pop()
            reply, part.reply = part.reply, None
            try:
                assert reply is not None
                reply.read()
            except BufferUnavailable:
                self.parts.remove(part)
                failed += [(part.counter, m) for m in part.members]
        self.begun.difference_update(failed)
        return failed

    def request(self, users: list[tuple[Counter, str]]) -> None:
        """Leave a RecountRequest in the transaction for users that could not begin."""
        if not users:
            return
        try:
            request_recounts(self.using, users)
        except DatabaseError:  # they begin anew at their next change
            logger.exception("RecountRequests could not be written.")
            return
        position = len(self.entries)
        self.requested += [(position, counter, member) for counter, member in users]
        self.begun.update(users)

    # ----------------------------------------------------------------- record
    def record(self, counter: Counter, deltas: Mapping[str, Delta]) -> None:
        """Note what a statement changed. None: unknown, the user goes to a recount."""
        self.entries += [(counter, member, delta) for member, delta in deltas.items()]

    def cut_back(self, position: int) -> None:
        """Forget what came after a savepoint that was rolled back."""
        del self.entries[position:]
        for at, counter, member in [r for r in self.requested if r[0] >= position]:
            self.requested.remove((at, counter, member))
            self.begun.discard((counter, member))  # its RecountRequest is gone, so it begins anew
        self.doomed.clear()
        self.deleted.clear()

    def follow(self, statement: re.Match[str]) -> None:
        """A savepoint was set, released or rolled back to."""
        made, released, name = statement.groups()
        name = name.rstrip(";").strip('"`').lower()
        if made:
            self.savepoints.append((name, len(self.entries)))
            return
        at = next((i for i in reversed(range(len(self.savepoints))) if self.savepoints[i][0] == name), None)
        if released:
            if at is not None:
                del self.savepoints[at:]
        else:  # an unknown savepoint is older than the log
            self.cut_back(self.savepoints[at][1] if at is not None else 0)
            del self.savepoints[at + 1 if at is not None else 0 :]

    def lock_doomed(self) -> None:
        """Lock the rows about to be deleted and ask the database what they count for."""
        doomed, self.doomed = self.doomed, defaultdict(list)
        for source, pks in doomed.items():
            for pk, states in locked(source, self.using, pks).items():
                self.deleted[source, pk] = states

    def doubt_the_rest(self) -> None:
        """Send users that have begun, and of whom nothing is known, to a recount."""
        known = {(counter, member) for counter, member, _ in self.entries}
        for counter, member in self.begun - known:
            self.record(counter, {member: None})

    # ------------------------------------------------------------------- send
    def send(self) -> None:
        """Bring the deltas to Redis, after the database commit. Never raises."""
        try:
            self.settle()
            self._send()
        except Exception:
            logger.exception("Deltas could not be sent; their users are recounted once they are overdue.")
        finally:
            self.begun.clear()

    def _send(self) -> None:
        net: dict[tuple[Counter, str], Delta] = {}
        for counter, member, delta in self.entries:
            before = net.get((counter, member), 0)
            net[counter, member] = None if delta is None or before is None else before + delta
        for _, counter, member in self.requested:
            net[counter, member] = None
        failed: list[tuple[Counter, str]] = []
        grouped: dict[Buffer, list[PartDeltas]] = defaultdict(list)
        for part in self.parts:
            deltas = {m: net.pop((part.counter, m), 0) for m in part.members}
            grouped[part.buffer].append((part.counter, part.id, {m: d for m, d in deltas.items() if d != 0}))
        for buffer, parts in grouped.items():
            for slice_ in _slices(parts):
                try:
                    buffer.commit([(id_, deltas) for _, id_, deltas in slice_])
                except BufferUnavailable:
                    failed += [(counter, m) for counter, _, deltas in slice_ for m in deltas]
        failed += mark_dirty(user for user, delta in net.items() if delta != 0)
        asked = {(counter, member) for _, counter, member in self.requested}
        request_recounts(self.using, [user for user in failed if user not in asked])


def _slices(
    parts: list[tuple[Counter, str, dict[str, Delta]]],
) -> Iterator[list[tuple[Counter, str, dict[str, Delta]]]]:
    """Parts in groups of at most PART users, a part without deltas counting as one."""
    slice_: list[tuple[Counter, str, dict[str, Delta]]] = []
    size = 0
    for part in parts:
        weight = max(1, len(part[2]))
        if slice_ and size + weight > PART:
            yield slice_
            slice_, size = [], 0
        slice_.append(part)
        size += weight
    if slice_:
        yield slice_


def mark_dirty(users: Iterable[tuple[Counter, str]]) -> list[tuple[Counter, str]]:
    """Send users to a recount. Returns those for whom Redis was out of reach."""
    failed: list[tuple[Counter, str]] = []
    grouped: dict[Counter, list[str]] = defaultdict(list)
    for counter, member in users:
        grouped[counter].append(member)
    for counter, members in grouped.items():
        for buffer, mine in counter.by_shard(members):
            try:
                buffer.mark_dirty(mine)
            except BufferUnavailable:
                failed += [(counter, m) for m in mine]
    return failed


def request_recounts(using: str, users: list[tuple[Counter, str]]) -> None:
    """Ask for recounts through the database, in the transaction under way if there is one."""
    if not users:
        return
    model = apps.get_model("notifications_counter", "RecountRequest")
    with transaction.atomic(using=using):
        model._default_manager.using(using).bulk_create(
            [model(counter=counter.name, owner=member) for counter, member in users], batch_size=PART
        )


class _Hook:
    """What Django keeps in run_on_commit: as long as it lives there, so does the log's transaction."""

    __slots__ = ("log", "__weakref__")

    def __init__(self, log: Log):
        self.log = log

    def __call__(self) -> None:
        self.log.send()


class Ledger:
    """The logs of one database connection, and the wrapper around each of its statements."""

    def __init__(self, connection: Any):
        self._connection = weakref.ref(connection)
        self.using: str = connection.alias
        self._log: Log | None = None
        self._hook: weakref.ref[_Hook] | None = None
        self._unsent: list[weakref.ref[_Hook]] = []
        self._standalone: list[Log] = []
        self.isolation_was_set = False
        connection.execute_wrappers.insert(0, self)  # execute_wrapper() pops the last one

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

    # ------------------------------------------------------------------- logs
    def _open_log(self) -> Log | None:
        """The log of the transaction under way, if it has one."""
        if self._log is None or self._hook is None:
            return None
        hook = self._hook()
        if hook is not None and any(entry[1] is hook for entry in reversed(self.connection.run_on_commit)):
            return self._log
        self._log = self._hook = None  # committed and not sent yet, or rolled back
        return None

    def _transaction_log(self) -> Log:
        log = self._open_log()
        if log is None:
            log = self._log = Log(self.using)
            hook = _Hook(log)
            transaction.on_commit(hook, using=self.using, robust=True)
            self._hook = weakref.ref(hook)
            self._unsent = [ref for ref in self._unsent if ref() is not None] + [self._hook]
        return log

    def begin(self, owners: Mapping[Counter, Iterable[str]]) -> Log:
        """In a transaction: make sure that these users have begun before it can commit."""
        log = self._transaction_log()
        log.request(log.begin(owners))
        return log

    def record(self, counter: Counter, deltas: Mapping[str, Delta]) -> None:
        """Note what the statement just run has changed. None: unknown, the user goes to a recount."""
        if not deltas:
            return
        if self.connection.in_atomic_block:
            log = self.begin({counter: deltas})
            log.request(log.settle())
            log.record(counter, deltas)
        elif self._standalone:
            self._standalone[-1].record(counter, deltas)
        else:
            if not self.connection.get_autocommit():  # a transaction by hand has no on_commit
                request_recounts(self.using, [(counter, member) for member in deltas])
            log = Log(self.using)
            log.record(counter, dict.fromkeys(deltas))
            log.send()

    @contextmanager
    def writing(self, owners: Mapping[Counter, Iterable[str]]) -> Iterator[None]:
        """Account for a statement that changes rows of these users: they begin before it; what it records is sent
        when it is committed, which in autocommit is at the end of this block."""
        if self.connection.in_atomic_block:
            self.begin(owners)
            yield
            return
        if not self.connection.get_autocommit():
            yield
            return
        log = Log(self.using)
        failed = log.begin(owners)
        failed += log.settle()
        if failed:  # the request must be committed together with the rows
            with transaction.atomic(using=self.using):
                transaction_log = self._transaction_log()
                transaction_log.parts += log.parts
                transaction_log.begun |= log.begun
                transaction_log.request(failed)
                yield
            return
        self._standalone.append(log)
        try:
            yield
        except BaseException:
            log.doubt_the_rest()
            raise
        finally:
            self._standalone.pop()
            log.send()

    # ------------------------------------------------------------------ reads
    def touched(self, counter: Counter, member: str) -> bool:
        """Has this connection changed rows of the user that others may not see, or whose deltas are not sent yet?"""
        if not self._unsent and not self._standalone:
            return False
        logs = [hook.log for ref in self._unsent if (hook := ref()) is not None]
        self._unsent = [ref for ref in self._unsent if ref() is not None]
        return any((counter, member) in log.begun for log in (*logs, *self._standalone))

    def in_manual_transaction(self) -> bool:
        """Is autocommit off, outside atomic? Then nothing tells when it commits."""
        connection = self.connection
        return not connection.in_atomic_block and not connection.get_autocommit()

    # -------------------------------------------------------------- deletions
    def doom(self, source: type[Model], pk: Any) -> None:
        """A row is about to be deleted: it is locked, with the others of its deletion, before the next statement."""
        self._transaction_log().doomed[source].append(pk)

    def deleted(self, source: type[Model], pk: Any) -> RowStates | None:
        """What the database said of a row that was doomed; None if it was not there."""
        return self._transaction_log().deleted.pop((source, pk), None)

    # ---------------------------------------------------------------- wrapper
    def __call__(self, execute: Callable, sql: Any, params: Any, many: bool, context: dict) -> Any:
        text = sql if isinstance(sql, str) else ""
        if ISOLATION.match(text):
            self.isolation_was_set = True
        log = self._open_log()
        if log is None:
            return execute(sql, params, many, context)
        savepoint = SAVEPOINT.match(text)
        if log.doomed and not savepoint:
            log.lock_doomed()
        try:
            result = execute(sql, params, many, context)
        finally:
            failed = log.settle()
        if savepoint:
            log.follow(savepoint)
        log.request(failed)
        return result


@receiver(connection_created)
def _watch(connection: Any, **_: Any) -> None:
    Ledger.of(connection.alias)
