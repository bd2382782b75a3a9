"""The changes of one database transaction, from its statements to Redis.

A transaction log adds up how the counts of each owner change. It announces these owners before the database commits,
and confirms their deltas afterwards. It doesn't follow savepoints: once anything may have been rolled back, all deltas
so far are unknown (rule: unknown). If Redis is unreachable, it writes a DoubtRequest in the same transaction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from django.db import DatabaseError, Error, connections, transaction

from ..buffer import Buffer
from ..buffer.buffer import ANNOUNCED, COUNTING_IS_OFF
from ..buffer.types import EVERYONE, OWNERS_PER_CALL
from ..conf import options
from ..databases.routing import in_schema, schema_of
from ..declaration import Declaration
from ..exceptions import BufferUnavailable
from ..internals import BaseDatabaseWrapper, as_manual_transaction
from ..models import DoubtRequest
from ..redis.calls import chunked, in_groups
from ..reports import report
from ..signals import counts_changed
from .change import Change, OwnerKeys, add, owners_of


class Intent(NamedTuple):
    """Owners that are announced together."""

    id: str
    counter: Declaration
    buffer: Buffer
    owner_keys: Sequence[str]


class TransactionLog:
    """The changes of a transaction, and the intents that announce them.

    ``deltas``   also those that add up to 0
    ``intents``  what Redis has been told, for the last time at ``announced_at``, by the monotonic clock
    """

    def __init__(self, connection: BaseDatabaseWrapper):
        self.using: str = connection.alias
        self.schema = schema_of(connection)  # it may be another one when the transaction commits
        self.deltas: Change = {}
        self.intents: list[Intent] = []
        self._untold: dict[Declaration, list[str]] = {}  # owners that are not announced
        self.announced_at: float

    # ----------------------------------------------------------------- record
    def add(self, change: Change) -> None:
        """Add the change of a statement."""
        for counter, deltas in change.items():
            sums = self.deltas.setdefault(counter, {})
            if new := [owner_key for owner_key in deltas if owner_key not in sums]:
                self._untold.setdefault(counter, []).extend(new)
            for owner_key, delta in deltas.items():
                add(sums, owner_key, delta)

    def mark_unknown(self) -> None:
        """Put all owners so far in doubt: what was done may have been undone, or may not."""
        for deltas in self.deltas.values():
            deltas.update(dict.fromkeys(deltas))

    # --------------------------------------------------------------- announce
    def announce_all(self, connection: BaseDatabaseWrapper) -> None:
        """Announce all owners whose counts the transaction has changed, right before the database commits, because
        intents from before may be gone (rule: stays). An owner may then have two, and each confirms the delta:
        ``mark_unknown`` comes before ``announce_new``."""
        self._untold = {counter: list(deltas) for counter, deltas in self.deltas.items()}
        self.announce_new(connection)

    def announce_new(self, connection: BaseDatabaseWrapper) -> None:
        """Announce the owners that are not announced yet: the database may commit now, or much later. Those that Redis
        refuses get DoubtRequests (rule: request), again after each call, because a savepoint may have taken them
        back."""
        with in_schema(connection, self.schema):
            refused = self.send_intents(connection)
            try:
                request_doubts(self.using, refused)
            except Error:
                report("requests_failed", exc_info=True, database=self.using, owners=sum(map(len, refused.values())))

    def send_intents(self, connection: BaseDatabaseWrapper) -> OwnerKeys:
        """Tell Redis of the owners that are not announced yet. Returns those that it refuses."""
        intents: list[Intent] = []
        refused: dict[Declaration, list[str]] = {}
        for counter, owner_keys in self._untold.items():
            buffer = counter.buffer_in(connection)
            for some in chunked(owner_keys, OWNERS_PER_CALL):
                intents.append(Intent(os.urandom(16).hex(), counter, buffer, some))
        self.announced_at = time.monotonic()
        for group in _grouped(intents):
            calls = [intent.buffer.announcement(intent.id, intent.owner_keys) for intent in group]
            for intent, reply in zip(group, group[0].buffer.client.send(calls), strict=True):
                if reply == ANNOUNCED:
                    self.intents.append(intent)
                elif reply == COUNTING_IS_OFF:
                    intent.buffer.fall_silent()
                else:
                    refused.setdefault(intent.counter, []).extend(intent.owner_keys)
        self._untold = refused
        return refused

    # ---------------------------------------------------------------- confirm
    def confirm(self, connection: BaseDatabaseWrapper) -> None:
        """Confirm the deltas: the database has committed. A failure does not reach the site, but an exception
        that is meant for it does, such as a time limit. Then healing finds the intents."""
        with in_schema(connection, self.schema):
            self._confirm()
            if counts_changed.receivers:
                self._signal()

    def withdraw(self, connection: BaseDatabaseWrapper) -> None:
        """Put the announced owners in doubt: at least what came last is rolled back, or will be announced again."""
        self.mark_unknown()
        with in_schema(connection, self.schema):
            self._confirm()

    def _confirm(self) -> None:
        """Confirm the intents. If that fails, healing finds them."""
        groups = _grouped(self.intents)
        for group in groups:
            calls = []
            for intent in group:
                deltas = [self.deltas[intent.counter][owner_key] for owner_key in intent.owner_keys]
                calls.append(intent.buffer.confirmation(intent.id, intent.owner_keys, deltas))
            # The owners are in flight until Redis has run the last one, or for HEAL_AFTER seconds of its clock, whose
            # first may be over at once (rule: slow).
            is_slow = time.monotonic() - self.announced_at >= (options.HEAL_AFTER - 1) / 2
            wait = is_slow or group is not groups[-1]
            group[0].buffer.client.send(calls, urgent=True, wait=wait)
        doubt(self._untold)  # rule: anyway: Redis may answer again

    def _signal(self) -> None:
        """Send ``counts_changed`` for the owners whose counts may have changed."""
        for counter, owner_keys in owners_of(self.deltas).items():
            owners = None if EVERYONE in owner_keys else list(map(counter.parse, owner_keys))
            counts_changed.send_robust(sender=counter, counter=counter, owners=owners, using=self.using)


def _grouped(intents: Sequence[Intent]) -> list[Sequence[Intent]]:
    """Group intents that are sent together."""
    return in_groups(intents, [len(intent.owner_keys) for intent in intents], OWNERS_PER_CALL)


# ------------------------------------------------------------------------ doubts
def doubt(owners: OwnerKeys) -> None:
    """Put owners in doubt, so that readers count their rows, unless Redis is unreachable."""
    for counter, owner_keys in owners.items():
        with suppress(BufferUnavailable):
            counter.buffer.doubt(owner_keys)


def request_doubts(using: str, owners: OwnerKeys) -> None:
    """Write DoubtRequests, in the current transaction if there is one."""
    requests = [
        DoubtRequest(counter=counter.name, everyone=key == EVERYONE, owner_key="" if key == EVERYONE else key)
        for counter, owner_keys in owners.items()
        for key in owner_keys
    ]
    if not requests:
        return
    try:
        with as_manual_transaction(connections[using]), transaction.atomic(using=using):
            DoubtRequest.objects.using(using).bulk_create(requests, batch_size=OWNERS_PER_CALL)
    except DatabaseError:
        if DoubtRequest._meta.db_table in connections[using].introspection.table_names():
            raise
        # Another app's migration runs before our first one: there are no counts that could be wrong.


def doubt_now_and_at_commit(using: str, change: Change) -> None:
    """Put owners in doubt now, and again when the transaction has committed: nobody tells when that is."""
    owners = owners_of(change)
    request_doubts(using, owners)
    doubt(owners)
