"""Reading a counter: the cached total, else the row plus what waits, else the rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from django.db import connections
from django.db.models import Count, QuerySet

from .buffer import Buffer, Snapshot
from .buffer.shard import in_calls
from .declaration import Declaration
from .exceptions import BufferUnavailable
from .sql.target import Target
from .writes.doubt import mark_dirty
from .writes.ledger import Ledger
from .writes.rows import chunks

READ_COMMITTED = {"read committed", "read uncommitted"}


class Reader:
    """Reads one counter."""

    __slots__ = ("counter", "using")

    def __init__(self, counter: Declaration):
        self.counter = counter
        self.using = counter.db

    def count(self, key: Any) -> int:
        """The count of one owner."""
        counter = self.counter
        member = str(key)
        ledger = Ledger.of(self.using)
        if ledger.touched(counter, member) or self._sees_old_data(ledger):
            return self.count_rows([key]).get(key, 0)
        try:
            buffer = counter.buffer_of(member, ledger.connection)
            totals = buffer.totals((member,))
            if totals is not None:
                total = totals[0]
                if total is None:
                    return self._miss(ledger, buffer, {member: key})[key]
                if total >= 0:
                    return total
                return self._negative({member: key})[key]
        except BufferUnavailable:
            return self.count_rows([key]).get(key, 0)
        return self.count_rows([key]).get(key, 0)

    def counts(self, keys: Sequence[Any]) -> dict[Any, int]:
        """The counts of many owners."""
        counter = self.counter
        result: dict[Any, Any] = dict.fromkeys(keys, 0)
        rest, by_rows = list(result), []
        ledger = Ledger.of(self.using)
        if self._sees_old_data(ledger) or ledger.doubts(counter):
            rest, by_rows = [], rest
        elif touched := ledger.all_touched(counter):
            by_rows = [key for key in rest if str(key) in touched]
            rest = [key for key in rest if str(key) not in touched]
        try:
            shards = list(counter.by_shard(rest))
        except BufferUnavailable:
            shards, by_rows = [], by_rows + rest
        for buffer, mine in shards:
            try:
                totals = buffer.totals(mine)
                if totals is None:
                    by_rows += mine
                    continue
                result.update(zip(mine, totals, strict=True))
                if None in totals or min(totals) < 0:  # type: ignore[operator, type-var]
                    missed = [key for key in mine if result[key] is None]
                    result |= self._negative({str(key): key for key in mine if (result[key] or 0) < 0})
                    for some in in_calls(missed):
                        result |= self._miss(ledger, buffer, {str(key): key for key in some})
            except BufferUnavailable:
                by_rows += mine
        if by_rows:
            result |= dict.fromkeys(by_rows, 0) | self.count_rows(by_rows)
        return result

    def _miss(self, ledger: Ledger, buffer: Buffer, keys: dict[str, Any]) -> dict[Any, int]:
        """No cached total: the row plus what waits, kept if nothing moves meanwhile. During a recovery the rows, and
        the owners are adopted."""
        sees_all, keeps = self._transaction(ledger)
        lease = uuid4().hex if sees_all and keeps else ""
        snapshot = buffer.snapshot(list(keys), lease, reader=True)
        if snapshot.recovering and lease:
            return self._adopt(buffer, snapshot, lease, keys)
        clean = {m: key for m, key in keys.items() if not snapshot.users[m].dirty}
        if not snapshot.recovered or not sees_all:
            clean = {}
        stored = self.stored(list(clean.values()))
        totals: dict[str, int] = {}
        for member, key in clean.items():
            total = snapshot.value(member, *stored.get(key, (0, 0)))
            if total is not None:
                totals[member] = total
        result = {key: 0 for m, key in keys.items() if m not in totals}
        if result:
            result |= self.count_rows(list(result))
        if negative := {m: keys[m] for m, total in totals.items() if total < 0}:
            result |= self._negative(negative)
        kept = {m: total for m, total in totals.items() if total >= 0}
        result |= {keys[m]: total for m, total in kept.items()}
        if kept and keeps:
            self._keep(buffer, snapshot, kept)
        return result

    def _keep(self, buffer: Buffer, snapshot: Snapshot, totals: dict[str, int]) -> None:
        try:
            buffer.keep(snapshot, totals)
        except BufferUnavailable:
            return  # the totals are right all the same

    def _adopt(self, buffer: Buffer, snapshot: Snapshot, lease: str, keys: dict[str, Any]) -> dict[Any, int]:
        """Count rows, and correct the owners as a recount does: from now on they have totals, which follow each change.
        The recovery need not come to them first."""
        rows = dict.fromkeys(keys.values(), 0) | self.count_rows(list(keys.values()))
        stored = self.stored(list(keys.values()))
        totals = {m: snapshot.value(m, *stored.get(key, (0, 0))) for m, key in keys.items()}
        corrections = {m: rows[keys[m]] - total for m, total in totals.items() if total is not None}
        with suppress(BufferUnavailable):  # the rows are right all the same
            buffer.fix(snapshot.epoch, lease, corrections, {m: rows[key] for m, key in keys.items()})
        return rows

    def _negative(self, keys: dict[str, Any]) -> dict[Any, int]:
        """Count rows, and have the owners recounted: a count below zero is wrong, or lacks a delta that was committed
        and not sent yet."""
        mark_dirty((self.counter, member) for member in keys)
        return dict.fromkeys(keys.values(), 0) | self.count_rows(list(keys.values()))

    def count_rows(self, keys: Sequence[Any]) -> dict[Any, int]:
        """Return the number of rows that count, for owners that have any."""
        counter = self.counter
        found: dict[Any, int] = {}
        for chunk in chunks(keys, self.using):
            theirs = {f"{counter.owner_attname}__in": chunk}
            rows: QuerySet = QuerySet(counter.source, using=self.using).filter(counter.q, **theirs).order_by()
            found.update(rows.values_list(counter.owner_attname).annotate(Count("pk")))
        return found

    def stored(self, keys: Sequence[Any]) -> dict[Any, tuple[int, int]]:
        """Return ``(count, flushed_batch)`` of the stored totals that exist. By cursor: the ORM is slower."""
        counter, connection = self.counter, connections[self.using]
        target = Target(counter, connection)
        select = f"SELECT {target.owner}, {target.count}, {target.batch} FROM {target.table} WHERE {target.owner}"
        field = counter.key_field
        found: dict[Any, tuple[int, int]] = {}
        for chunk in chunks(keys, self.using):
            values = counter.db_keys(chunk, connection)
            with connection.cursor() as cursor:
                cursor.execute(f"{select} IN ({', '.join(['%s'] * len(values))})", values)
                for key, count, batch in cursor.fetchall():
                    found[field.to_python(key)] = (count, batch)
        return found

    def _sees_old_data(self, ledger: Ledger) -> bool:
        """Return whether this connection may not see the newest committed rows."""
        connection = ledger.connection
        if not connection.in_atomic_block or ledger.in_manual_transaction():
            return ledger.in_manual_transaction()
        vendor = connection.vendor
        return (
            ledger.isolation_was_set
            or vendor == "sqlite"
            or (vendor == "mysql" and (connection.isolation_level or "") not in READ_COMMITTED)
        )

    def _transaction(self, ledger: Ledger) -> tuple[bool, bool]:
        """Return whether this connection sees what others commit, and whether it sees nothing else, so that others may
        read it. On PostgreSQL the level of a transaction can come from the server's settings, so the server is asked.
        """
        connection = ledger.connection
        if not connection.in_atomic_block:
            return True, True
        if connection.vendor != "postgresql":
            return True, False
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('transaction_isolation'), txid_current_if_assigned() IS NULL")
            level, has_not_written = cursor.fetchone()
        return level in READ_COMMITTED, has_not_written
