"""Reads a counter: the cached total, or else the rows themselves, whose number is cached."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import itemgetter, or_
from typing import Any
from uuid import uuid4

from django.db import connections
from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL

from .buffer import Buffer
from .buffer.calls import OWNERS_PER_CALL
from .chunks import chunked
from .databases.routing import alias_for
from .declaration import Declaration
from .declaration.primary_keys import First, Key
from .exceptions import BufferUnavailable
from .internals import BaseDatabaseWrapper
from .sql.owners import of_owners, per_statement
from .writes.ledger import Ledger

READ_COMMITTED = {"read committed", "read uncommitted"}
"""Isolation levels at which a transaction sees the commits of others."""

Breakdown = dict[Key, int]
"""Counts by the last column of their owners."""


class Reader:
    """The reads of one counter. Owners are given by their primary keys."""

    __slots__ = ("counter",)

    def __init__(self, counter: Declaration):
        self.counter = counter

    def count(self, key: Key) -> int:
        """Return the count of one owner."""
        counter, keys = self.counter, [key]
        connection = connections[alias_for(counter.source)]
        ledger = vars(connection).get("counter_ledger") or Ledger(connection)
        if ledger.keys_to_count(counter, keys):
            return self.rows(keys)[key]
        try:
            buffer = counter.buffer_in(connection)
            total = buffer.total(str(key))
            if total is None:
                return self._miss(connection, buffer, keys)[key]
        except BufferUnavailable:
            return self.rows(keys)[key]
        return total if total >= counter.least else self._negative(keys)[key]

    def counts(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the counts of many owners."""
        counter, connection = self.counter, connections[self.counter.db]
        to_count = set(Ledger.on(connection).keys_to_count(counter, keys))
        asked = [key for key in dict.fromkeys(keys) if key not in to_count] if to_count else keys
        if not asked:
            return self.rows(keys)
        try:
            buffer = counter.buffer_in(connection)
            totals = buffer.totals(asked)
        except BufferUnavailable:
            return self.rows(keys)
        found: dict[Key, Any] = dict(zip(asked, totals, strict=True))
        if not to_count and None not in totals and min(found.values()) >= counter.least:
            return found  # as nearly always
        missing = [key for key, total in found.items() if total is None]
        negative = [key for key, total in found.items() if total is not None and total < counter.least]
        found = dict.fromkeys(keys) | found | self._negative(negative)
        for some in chunked(missing, OWNERS_PER_CALL):
            try:
                found |= self._miss(connection, buffer, some)
            except BufferUnavailable:
                to_count.update(some)
        return found | self.rows(list(to_count))

    def breakdowns(self, firsts: Sequence[First]) -> dict[First, Breakdown]:
        """Return the counts of all owners with each of these values in all columns but the last, by the last, without
        zeros. Rows are counted for all of them together, and nothing is cached."""
        *names, last = self.counter.owner_attnames
        found: dict[First, Breakdown] = {first: {} for first in firsts}
        for chunk in per_statement(firsts, self.counter.db):
            if len(names) == 1:
                owners = Q(**{f"{names[0]}__in": [value for (value,) in chunk]})
            else:
                owners = reduce(or_, (Q(**dict(zip(names, first, strict=True))) for first in chunk))
            for (*first, value), count in self._counted(owners & Q(**{f"{last}__isnull": False})).items():
                if count:
                    found.setdefault(tuple(first), {})[value] = count
        return found

    def top(self, number: int, first: First = ()) -> list[tuple[Key, int]]:
        """Return the current counts of the owners with the largest stored totals, largest first, without zeros: of all
        owners, or of those with these values in their first columns."""
        counter = self.counter
        names = [field.attname for field in counter.total_fields]
        totals: QuerySet = QuerySet(counter.totals, using=counter.db).filter(**dict(zip(names, first, strict=False)))
        largest = totals.exclude(**{counter.field: 0}).order_by(f"-{counter.field}", *names).values_list(*names)
        counts = self.counts([counter.key_of_columns(owner) for owner in largest[:number]])
        return sorted(filter(itemgetter(1), counts.items()), key=itemgetter(1), reverse=True)

    def _miss(self, connection: BaseDatabaseWrapper, buffer: Buffer, keys: Sequence[Key]) -> dict[Key, int]:
        """Count the rows of owners whose totals are not cached, under a lease. Cache the counts if nothing has changed
        meanwhile."""
        if not _sees_what_others_see(connection):
            return self.rows(keys)
        token, owner_keys = uuid4().hex, {str(key): key for key in keys}
        generation, leased = buffer.lease(list(owner_keys), token)
        found = self.rows(keys)
        with suppress(BufferUnavailable):  # the counts are right all the same
            buffer.keep(generation, token, {owner_key: found[owner_keys[owner_key]] for owner_key in leased})
        return found

    def _negative(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Doubt owners whose cached total is negative: it is wrong, or lacks a delta that is not sent yet."""
        with suppress(BufferUnavailable):
            self.counter.buffer.doubt([str(key) for key in keys])
        return self.rows(keys)

    def rows(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the number of rows that count, for each of these owners."""
        counter, found = self.counter, dict.fromkeys(keys, 0)
        for chunk in per_statement(keys, counter.db):
            found |= self._counted(of_owners(counter, counter.owner_fields, chunk, counter.db))
        return found

    def _counted(self, owners: Q | RawSQL) -> dict[Key, int]:
        """Return the number of rows that count, by owner. Owners without such rows are left out."""
        counter = self.counter
        rows: QuerySet = QuerySet(counter.source, using=counter.db).filter(counter.q).filter(owners).order_by()
        counts = rows.values_list(*counter.owner_attnames).annotate(counted_rows=counter.condition.aggregate)
        return {row[:-1] if counter.has_several_columns else row[0]: row[-1] for row in counts}


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
