"""A read: the cached totals that Redis vouches for, and the number of rows of everyone else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from django.conf import settings
from django.db import connections

from .buffer import Buffer
from .buffer.buffer import OWNERS_PER_READ
from .buffer.types import OWNERS_PER_CALL
from .databases.isolation import sees_what_others_see
from .declaration import Declaration
from .declaration.primary_keys import Pk
from .internals import BaseDatabaseWrapper, async_unsafe
from .redis.calls import chunked
from .reports import report
from .sql.counts import count_rows
from .writes.ledger import Ledger
from .writes.log import doubt


@async_unsafe("Counts cannot be read in an async context. Use acount() and the like, or sync_to_async().")
def read(counter: Declaration, pks: Sequence[Pk]) -> dict[Pk, int]:
    """Return the counts of owners, in the order of these primary keys: the cached total where Redis vouches for one,
    else the number of rows. Redis is not asked about owners whose rows this connection's transaction has changed."""
    if len(pks) > OWNERS_PER_READ:
        return {pk: count for some in chunked(pks, OWNERS_PER_READ) for pk, count in read(counter, some).items()}
    connection = connections[counter.db]
    asked = Ledger.untouched(connection, counter, pks)
    buffer = counter.buffer_in(connection)
    cached, missing = buffer.totals(asked) if asked else ({}, [])
    if len(cached) == len(pks) and min(cached.values(), default=0) >= counter.least:
        return cached  # only faster: nearly always, this is all
    if settings.DEBUG and not buffer.expects_state:
        _remind(counter)
    counts = {pk: total for pk, total in cached.items() if total >= counter.least}
    if too_low := cached.keys() - counts.keys():  # wrong, or a delta is committed and not sent yet
        doubt({counter: list(map(str, too_low))})
    if missing:
        counts |= _count_and_keep(counter, connection, buffer, missing)
    counts |= count_rows(counter, [pk for pk in pks if pk not in counts])
    return {pk: counts[pk] for pk in pks}


@lru_cache
def _remind(counter: Declaration) -> None:
    """Remind a developer, once, of the flusher. In production, monitoring does."""
    report("unserved", counter)


def _count_and_keep(
    counter: Declaration, connection: BaseDatabaseWrapper, buffer: Buffer, pks: Sequence[Pk]
) -> dict[Pk, int]:
    """Count the rows of owners whose totals are not cached, under a lease. Cache the counts if nothing has changed
    meanwhile, unless others see other rows."""
    if not sees_what_others_see(connection, counter.source._meta.db_table):
        return count_rows(counter, pks)
    found: dict[Pk, int] = {}
    for some in chunked(pks, OWNERS_PER_CALL):
        lease = buffer.lease([str(pk) for pk in some])
        counts = count_rows(counter, some)
        buffer.keep(lease, {str(pk): count for pk, count in counts.items()})
        found |= counts
    return found
