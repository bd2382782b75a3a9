"""A read: the cached totals that Redis vouches for, and the number of rows of everyone else."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections

from .buffer import Buffer
from .buffer.buffer import READ_AT_ONCE
from .buffer.calls import OWNERS_PER_CALL, chunked
from .declaration import Declaration
from .declaration.primary_keys import Pk
from .internals import BaseDatabaseWrapper
from .sql.counts import count_rows
from .writes.ledger import Ledger
from .writes.transaction import doubt

READ_COMMITTED = {"read committed", "read uncommitted"}
"""Isolation levels at which a transaction sees the commits of others."""


def read(counter: Declaration, pks: Sequence[Pk]) -> dict[Pk, int]:
    """Return the counts of owners, in the order of these primary keys: the cached total where Redis vouches for one,
    else the number of rows. Redis is not asked about owners whose rows this connection's transaction has changed."""
    if len(pks) > READ_AT_ONCE:
        return {pk: count for some in chunked(pks, READ_AT_ONCE) for pk, count in read(counter, some).items()}
    connection = connections[counter.db]
    asked = Ledger.on(connection).untouched(counter, pks)
    buffer = counter.buffer_in(connection)
    counts, missing = buffer.totals(asked) if asked else ({}, [])
    if len(counts) == len(pks) and min(counts.values(), default=0) >= counter.least:
        return counts  # as nearly always
    wrong = {pk for pk, total in counts.items() if total < counter.least}
    if wrong:  # or a delta is committed and not sent yet
        doubt({counter: list(map(str, wrong))})
    if missing:
        counts |= _count_and_keep(counter, connection, buffer, missing)
    counts |= count_rows(counter, [pk for pk in pks if pk in wrong or pk not in counts])
    return {pk: counts[pk] for pk in pks}


def _count_and_keep(
    counter: Declaration, connection: BaseDatabaseWrapper, buffer: Buffer, pks: Sequence[Pk]
) -> dict[Pk, int]:
    """Count the rows of owners whose totals are not cached, under a lease. Cache the counts if nothing has changed
    meanwhile."""
    if not _sees_what_others_see(connection):
        return count_rows(counter, pks)
    found: dict[Pk, int] = {}
    for some in chunked(pks, OWNERS_PER_CALL):
        lease = buffer.lease([str(pk) for pk in some])
        counts = count_rows(counter, some)
        buffer.keep(lease, {str(pk): count for pk, count in counts.items()})
        found |= counts
    return found


def _sees_what_others_see(connection: BaseDatabaseWrapper) -> bool:
    """Return whether this connection sees the newest committed rows, and has written nothing that others may never
    see, so that its counts may be cached for them. Asks PostgreSQL, because the isolation level may come from the
    server's settings. MySQL does not tell the level of a transaction."""
    if not connection.in_atomic_block:
        return True
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('transaction_isolation'), txid_current_if_assigned() IS NOT NULL")
        level, has_written = cursor.fetchone()
    return level in READ_COMMITTED and not has_written
