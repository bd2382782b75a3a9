"""A read: the cached totals that Redis vouches for, and the number of rows of everyone else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from .buffer import MISSING, UNSURE, Buffer
from .buffer.calls import OWNERS_PER_CALL, chunked
from .databases.transactions import sees_what_others_see
from .declaration import Declaration
from .declaration.primary_keys import Pk
from .internals import BaseDatabaseWrapper
from .sql.counts import count_rows
from .writes.ledger import Ledger
from .writes.transaction import doubt


def read(counter: Declaration, pks: Sequence[Pk]) -> dict[Pk, int]:
    """Return the counts of owners, in one round trip if all are cached. Redis is not asked about those whose rows this
    connection's transaction has changed."""
    connection, least = connections[counter.db], counter.least
    found: dict[Pk, Any] = dict.fromkeys(pks, UNSURE)  # to a Total, and in the end to a count
    if asked := Ledger.on(connection).untouched(counter, pks):
        buffer = counter.buffer_in(connection)
        found.update(zip(asked, buffer.totals(asked), strict=True))
    rest = {pk: total for pk, total in found.items() if total is UNSURE or total is MISSING or total < least}
    if not rest:  # as nearly always
        return found
    if missing := [pk for pk, total in rest.items() if total is MISSING]:
        found |= _count_and_keep(counter, connection, buffer, missing)
    if wrong := [pk for pk, total in rest.items() if isinstance(total, int)]:
        doubt({counter: [str(pk) for pk in wrong]})  # or it lacks a delta that is not sent yet
    if unsure := [pk for pk, total in rest.items() if total is not MISSING]:
        found |= count_rows(counter, unsure)
    return found


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
