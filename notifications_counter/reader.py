"""Reads a counter: the cached total; else the stored total plus what waits in Redis; else the rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter, or_
from typing import Any, NamedTuple
from uuid import uuid4

from django.db import connections
from django.db.models import Q, QuerySet

from .buffer import Buffer, Snapshot
from .buffer.cached import are_counts
from .buffer.commands import ARGUMENTS, OWNERS_PER_CALL, chunked
from .buffer.patience import Patience
from .buffer.several import totals_of
from .conf import options
from .databases.routing import alias_for
from .declaration import Declaration
from .declaration.primary_keys import First, Key
from .exceptions import BufferUnavailable
from .sql.owners import is_one_of, of_owners
from .sql.target import Target
from .writes.ledger import READ_COMMITTED, Ledger
from .writes.requests import mark_dirty
from .writes.rows import chunks

Breakdown = dict[Any, int]
"""Counts by the last column of their owners."""


class StoredTotal(NamedTuple):
    """A stored total, and the last batch that was added to it."""

    total: int = 0
    batch: int = 0


NO_STORED_TOTAL = StoredTotal()
"""The stored total of an owner without one."""


@dataclass(frozen=True, slots=True)
class View:
    """A connection's view of the database: whether it sees what others commit, and whether it has written something,
    which others may never see."""

    is_current: bool
    has_written: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether others see the same rows, so that counts may be cached for them."""
        return self.is_current and not self.has_written


