"""DELETE. RETURNING says what was deleted. On databases without it, the rows are locked and counted first."""

from __future__ import annotations

from operator import neg
from typing import Any

from ..internals import ROW_COUNT
from .columns import convert
from .execution import write
from .facts import facts_of_where, fate
from .rows import (
    Change,
    Sums,
    difference,
    grouped,
    is_plain,
    keeps_to,
    locked_by_key,
    locked_for_now,
    named_keys,
)
from .statement import Statement

FEW = 100
"""As many rows as Django deletes by one statement, if it has loaded them."""


class Delete(Statement):
    """A DELETE of the rows that a query selects."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Execute it, have the ledger collect what it changes, and return the number of rows."""
        facts = facts_of_where(self.query.where) if self.known and is_plain(self.query) else {}
        self.fates = {counter: fate(counter, facts, self.connection) for counter in self.counters}
        if self.can_return and (self.connection.vendor == "postgresql" or self.compiler.single_alias):
            named = all(its.names_owner for its in self.fates.values())
            owners = {counter: its.owner_keys for counter, its in self.fates.items()} if named else None
            return write(self.connection, owners, self._returning)
        return write(self.connection, None, self._look_first)

    def _returning(self) -> tuple[int, Change]:
        ours, as_sql = self.columns, self.compiler.as_sql
        # One row for each owner. A few rows come as they are, by SQL that begins as without counters.
        groups = self.connection.vendor == "postgresql" and named_keys(self.query) > FEW

        def as_sql_with_ours() -> tuple[str, tuple[Any, ...]]:
            sql, params = as_sql()
            sql = f"{sql} RETURNING {ours.named}"
            if groups:
                sql = f"WITH deleted AS ({sql}) SELECT {ours.sums}, COUNT(*) FROM deleted GROUP BY {ours.owners}"
            return sql, (*params, *ours.params)

        found, sums = self.fetch(as_sql_with_ours), Sums(self.counters)
        if not found:
            return 0, Change({})
        *columns, numbers = zip(*convert(self.compiler, ours.fields, found if groups else grouped(found)), strict=True)
        sums.add_columns(columns, [-1] * len(numbers) if groups else list(map(neg, numbers)))
        return sum(numbers), Change(sums)

    def _look_first(self) -> tuple[int, Change]:
        found = locked_for_now(self.query, self.connection, self.counters)
        is_stable = self.known and keeps_to(found, self.query, self.connection)
        number = self.execute(self.compiler, ROW_COUNT) or 0
        if number != len(found) or not is_stable:
            left = locked_by_key(self.model, self.connection, list(found), self.counters)
            found = {pk: row for pk, row in found.items() if pk not in left}
        deltas, everyone = difference(self.counters, found.values()), []
        if number != len(found):  # it has deleted others as well
            everyone = [counter for counter, its in self.fates.items() if not its.names_owner]
            deltas = {c: {**deltas[c], **dict.fromkeys(its.owner_keys)} for c, its in self.fates.items()}
        return number, Change(deltas, everyone)
