"""Reads a counter: the cached total; else the stored total plus what waits in Redis; else the rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from django.db import connections
from django.db.models import Count, Q, QuerySet

from .buffer import Buffer, Snapshot
from .buffer.shard import in_calls
from .declaration import Declaration, each_shard
from .exceptions import BufferUnavailable
from .primary_keys import CompositeKey, group_of
from .sql.owners import is_one_of, of_owners
from .sql.target import Target
from .writes.doubt import mark_dirty
from .writes.ledger import Ledger
from .writes.rows import chunks

READ_COMMITTED = {"read committed", "read uncommitted"}


class Reader:
    """Reads one counter. Owners are given by their primary keys."""

    __slots__ = ("counter", "using")

    def __init__(self, counter: Declaration):
        self.counter = counter
        self.using = counter.db

    def count(self, key: Any) -> int:
        """Return the count of one owner."""
        counter, member = self.counter, str(key)
        ledger = Ledger.of(self.using)
        if not ledger.touched(counter, member) and not self._sees_old_data(ledger):
            try:
                buffer = counter.buffer_of(member, ledger.connection)
                if (totals := buffer.totals((member,))) is not None:
                    (total,) = totals
                    if total is None:
                        return self._miss(ledger, buffer, [key])[key]
                    return total if total >= 0 else self._negative([key])[key]
            except BufferUnavailable:
                pass
        return self._rows([key])[key]

    def counts(self, keys: Sequence[Any]) -> dict[Any, int]:
        """Return the counts of many owners."""
        counter = self.counter
        result: dict[Any, Any] = dict.fromkeys(keys, 0)
        rest, by_rows = list(result), []
        ledger = Ledger.of(self.using)
        if self._sees_old_data(ledger) or ledger.doubts(counter):
            rest, by_rows = [], rest
        elif touched := ledger.all_touched(counter):
            by_rows = [key for key in rest if str(key) in touched]
            rest = [key for key in rest if str(key) not in touched]

        def read(buffer: Buffer, mine: list[Any]) -> None:
            totals = buffer.totals(mine)
            if totals is None:
                by_rows.extend(mine)
                return
            result.update(zip(mine, totals, strict=True))
            if None in totals or min(totals) < 0:  # type: ignore[operator, type-var]
                missed = [key for key in mine if result[key] is None]
                result.update(self._negative([key for key in mine if (result[key] or 0) < 0]))
                for some in in_calls(missed):
                    result.update(self._miss(ledger, buffer, some))

        by_rows += each_shard(counter, rest, read)
        return result | self._rows(by_rows) if by_rows else result

    def breakdown(self, first: tuple[Any, ...]) -> dict[Any, int]:
        """The counts of owners that have any, and these values in all columns but the last, by the last one."""
        counter, group = self.counter, group_of(first)
        ledger = Ledger.of(self.using)
        touched = any(member.startswith(group) for member in ledger.all_touched(counter))
        if touched or ledger.doubts(counter) or self._sees_old_data(ledger):
            return self._count_group(first)
        try:
            buffer = counter.buffer_of(group, ledger.connection)
            counts = buffer.group(group)
            if counts is None:
                return self._miss_group(ledger, buffer, first)
        except BufferUnavailable:
            return self._count_group(first)
        if negative := [group + last for last, count in counts.items() if count < 0]:
            mark_dirty((counter, member) for member in negative)
            return self._count_group(first)
        return {counter.parse(group + last)[-1]: count for last, count in counts.items()}

    def _miss_group(self, ledger: Ledger, buffer: Buffer, first: tuple[Any, ...]) -> dict[Any, int]:
        """The rows, whose counts are kept if nothing moves meanwhile."""
        _, keeps = self._transaction(ledger)
        group, token = group_of(first), f"?{uuid4().hex}"
        ready = buffer.prepare_group(group, token) if keeps else ""
        counts = self._count_group(first)
        if ready:
            members = ((str(CompositeKey((*first, last))), count) for last, count in counts.items())
            with suppress(BufferUnavailable):  # the counts are right all the same
                buffer.keep_group(ready, group, token, {m.removeprefix(group): count for m, count in members})
        return counts

    def _count_group(self, first: tuple[Any, ...]) -> dict[Any, int]:
        *names, last = self.counter.owner_attnames
        theirs = Q(**dict(zip(names, first, strict=True)), **{f"{last}__isnull": False})
        return {owner[-1]: count for owner, count in self._counted(theirs).items()}

    def _miss(self, ledger: Ledger, buffer: Buffer, keys: Sequence[Any]) -> dict[Any, int]:
        """Add the stored total to what waits in Redis, because no total is cached, and cache the sum if nothing has
        changed meanwhile. During a recovery, count rows and adopt the owners."""
        sees_all, may_cache = self._transaction(ledger)
        lease = uuid4().hex if sees_all and may_cache else ""
        members = {str(key): key for key in keys}
        snapshot = buffer.snapshot(list(members), lease, reader=True)
        if snapshot.recovering and lease:
            return self._adopt(buffer, snapshot, lease, members)
        clean = {}
        if snapshot.recovered and sees_all:
            clean = {member: key for member, key in members.items() if not snapshot.users[member].dirty}
        stored = self.stored(list(clean.values()))
        found = {member: snapshot.value(member, *stored.get(key, (0, 0))) for member, key in clean.items()}
        totals = {member: total for member, total in found.items() if total is not None}
        result = self._rows([key for member, key in members.items() if member not in totals])
        result |= self._negative([members[member] for member, total in totals.items() if total < 0])
        right = {member: total for member, total in totals.items() if total >= 0}
        if right and may_cache:
            with suppress(BufferUnavailable):  # the totals are right all the same
                buffer.keep(snapshot, right)
        return result | {members[member]: total for member, total in right.items()}

    def _adopt(self, buffer: Buffer, snapshot: Snapshot, lease: str, members: dict[str, Any]) -> dict[Any, int]:
        """Count rows, and correct the owners as a recount does. From now on they have cached totals that follow each
        change, so the recovery need not come to them first."""
        rows = self._rows(list(members.values()))
        stored = self.stored(list(members.values()))
        totals = {m: snapshot.value(m, *stored.get(key, (0, 0))) for m, key in members.items()}
        corrections = {m: rows[members[m]] - total for m, total in totals.items() if total is not None}
        with suppress(BufferUnavailable):  # the rows are right all the same
            buffer.fix(snapshot.epoch, lease, corrections, {m: rows[key] for m, key in members.items()})
        return rows

    def _negative(self, keys: Sequence[Any]) -> dict[Any, int]:
        """Count rows, and have the owners recounted. A count below zero is wrong, or lacks a delta that was committed
        and not sent yet."""
        mark_dirty((self.counter, str(key)) for key in keys)
        return self._rows(keys)

    def _rows(self, keys: Sequence[Any]) -> dict[Any, int]:
        """Return the number of rows that count for each of these owners."""
        return dict.fromkeys(keys, 0) | self.count_rows(keys)

    def count_rows(self, keys: Sequence[Any]) -> dict[Any, int]:
        """Return the number of rows that count. Owners without such rows are left out."""
        counter = self.counter
        found: dict[Any, int] = {}
        for chunk in chunks(keys, self.using):
            found |= self._counted(of_owners(counter, counter.owner_fields, chunk, self.using))
        return found

    def _counted(self, whose: Any) -> dict[Any, int]:
        counter = self.counter
        rows: QuerySet = QuerySet(counter.source, using=self.using).filter(counter.q).filter(whose).order_by()
        counts = rows.values_list(*counter.owner_attnames).annotate(Count("pk"))
        return {row[:-1] if counter.has_several_columns else row[0]: row[-1] for row in counts}

    def stored(self, keys: Sequence[Any]) -> dict[Any, tuple[int, int]]:
        """Return ``(count, flushed_batch)`` of the stored totals that exist."""
        counter, connection = self.counter, connections[self.using]
        target = Target(counter, connection)
        select = f"SELECT {target.owner}, {target.count}, {target.batch} FROM {target.table} WHERE "
        found: dict[Any, tuple[int, int]] = {}
        for chunk in chunks(keys, self.using):
            theirs, params = is_one_of(counter, target.owners, chunk, connection)
            with connection.cursor() as cursor:  # the ORM is slower
                cursor.execute(select + theirs, params)
                for *key, count, batch in cursor.fetchall():
                    found[counter.key_of(key)] = (count, batch)
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
        """Return whether this connection sees what others commit, and whether it sees nothing else, so that its counts
        may be cached for others. PostgreSQL is asked, because the isolation level may come from its own settings."""
        connection = ledger.connection
        if not connection.in_atomic_block:
            return True, True
        if connection.vendor != "postgresql":
            return True, False
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('transaction_isolation'), txid_current_if_assigned() IS NULL")
            level, has_not_written = cursor.fetchone()
        return level in READ_COMMITTED, has_not_written
