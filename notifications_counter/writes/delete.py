"""DELETE. RETURNING counts the deleted rows. On databases without it, they are locked and counted first."""

from __future__ import annotations

from collections import Counter
from operator import neg
from typing import Any

from ..internals import ROW_COUNT
from .change import Change, Sums, difference
from .columns import convert
from .execution import write
from .facts import contribution, facts_of_where
from .queries import is_plain, keeps_to, max_rows
from .rows import lock_by_key, lock_rows
from .statement import Statement

FEW = 100
"""The most rows that Django deletes by one statement if it has loaded them."""


class Delete(Statement):
    """A DELETE of the rows that a query selects."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Execute it, and return the number of rows."""
        facts = facts_of_where(self.query.where) if self.is_stock and is_plain(self.query) else {}
        self.contributions = {counter: contribution(counter, facts, self.connection) for counter in self.counters}
        if self.can_return and (self.connection.vendor == "postgresql" or self.compiler.single_alias):
            names_owners = all(c.names_owner for c in self.contributions.values())
            owners = {counter: c.owner_keys for counter, c in self.contributions.items()} if names_owners else None
            return write(self.connection, owners, self._delete_returning)
        return write(self.connection, None, self._look_and_delete)

    def _delete_returning(self) -> tuple[int, Change]:
        ours, as_sql = self.columns, self.compiler.as_sql
        # One row for each owner. A few rows come as they are, by SQL that begins as without counters.
        groups = self.connection.vendor == "postgresql" and max_rows(self.query) > FEW

        def as_sql_with_ours() -> tuple[str, tuple[Any, ...]]:
            sql, params = as_sql()
            sql = f"{sql} RETURNING {ours.aliased}"
            if groups:
                sql = f"WITH deleted AS ({sql}) SELECT {ours.sums}, COUNT(*) FROM deleted GROUP BY {ours.owners}"
            return sql, (*params, *ours.params)

        found, sums = self.fetch(as_sql_with_ours), Sums(self.counters)
        if not found:
            return 0, Change({})
        if not groups:
            found = [(*row, number) for row, number in Counter(map(tuple, found)).items()]
        *columns, numbers = zip(*convert(self.compiler, ours.fields, found), strict=True)
        sums.add_columns(columns, [-1] * len(numbers) if groups else list(map(neg, numbers)))
        return sum(numbers), Change(sums)

    def _look_and_delete(self) -> tuple[int, Change]:
        found = lock_rows(self.query, self.connection, self.counters)
        is_stable = self.is_stock and keeps_to(found, self.query, self.connection)
        number = self.execute(self.compiler, ROW_COUNT) or 0
        if number != len(found) or not is_stable:
            remaining = lock_by_key(self.model, self.connection, list(found), self.counters)
            found = {pk: row for pk, row in found.items() if pk not in remaining}
        deltas: Any = difference(self.counters, found.values())
        if number == len(found):
            return number, Change(deltas)
        for counter, its in self.contributions.items():  # it has deleted other rows as well
            deltas[counter] |= dict.fromkeys(its.owner_keys)
        return number, Change(deltas, [c for c, its in self.contributions.items() if not its.names_owner])