class Reader:
    """The reads of one counter. Owners are given by their primary keys."""

    __slots__ = ("counter",)

    def __init__(self, counter: Declaration):
        self.counter = counter

    def count(self, key: Key) -> int:
        """Return the count of one owner."""
        counter, owner_key = self.counter, str(key)
        connection = connections[alias_for(counter.source)]
        ledger = vars(connection).get("counter_ledger") or Ledger.on(connection)
        if ledger.needs_rows(counter, owner_key):
            return self._rows([key])[key]
        try:
            with Patience(options.READ_TIMEOUT):
                buffer = counter.buffer_of(owner_key, connection)
                total = buffer.total(owner_key, counter.sum)
                if total is None:
                    return self._miss(ledger, buffer, [key])[key]
        except BufferUnavailable:
            return self._rows([key])[key]
        return total if total >= counter.least else self._negative([key])[key]

    def counts(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the counts of many owners."""
        counter, ledger = self.counter, Ledger.of(self.counter.db)
        rest, by_rows = keys, []
        if ledger.may_see_old_data() or ledger.may_have_changed_anyone(counter):
            rest, by_rows = [], [*keys]
        elif touched := ledger.all_touched(counter):
            by_rows = [key for key in keys if str(key) in touched]
            rest = [key for key in keys if str(key) not in touched]
        result: dict[Key, Any] = dict.fromkeys(keys)  # in their order
        with Patience(options.READ_TIMEOUT):
            shares: list[tuple[Buffer, Sequence[bytes]]] = []
            keys_of_shares: list[Sequence[Key]] = []
            try:
                for buffer, of_shard, owner_keys in counter.encoded_by_shard(rest):
                    shares += ((buffer, some) for some in chunked(owner_keys, ARGUMENTS - 1))
                    keys_of_shares += chunked(of_shard, ARGUMENTS - 1)
            except BufferUnavailable:  # nobody knows which keys are those of this database
                by_rows += rest
            for (buffer, _), asked, totals in zip(shares, keys_of_shares, totals_of(shares), strict=True):
                if totals is None:
                    by_rows += asked
                    continue
                result.update(zip(asked, totals, strict=True))
                if not are_counts(totals, counter.least):
                    result |= self._negative([key for key in asked if (result[key] or 0) < counter.least])
                    for some in chunked([key for key in asked if result[key] is None], OWNERS_PER_CALL):
                        try:
                            result |= self._miss(ledger, buffer, some)
                        except BufferUnavailable:
                            by_rows += some
        return result | self._rows(by_rows) if by_rows else result

    def breakdowns(self, firsts: Sequence[First]) -> dict[First, Breakdown]:
        """Return the counts of all owners with each of these values in all columns but the last, by the last, without
        zeros. Rows are counted for all of them together, and nothing is cached."""
        *names, last = self.counter.owner_attnames
        found: dict[First, Breakdown] = {first: {} for first in firsts}
        for chunk in chunks(firsts, self.counter.db):
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
        counts = self.counts([counter.key_of(owner) for owner in largest[:number]])
        return sorted(filter(itemgetter(1), counts.items()), key=itemgetter(1), reverse=True)

    def _miss(self, ledger: Ledger, buffer: Buffer, keys: Sequence[Key]) -> dict[Key, int]:
        """Return counts without a cached total: stored totals plus what waits in Redis. Cache the sums if nothing has
        changed meanwhile. During a recovery, count rows and repair the counts."""
        view = self._view(ledger)
        token = uuid4().hex if view.is_shared else ""
        owner_keys = {str(key): key for key in keys}
        snapshot = buffer.take_free_leases(list(owner_keys), token) if token else buffer.snapshot(list(owner_keys))
        if snapshot.recovering and token:
            return self._repair(buffer, snapshot, token, owner_keys)
        trusted = {}
        if snapshot.complete and view.is_current:  # rules: ready, declared_read
            # rules: flying, dirty_counts
            trusted = {
                owner_key: key for owner_key, key in owner_keys.items() if not snapshot.owners[owner_key].needs_rows
            }
        totals = self._sums(snapshot, trusted)
        result = self._rows([key for owner_key, key in owner_keys.items() if owner_key not in totals])
        least = self.counter.least
        result |= self._negative([owner_keys[owner_key] for owner_key, total in totals.items() if total < least])
        right = {owner_key: total for owner_key, total in totals.items() if total >= least}
        if trusted and token:
            with suppress(BufferUnavailable):  # the totals are right all the same
                buffer.keep(snapshot, token, {key: right.get(key) for key in trusted})  # rules: lease, fix_flying
        return result | {owner_keys[owner_key]: total for owner_key, total in right.items()}

    def _repair(self, buffer: Buffer, snapshot: Snapshot, token: str, owner_keys: dict[str, Key]) -> dict[Key, int]:
        """Count rows, and correct the owners as a recount does. From now on, cached totals follow each change, so the
        owners need not wait for the audit. `repair_fix`: the script caches only what it corrects."""
        rows = self._rows(list(owner_keys.values()))
        right = {owner_key: rows[key] for owner_key, key in owner_keys.items()}
        sums = self._sums(snapshot, owner_keys)
        with suppress(BufferUnavailable):  # the rows are right all the same
            buffer.fix(snapshot.epoch, token, {each: right[each] - total for each, total in sums.items()}, right)
        return rows

    def _sums(self, snapshot: Snapshot, owner_keys: dict[str, Key]) -> dict[str, int]:
        """Return the stored totals plus what a snapshot found waiting, without owners whose count cannot be known
        (rule: later)."""
        stored = self.stored_totals(list(owner_keys.values()))
        totals = {each: snapshot.value(each, *stored.get(key, NO_STORED_TOTAL)) for each, key in owner_keys.items()}
        return {owner_key: total for owner_key, total in totals.items() if total is not None}

    def _negative(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Count rows, and have the owners recounted. A negative count is wrong, or lacks a delta that is committed but
        not sent yet."""
        mark_dirty((self.counter, str(key)) for key in keys)
        return self._rows(keys)

    def _rows(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the number of rows that count, for each of these owners."""
        return dict.fromkeys(keys, 0) | self.count_rows(keys)

    def count_rows(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the number of rows that count. Owners without such rows are left out."""
        counter = self.counter
        found: dict[Key, int] = {}
        for chunk in chunks(keys, counter.db):
            found |= self._counted(of_owners(counter, counter.owner_fields, chunk, counter.db))
        return found

    def _counted(self, owners: Any) -> dict[Key, int]:
        counter = self.counter
        rows: QuerySet = QuerySet(counter.source, using=counter.db).filter(counter.q).filter(owners).order_by()
        counts = rows.values_list(*counter.owner_attnames).annotate(counted_rows=counter.condition.total)
        return {row[:-1] if counter.has_several_columns else row[0]: row[-1] for row in counts}

    def stored_totals(self, keys: Sequence[Key]) -> dict[Key, StoredTotal]:
        """Return the stored totals of these owners, where they exist."""
        counter, connection = self.counter, connections[self.counter.db]
        target = Target(counter, connection)
        select = f"SELECT {target.owner}, {target.count}, {target.batch} FROM {target.table} WHERE "
        found: dict[Key, StoredTotal] = {}
        for chunk in chunks(keys, counter.db):
            where, params = is_one_of(counter, target.owners, chunk, connection)
            with connection.cursor() as cursor:  # the ORM is slower
                cursor.execute(select + where, params)
                for *key, total, batch in cursor.fetchall():
                    found[counter.key_of(key)] = StoredTotal(total, batch)
        return found

    def _view(self, ledger: Ledger) -> View:
        """Return the view of this connection. Asks PostgreSQL, because the isolation level may come from the server's
        settings. MySQL does not tell the level of a transaction."""
        connection = ledger.connection
        if not connection.in_atomic_block:
            return View(is_current=True)
        if connection.vendor != "postgresql":
            return View(is_current=False)
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('transaction_isolation'), txid_current_if_assigned() IS NOT NULL")
            level, has_written = cursor.fetchone()
        return View(level in READ_COMMITTED, has_written)
